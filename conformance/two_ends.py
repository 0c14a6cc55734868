"""A stock program's server and client, which meet at a TCP port: both run to their end, within a limit."""

import pathlib
import subprocess
import time


# Seconds for the end that is left when the other has failed.
GRACE = 20


class Ends:
    """How the two ended."""

    def __init__(self):
        # Of "server" and "client", those that were started: exit status, all output, and who had to be killed.
        self.status = {}
        self.text = {}
        self.hung = []

    def said(self, side):
        """The last lines that tell something."""
        lines = [line for line in self.text[side].splitlines() if line.strip(" -+|") and "WARNING" not in line]
        return f"{side}: " + " / ".join(lines[-3:])

    def failure(self):
        """The failure, as far as the exit statuses tell; None if there is none."""
        if self.hung:
            return f"no end: {', '.join(self.hung)}; {self.said(self.hung[0])}"
        if "server" in self.status and "client" not in self.status:
            return f"the server did not listen; {self.said('server')}"
        # The one that failed by itself, rather than the one that still waited for it and was killed.
        for side, status in sorted(self.status.items(), key=lambda item: (item[1] or 0) <= 0):
            if status != 0:
                return f"status {self.status}; {self.said(side)}"
        return None


def listens(port):
    wanted = f":{port:04X}"
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(path).read_text().splitlines()[1:]:
            words = line.split()
            if words[1].endswith(wanted) and words[3] == "0A":
                return True
    return False


def wait(processes, deadline):
    """Until all have ended. When one has failed, the other may wait for ever: it gets GRACE seconds more."""
    failed = False
    while any(process.poll() is None for process in processes.values()) and time.monotonic() < deadline:
        if not failed and any(process.poll() for process in processes.values()):
            failed, deadline = True, min(deadline, time.monotonic() + GRACE)
        time.sleep(0.01)


def run(server, client, port, limit, folder, env=None, listens=listens):
    """Runs `server`, and `client` as soon as something listens at `port`, of TCP or as `listens` sees it; at most `limit`
    seconds. `folder` is for their output."""
    deadline = time.monotonic() + limit
    outputs = {side: open(pathlib.Path(folder) / side, "w+", errors="replace") for side in ("server", "client")}
    processes = {}

    def start(side, words):
        processes[side] = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=outputs[side], stderr=subprocess.STDOUT, env=env
        )

    ends = Ends()
    try:
        start("server", server)
        while not listens(port):
            if processes["server"].poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        else:
            start("client", client)
        wait(processes, deadline)
        if not any(process.poll() for process in processes.values()):
            ends.hung = [side for side, process in processes.items() if process.poll() is None]
        ends.status = {side: process.poll() for side, process in processes.items()}
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    for side, file in outputs.items():
        file.seek(0)
        ends.text[side] = file.read()
        file.close()
    return ends
