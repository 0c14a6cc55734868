"""Huge pages for the tests that want some: reserved for the time of the run, where that is allowed (root)."""

import contextlib
import pathlib
import signal
import sys

PAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
# 64 MiB; a test takes a few of them.
WANTED = 32


@contextlib.contextmanager
def reserved():
    """Yields whether there are huge pages."""
    try:
        before = int(PAGES.read_text())
    except OSError:
        yield False
        return
    # So that `finally` is reached.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if before < WANTED:
            with contextlib.suppress(OSError):
                PAGES.write_text(str(WANTED))
        yield int(PAGES.read_text()) > 0
    finally:
        with contextlib.suppress(OSError):
            PAGES.write_text(str(before))
