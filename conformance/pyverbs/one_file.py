"""Runs one file of rdma-core's tests/ and tells a descriptor, in JSON lines, how each test begins and ends.

    one_file.py EVENTS TESTS FILE GID [TEST...]        TESTs are left out

A process of its own for every file: a test may hang, crash, or leave the process unfit for others.
"""

import importlib
import json
import multiprocessing
import multiprocessing.process
import os
import sys
import unittest


class Reporter(unittest.TestResult):
    """Tells what happens; of several outcomes of a test the first counts, a failure above all."""

    def __init__(self, events):
        super().__init__()
        self.events = events
        self.outcome = None

    def tell(self, **event):
        os.write(self.events, json.dumps(event).encode() + b"\n")

    def startTest(self, test):
        super().startTest(test)
        self.outcome = None
        CRASHES.clear()
        self.tell(begins=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        if CRASHES:
            self.note("fail", f"a process of the test was ended by signal {CRASHES[0]}")
        result, reason = self.outcome or ("pass", "")
        self.tell(ends=test.id(), result=result, reason=reason)

    def note(self, result, reason):
        if self.outcome is None or (result == "fail" and self.outcome[0] != "fail"):
            self.outcome = (result, str(reason))

    def addSkip(self, test, reason):
        self.note("skip", reason)

    def addError(self, test, error):
        self.note("fail", f"{error[0].__name__}: {error[1]}")

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)

    def addUnexpectedSuccess(self, test):
        self.note("fail", "unexpected success")


# The suite takes a child's exit by a signal for success. SIGTERM is how it ends children itself.
CRASHES = []
SIGTERM_EXIT = -15


def watch_children():
    join = multiprocessing.process.BaseProcess.join

    def watched_join(self, timeout=None):
        join(self, timeout)
        code = self.exitcode
        if code is not None and code < 0 and code != SIGTERM_EXIT:
            CRASHES.append(-code)

    multiprocessing.process.BaseProcess.join = watched_join


def tests_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def main():
    events, folder, name, gid, *done = sys.argv[1:]
    # The suite's helper modules are at top level, the folder itself is the package "tests".
    sys.path[:0] = [folder, os.path.dirname(folder)]
    sys.argv[1:] = ["--dev", "urxe0", "--gid", gid]
    importlib.import_module("args_parser").parser.parse_args()
    # The suite's processes take over open devices; Python 3.14 would start new ones.
    multiprocessing.set_start_method("fork")
    module = importlib.import_module(f"tests.{name}")
    tests = list(tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)))
    watch_children()
    reporter = Reporter(int(events))
    reporter.tell(tests=[test.id() for test in tests])
    unittest.TestSuite(test for test in tests if test.id() not in done).run(reporter)
    reporter.tell(finished=True)


if __name__ == "__main__":
    main()
