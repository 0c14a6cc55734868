"""Samba's smbd on urxe's side, at a TCP port, and smb-direct-front of this suite before it."""

import shutil

from peer import Skipped, wait_for

SHARE, PORT, FRONT, WITNESS = "share", 1445, 445, 5446
SETTINGS = """
[global]
    server role = standalone server
    map to guest = bad user
    guest account = nobody
    smb ports = {port}
    bind interfaces only = yes
    interfaces = lo
    disable netbios = yes
    load printers = no
    server multi channel support = no
    private dir = {folder}/samba
    lock directory = {folder}/samba
    state directory = {folder}/samba
    cache directory = {folder}/samba
    pid directory = {folder}/samba
    ncalrpc dir = {folder}/samba/ncalrpc
    log file = {folder}/samba/log
[{share}]
    path = {folder}/share
    guest ok = yes
    read only = no
    force user = root
"""


class Server:
    """The share is `folder`."""

    def __init__(self, peer):
        if not shutil.which("smbd"):
            raise Skipped("the package samba is not installed")
        self.peer, self.folder = peer, peer.path("share")
        self.folder.mkdir()
        self.folder.chmod(0o777)
        (peer.path("samba/ncalrpc")).mkdir(parents=True)
        peer.path("smb.conf").write_text(SETTINGS.format(port=PORT, folder=peer.scratch.name, share=SHARE))
        peer.path("").chmod(0o755)
        self.smbd = peer.start("smbd", "--foreground", "--no-process-group", f"--configfile={peer.path('smb.conf')}")
        wait_for(lambda: self.accepts(), 120, "smbd listens")
        # Says goodbye for a front that is killed. Nobody else would, and rxe asks a connection that is gone for ever.
        self.witness = peer.start("smb-direct-front", WITNESS, "127.0.0.1", PORT)
        self.witness.says("^listening$", 60)
        self.start_front()

    def accepts(self):
        wanted = f":{PORT:04X} 00000000:0000 0A"
        with open("/proc/net/tcp") as table:
            return wanted in table.read()

    def start_front(self, env=None):
        self.front = self.peer.start("smb-direct-front", FRONT, "127.0.0.1", PORT, env=env)
        self.front.says("^listening$", 60)

    def restart_front(self, env=None):
        self.front.kill()
        self.start_front(env)

    def close(self):
        self.front.kill()
        self.witness.kill()
        self.smbd.kill()
