"""A stock program's server and client, which meet at a TCP port: both run to their end, within a limit."""

import pathlib
import subprocess
import time


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
        """What went wrong, as far as the exit statuses tell; None if nothing did."""
        if self.hung:
            return f"no end: {', '.join(self.hung)}; {self.said(self.hung[0])}"
        if "client" not in self.status:
            return f"the server did not listen; {self.said('server')}"
        for side, status in self.status.items():
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


def run(server, client, port, limit, folder, env=None):
    """Runs `server`, and `client` as soon as something listens at `port`; at most `limit` seconds. `folder` is for their
    output."""
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
        for side, process in processes.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                ends.hung.append(side)
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
