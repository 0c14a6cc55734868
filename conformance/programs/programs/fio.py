"""fio's engine rdma: a client that sends, writes or reads, and a server whose memory it does that with."""

import re

from hosts import Network, check, wait_for
from store import package_version

TITLE = "fio"
ORIGIN = "Debian"
COMPARED = "what is sent, by fio's checksums; what is written or read, not"
PORT = 4711
MESSAGES = 64
VERIFY = "--verify=crc32c"


def prepare(store):
    package_version("fio")


def version(store):
    return package_version("fio")


def job(name, direction, *words):
    return ["fio", f"--name={name}", "--ioengine=rdma", f"--port={PORT}", f"--rw={direction}", *words]


def start(net, verb, server_words, client_words, env=None):
    server_host, client_host = net.hosts
    server = server_host.start(*job("server", "read", *server_words), env=env)
    wait_for(lambda: server_host.listens_by_cm(PORT), 30, "the server listens")
    # The engine takes the writer for the client, whatever the verb is.
    words = job("client", "write", *client_words, f"--hostname={server_host.address}", f"--verb={verb}")
    return server, client_host.start(*words, env=env)


def transfer(verb, block, verify):
    def case(store):
        with Network() as net:
            # fio's client retries no send that finds no receive: the server has one for each message from the start.
            size = [f"--bs={block}", f"--size={MESSAGES * block}"]
            server_words, client_words = [*size, f"--iodepth={MESSAGES}"], [*size, "--iodepth=8"]
            if verify:
                server_words, client_words = [*server_words, VERIFY], [*client_words, VERIFY, "--do_verify=0"]
            server, client = start(net, verb, server_words, client_words)
            for program in (client, server):
                text = program.success(120)
                check("err= 0" in text, program.last_lines())
            check(f"total=0,{MESSAGES}," in client.text(), f"not {MESSAGES} messages; {client.last_lines(20)}")
            if verify:
                check(re.search(rf"total={MESSAGES},", server.text()), f"not {MESSAGES} received; {server.last_lines(20)}")
    return case


def kill_server(store):
    """The client learns of it by its retries. It does not end by itself: fio waits for completions that have failed already."""
    with Network() as net:
        words = ["--bs=64k", "--size=64m", "--time_based", "--runtime=600", "--iodepth=8"]
        server, client = start(net, "write", words, words, {"URXE_EXPLAIN": 1})
        net.hosts[1].busy()
        server.kill()
        client.says("cq completion status 12", 120)
        client.explained("RETRY_EXC_ERR", "answered before", "process ended")


CASES = {
    **{f"{verb}/{block}": transfer(verb, block, verb == "send")
       for verb in ("send", "write", "read") for block in (4096, 65536, 1 << 20)},
    "kill-server": kill_server,
}
