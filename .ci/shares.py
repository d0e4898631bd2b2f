"""Run files of tests in several processes of pytest, which take one file after another.

The queue is a pipe with the files' numbers; tests/share.py is pytest's side of it.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("--nbval-lax", "--nbval-current-env", "-p", "tests.share", "-p", "no:cacheprovider")
NOTHING_FOUND = 5  # pytest's exit code
KINDS = ("passed", "skipped", "failed")  # of a test's three phases, the last of these counts


@dataclass
class Run:
    """What some processes of pytest found.

    Attributes:
        code: the highest exit code, or 5 if no test was found.
        tests: {name of a test: "passed", "skipped" or "failed"}.
        seconds: {name of a test, or of a file with its imports: its seconds}.
        setups: {name of a test: the seconds of its set-up, a part of its seconds}.
        reasons: {why a test was skipped: how many}.
    """

    code: int = NOTHING_FOUND
    tests: dict[str, str] = field(default_factory=dict)
    seconds: Counter = field(default_factory=Counter)
    setups: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)

    def add(self, line: dict):
        """Add what a process has written. Print it if a file has ended, or a test has failed."""
        if "ended" in line:
            file = line["ended"]
            self.seconds[file] = line["seconds"]
            found = Counter(r for test, r in self.tests.items() if test.split("::")[0] == file)
            if found:
                counts = ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind])
                print(f"{file}: {counts}, {line['seconds']:.1f} s", flush=True)
        elif "test" in line:
            test, outcome = line["test"], line["outcome"]
            self.tests[test] = max(self.tests.get(test, "passed"), outcome, key=KINDS.index)
            self.seconds[test] += line["seconds"]
            self.setups[test] += line["seconds"] * (line.get("when") == "setup")
            if outcome == "skipped":
                self.reasons[line.get("text", "")] += 1
            if outcome == "failed":
                print(f"\n____ {test} ____\n{line['text']}\n", flush=True)

    def failed(self) -> list[str]:
        """Names of the failed tests; of a cell its notebook's, because it needs the cells above."""
        names = (test for test, found in self.tests.items() if found == "failed")
        return list(dict.fromkeys(n.split("::")[0] if ".ipynb::" in n else n for n in names))


def run(files: list[str], *options: str, processes: int = 1, left_out=(), **environ: str) -> Run:
    """Run the tests of some files, or some tests by name, but for those to leave out."""
    found = Run()
    if not files:
        return found
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "left out")
        names.write_text(json.dumps(list(left_out)), "utf-8")
        queue, end = os.pipe()
        os.write(end, b"".join(k.to_bytes(4, "big") for k in range(len(files))))
        os.close(end)
        line = [sys.executable, "-m", "pytest", *OPTIONS, *options, *files]
        crowd = [Process(Path(folder, f"{k}"), queue, names) for k in range(processes)]
        try:
            for process in crowd:
                process.start(line, environ)
            while crowd:
                time.sleep(0.05)
                crowd = [process for process in crowd if process.look(found)]
        except KeyboardInterrupt:  # pytest was interrupted too, and cleans up
            for process in crowd:
                process.process.wait()
            raise
        finally:
            for process in crowd:
                process.process.terminate()
            os.close(queue)
    return found


class Process:
    """One process of pytest: what it prints, and what it writes."""

    def __init__(self, results: Path, queue: int, left_out: Path):
        self.results, self.queue, self.left_out = results, queue, left_out
        self.place, self.part, self.begun = 0, "", "the first test"

    def start(self, line: list[str], environ: dict[str, str]):
        share = {"results": str(self.results), "left_out": str(self.left_out)}
        share = json.dumps(share | {"queue": self.queue})
        with open(f"{self.results}.log", "wb") as log:
            self.process = subprocess.Popen(
                line,
                cwd=ROOT,
                env={**os.environ, **environ, "SUITE_SHARE": share},
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[self.queue],
            )

    def look(self, found: Run) -> bool:
        """Read what is new. Returns whether the process still runs."""
        code = self.process.poll()
        with contextlib.suppress(FileNotFoundError), self.results.open("rb") as file:
            file.seek(self.place)
            new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self.place += len(whole)
            for line in map(json.loads, whole.splitlines()):
                self.begun = line.get("begun", self.begun)
                found.add(line)
        if code is None:
            return True
        if code not in (0, 1, NOTHING_FOUND):  # pytest refused its options, or was killed
            print(Path(f"{self.results}.log").read_text("utf-8", "replace")[-3000:])
            text = (
                f"pytest ended with code {code} at {self.begun}; the rest of its file did not run"
            )
            found.add({"test": self.begun, "outcome": "failed", "seconds": 0, "text": text})
            code = code if code > 0 else 128 - code  # a shell counts signals in this way
        codes = {found.code, code} - {NOTHING_FOUND}
        found.code = max(codes, default=NOTHING_FOUND)
        return False
