"""A suite's table of results, and the policy that judges it: which skips and differences are expected, and why."""

import fnmatch
import re
import sys
import tomllib

REASON_LENGTH = 300


class Table:
    """Rows of (name, pass/skip/fail, reason), written to a file as they come."""

    def __init__(self, path, policy, selected=None, lacking=()):
        """`policy`: a TOML file with a table `[skip]` of glob = reason, and tables `[lacking.NAME]` that count where the
        machine lacks what is so named; and `[differ]` of glob = {says, reason}: cases that may fail if they fail with
        what `says` is found in. `selected`: whether only some cases run, and entries that match nothing are no
        fault."""
        with open(policy, "rb") as file:
            tables = tomllib.load(file)
        self.expected, self.differ = dict(tables.get("skip", {})), tables.get("differ", {})
        for name in lacking:
            self.expected |= tables["lacking"][name]
        self.selected = selected
        self.used = set()
        self.counts = {"pass": 0, "fail": 0, "skip": 0, "differs": 0}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.write("name", "result", "reason")

    def write(self, *cells):
        print(*cells, sep="\t", file=self.file, flush=True)

    def add(self, name, result, reason="", explained=""):
        """`explained`: what a program said of the cause, which is there behind the longest reason."""
        texts = (" ".join(text.split())[:REASON_LENGTH] for text in (reason, explained))
        reason = " ".join(text for text in texts if text)
        if result == "skip":
            entry = next((glob for glob in self.expected if fnmatch.fnmatchcase(name, glob)), None)
            if entry is None:
                result, reason = "fail", f"skipped, and no policy expects it: {reason}"
            else:
                self.used.add(entry)
                reason = f"{self.expected[entry]} ({reason})"
        if result == "fail":
            for glob, entry in self.differ.items():
                if fnmatch.fnmatchcase(name, glob) and re.search(entry["says"], reason):
                    self.used.add(glob)
                    result, reason = "differs", f"{entry['reason']} ({reason})"
                    break
        self.counts[result] += 1
        self.write(name, result, reason)
        if result == "fail":
            print(f"FAIL {name}: {reason}", file=sys.stderr, flush=True)

    def end(self):
        """Prints the sum; returns the exit status."""
        if not self.selected:
            for glob in self.expected.keys() - self.used:
                self.add(f"policy: {glob}", "fail", "stale: nothing that it names was skipped")
            for glob in self.differ.keys() - self.used:
                self.add(f"policy: {glob}", "fail", "stale: nothing that it names differed")
        self.file.close()
        print(f"table: {self.file.name}")
        differ = ", {differs} differ".format(**self.counts) if self.differ else ""
        print("{pass} passed, {fail} failed, {skip} skipped".format(**self.counts) + differ)
        return 1 if self.counts["fail"] or not self.counts["pass"] else 0
