"""Whether the guest was kept from this machine's processors, which is no fault of its programs.

Stock programs have ACK timeouts compiled in (ibv_rc_pingpong: eight times 67 ms, 0.54 s). An emulated processor that waits for
longer than that behind other programs of a busy machine is a peer that has gone. A case that fails meanwhile shows nothing,
and is run again; one that fails by itself fails again.
"""

import os
import pathlib

#: Seconds: eight ACK timeouts of 67 ms.
LONG = 0.54
#: How often a case is run again.
TRIES = 3
NANOSECOND = 1e-9


class Watch:
    """Time that the threads of QEMU wait for a processor within the `with`."""

    def __enter__(self):
        self.before = waited()
        return self

    def __exit__(self, *_):
        after = waited()
        self.most = max((after[thread] - self.before.get(thread, 0) for thread in after), default=0)

    def why(self):
        """The reason, if the guest was starved."""
        return f"a processor of the guest's waited {self.most:.1f} s for one of this machine's" if self.most > LONG else ""


def waited():
    """Seconds, by thread of the QEMU in this network namespace (`/proc/PID/task/TID/schedstat`, its second number)."""
    network = os.readlink("/proc/self/ns/net")
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            ours = (process / "comm").read_text().startswith("qemu-system") and os.readlink(process / "ns/net") == network
            for thread in (process / "task").iterdir() if ours else ():
                found[thread.name] = int((thread / "schedstat").read_text().split()[1]) * NANOSECOND
        except (OSError, IndexError):
            continue  # it has ended, or is another user's
    return found
