"""Which tests run in a few minutes: .ci/durations.json, written by `make durations`.

The file lists the seconds of each file, and the tests to leave out. All other tests run, so a new
test runs until the file is written anew. These stay:

1. of each week, the notebook that takes the shortest time, from the fastest on, as many as fit
2. of each file of tests, the fastest test; of a file about faults, the six fastest
3. of each file that compares strategies with one process, the fastest case of each test
4. of all other tests, from the fastest on, as many as fit into the time

A test takes its call, and a usual set-up of its file. What the first test of a file needs besides
(imports, and the longest set-up: a fixture that tests share) counts once for the file.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

from shares import Run

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / ".ci" / "durations.json"
MINUTES = 4.5  # of the six that `make test` may take: other machines are slower
NOTEBOOKS = 75.0  # seconds, of all notebooks
SLOW = 4.0  # seconds; a test that takes longer runs by no rule but the last
TWIN = re.compile(r"^from helpers\.training\.twin import .*\bcompare\b", re.MULTILINE)
WEEK = re.compile(r"notebooks/(?:week\d\d|project)")


@cache
def known() -> dict:
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {"left out": [], "files": {}}


def left_out() -> list[str]:
    """Names of the tests, and the notebooks, that a short run leaves out."""
    return known()["left out"]


def longest_first(name: str) -> tuple[float, str]:
    """The key to sort files by. A file that is not known begins: it may be long."""
    return -known()["files"].get(name.split("::")[0], 1e9), name


@dataclass
class Cost:
    """Seconds of the whole machine.

    Attributes:
        own: {test: its seconds}; a notebook is one test.
        first: {file: what its first test needs besides}.
        share: {file: this, for each of its tests}.
    """

    own: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    share: dict[str, float] = field(default_factory=dict)

    def alone(self, test: str) -> float:
        return self.own[test] + self.first[test.split("::")[0]]

    def order(self) -> list[str]:
        return sorted(self.own, key=lambda t: (self.own[t] + self.share[t.split("::")[0]], t))

    def total(self, tests: set[str]) -> float:
        files = {test.split("::")[0] for test in tests}
        return sum(map(self.own.get, tests)) + sum(map(self.first.get, files))


def costs(together: Run, alone: Run, processes: int) -> Cost:
    """Measure by both runs: in the first, that many processes share the machine."""
    found = Cost()
    for run, at_once in ((together, processes), (alone, 1)):
        tests = defaultdict(list)
        for test in run.tests:
            tests[test.split("::")[0]].append(test)
        for file, names in tests.items():
            if file.endswith(".ipynb"):
                found.own[file], first = run.seconds[file] / at_once, 0.0
            else:
                usual = median(run.setups[test] for test in names)
                for test in names:
                    seconds = run.seconds[test] - run.setups[test] + usual
                    found.own[test] = max(seconds, 0.001) / at_once
                imports = run.seconds[file] - sum(map(run.seconds.get, names))
                first = (max(0.0, imports) + max(run.setups[t] for t in names) - usual) / at_once
            found.first[file] = found.first.get(file, 0.0) + first
            found.share[file] = found.first[file] / len(names)
    return found


def stay(cost: Cost, minutes: float = MINUTES, root: Path = ROOT) -> set[str]:
    """Choose tests by the rules above."""
    order, kept, seen, room = cost.order(), set(), defaultdict(int), NOTEBOOKS
    for test in order:
        file, _, case = test.partition("::")
        if not case:
            week = WEEK.match(file)
            wanted = {week[0] if week else file: 1}
        else:
            wanted = {file: 6 if "fault" in Path(file).name else 1}
            if TWIN.search((root / file).read_text("utf-8")):
                wanted[test.split("[")[0]] = 1
        quick = cost.alone(test) < SLOW if case else cost.own[test] <= room
        if quick and any(seen[one] < most for one, most in wanted.items()):
            kept.add(test)
            room -= 0 if case else cost.own[test]
        for one in wanted:
            seen[one] += 1
    spent, files = cost.total(kept), {test.split("::")[0] for test in kept}
    for test in order:
        file, _, case = test.partition("::")
        more = cost.own[test] if file in files else cost.alone(test)
        if case and test not in kept and spent + more <= 60 * minutes:
            kept.add(test)
            files.add(file)
            spent += more
    return kept


def write(together: Run, alone: Run, processes: int):
    """Write the file after a run of all tests, and print what a short run will take."""
    cost = costs(together, alone, processes)
    kept = stay(cost)
    seconds = together.seconds + alone.seconds
    files = {name: round(s, 1) for name, s in sorted(seconds.items()) if "::" not in name}
    names = sorted(set(cost.own) - kept)
    FILE.write_text(json.dumps({"files": files, "left out": names}, indent=0) + "\n", "utf-8")
    print(f"{FILE.name}: {len(kept)} of {len(cost.own)} tests, {cost.total(kept) / 60:.1f} minutes")
