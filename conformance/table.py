"""A suite's table of results, and the policy that judges it: which skips are expected, and why."""

import fnmatch
import sys
import tomllib

REASON_LENGTH = 300


class Table:
    """Rows of (name, pass/skip/fail, reason), written to a file as they come."""

    def __init__(self, path, policy, selected=None, lacking=()):
        """`policy`: a TOML file with a table `[skip]` of glob = reason, and tables `[lacking.NAME]` that count where the
        machine lacks what is so named. `selected`: whether only some cases run, and entries that match nothing are no
        fault."""
        with open(policy, "rb") as file:
            tables = tomllib.load(file)
        self.expected = dict(tables["skip"])
        for name in lacking:
            self.expected |= tables["lacking"][name]
        self.selected = selected
        self.used = set()
        self.counts = {"pass": 0, "fail": 0, "skip": 0}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.write("name", "result", "reason")

    def write(self, *cells):
        print(*cells, sep="\t", file=self.file, flush=True)

    def add(self, name, result, reason=""):
        reason = " ".join(reason.split())[:REASON_LENGTH]
        if result == "skip":
            entry = next((glob for glob in self.expected if fnmatch.fnmatchcase(name, glob)), None)
            if entry is None:
                result, reason = "fail", f"skipped, and no policy expects it: {reason}"
            else:
                self.used.add(entry)
                reason = f"{self.expected[entry]} ({reason})"
        self.counts[result] += 1
        self.write(name, result, reason)
        if result == "fail":
            print(f"FAIL {name}: {reason}", file=sys.stderr, flush=True)

    def end(self):
        """Prints the sum; returns the exit status."""
        if not self.selected:
            for glob in self.expected.keys() - self.used:
                self.add(f"policy: {glob}", "fail", "stale: nothing that it names was skipped")
        self.file.close()
        print(f"table: {self.file.name}")
        print("{pass} passed, {fail} failed, {skip} skipped".format(**self.counts))
        return 1 if self.counts["fail"] or not self.counts["pass"] else 0
