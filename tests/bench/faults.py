"""Do the same faults to `launch` and its peers, and record messages, survival and leftovers."""

import re
import time
from dataclasses import dataclass, replace

from tests.bench.contenders import ACCELERATE_EAGER, LAUNCH, SPAWN, Contender
from tests.bench.kernel import Cell, Kernel
from tests.bench.leftovers import Around, around, settle
from tests.bench.report import Report

NAME = "faults"
CONTENDERS = [LAUNCH, ACCELERATE_EAGER, SPAWN]
RANKS, CULPRIT = 4, 2
LIMIT = 3  # seconds: every launcher's timeout for a hang
PATIENCE = 20.0  # seconds after the fault before the benchmark gives up
START = 30.0  # seconds for the ranks to start, or for a call without a fault
SETTLE = 2.0  # seconds for a launcher to clean up
TRIES = 3  # kernels to try until a launcher starts its ranks


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        deed: what `work.suffer` does on the culprit; "work" if the fault comes from outside.
        cause: a pattern that matches a message which names the cause; None: no cause to name.
        limit: the launcher's timeout in seconds (`launch(timeout=)`, or the process group's).
        outside: "interrupt" or "kill" the kernel, or "".
    """

    title: str
    deed: str
    cause: str | None = None
    limit: float = 120
    outside: str = ""


FAULTS = [
    Fault("a rank raises, the others wait in a collective", "raise", "the loss is not a number"),
    Fault("`os._exit(3)` on a rank", "exit", r"exit\s?code\W{1,5}3|exit code 3"),
    Fault("SIGKILL to a rank", "kill", r"SIGKILL|-9"),
    Fault("SIGSEGV on a rank", "crash", r"SIGSEGV|-11"),
    Fault("a hang in a collective", "collective", r"\brecv\b", LIMIT),
    Fault("a rank hangs in Python, the others are done", "python", r"time\.sleep", LIMIT),
    Fault("kernel interrupted during a run", "work", outside="interrupt"),
    Fault("kernel killed during a run", "work", outside="kill"),
]


@dataclass(frozen=True)
class Outcome:
    """The effect of one fault on one launcher.

    Attributes:
        seconds: from the fault until the cell ended; for a killed kernel, until the ranks were
            gone. None: not within PATIENCE.
        said: whether the message names the culprit and the cause.
        survived: whether the next call in the same kernel works; None: the kernel is gone.
        left: the leftovers, in words.
        stuck: how often the ranks hung before the fault.
    """

    seconds: float | None
    said: str
    survived: bool | None
    left: str
    stuck: int = 0

    def text(self) -> str:
        waited = f"> {PATIENCE:.0f} s" if self.seconds is None else f"{self.seconds:.1f} s"
        if self.survived is None:
            gone = "all gone after" if self.seconds is not None else "processes still alive after"
            left = f", left: {self.left}" if self.left != "none" else ""
            return f"{gone} {waited}{left}{self.hung()}"
        parts = [waited, self.said, "" if self.survived else "**next call fails**"]
        parts.append(f"left: {self.left}" if self.left != "none" else "")
        return ", ".join(filter(None, parts)) + self.hung()

    def hung(self) -> str:
        return f"; before that, its start hung {self.stuck}×" if self.stuck else ""


def measure(quick: bool = False) -> Report:
    outcomes = {}
    for contender in CONTENDERS:
        desk = Desk(contender)
        try:
            for fault in FAULTS[:: 3 if quick else 1]:
                outcomes[fault.title, contender.name] = outcome = desk.do(fault)
                print(f"{contender.name}: {fault.title}: {outcome.text()}", flush=True)
        finally:
            desk.close()
    return report(outcomes)


class Desk:
    """A launcher in a kernel. A kernel that survives a fault is used for the next fault."""

    def __init__(self, contender: Contender, ranks: int = RANKS, culprit: int = CULPRIT):
        self.contender, self.ranks, self.culprit = contender, ranks, culprit
        self.good = contender.cell("all_reduce", ranks)
        self.kernel: Kernel | None = None

    def close(self):
        kernel, self.kernel = self.kernel, None
        if kernel:
            kernel.close()

    def open(self) -> Kernel:
        self.kernel = self.kernel or Kernel()
        if not self.kernel.used:
            for cell in (self.contender.imports, self.contender.define, self.good):
                self.kernel.time(cell, START)
            self.kernel.used = True
        for note in self.kernel.notes.iterdir():
            note.unlink()
        return self.kernel

    def do(self, fault: Fault) -> Outcome:
        for stuck in range(TRIES):  # noqa: B007
            kernel = self.open()
            before = around(kernel)
            arguments = (fault.deed, self.culprit)
            kernel.send(self.contender.cell("suffer", self.ranks, arguments, fault.limit))
            if wait_for_ranks(kernel, self.ranks):
                break
            self.close()  # the launcher hung without a fault: try again in a fresh kernel
        else:
            return Outcome(None, "never starts its ranks", False, "none", TRIES)
        outcome = self.killed(before) if fault.outside == "kill" else self.suffered(fault, before)
        if not outcome.survived:
            self.close()
        return replace(outcome, stuck=stuck)

    def killed(self, before: Around) -> Outcome:
        deed = time.monotonic()
        self.kernel.kill()
        while (living := self.kernel.descendants()) and time.monotonic() < deed + PATIENCE:
            time.sleep(0.02)
        seconds = None if living else time.monotonic() - deed
        without = replace(before, processes=frozenset(), listening=frozenset())
        return Outcome(seconds, "", None, settle(self.kernel, without, SETTLE))

    def suffered(self, fault: Fault, before: Around) -> Outcome:
        kernel = self.kernel
        deed = time.monotonic()
        if fault.outside == "interrupt":
            kernel.interrupt()
        cell = kernel.listen(PATIENCE)
        ended = cell.error is not None
        if not fault.outside:
            deed = float((kernel.notes / "deed").read_text())
        if not ended:  # a user would interrupt the kernel now
            kernel.interrupt()
            cell = kernel.listen(5)
        # The next call first: until then `launch` keeps failed ranks for `%debug`.
        survived = cell.error is not None and kernel.run(self.good, START).ok
        left = settle(kernel, before, SETTLE)
        message = said(cell, fault, self.culprit) if ended else ""
        return Outcome(cell.ended - deed if ended else None, message, survived, left)


def wait_for_ranks(kernel: Kernel, ranks: int) -> bool:
    """Wait until all ranks are at work. False if they are not within START seconds."""
    until = time.monotonic() + START
    while len(list(kernel.notes.glob("started-*[0-9]"))) < ranks:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    time.sleep(0.3)
    return True


def said(cell: Cell, fault: Fault, culprit: int) -> str:
    """Check whether the output names the rank and the cause."""
    if fault.cause is None:
        return ""
    if cell.error == "":
        return "says nothing"
    named = re.findall(r"(?:rank|process)\W{1,5}(\d+)", cell.text, re.IGNORECASE)
    rank = str(culprit) in named
    cause = re.search(fault.cause, cell.text)
    if rank and cause:
        return "names rank and cause"
    if not rank and named:
        return f"names {'the cause, but ' if cause else ''}other ranks"
    return "names the rank" if rank else "names the cause" if cause else "names neither"


def report(outcomes: dict[tuple[str, str], Outcome]) -> Report:
    names = [c.name for c in CONTENDERS]
    table = [["fault", *(f"`{name}`" for name in names)]]
    for title in dict.fromkeys(title for title, _ in outcomes):
        cells = [outcomes[title, n].text() if (title, n) in outcomes else "" for n in names]
        table.append([title, *cells])
    rows = [
        {
            "fault": title,
            "launcher": name,
            "seconds": "" if o.seconds is None else f"{o.seconds:.2f}",
            "said": o.said,
            "survived": "" if o.survived is None else o.survived,
            "left": o.left,
            "stuck": o.stuck,
        }
        for (title, name), o in outcomes.items()
    ]
    return Report(NAME, table, NOTES, rows)


NOTES = f"""\
{RANKS} ranks; the fault happens on rank {CULPRIT}, during a run. The table shows the seconds from
the fault until the cell ends (at most {PATIENCE:.0f} s), and what the message names. Unless noted,
the next call in the same kernel works, and {SETTLE:.0f} s after it nothing is left: no process, no
listening socket, no file in the temporary folder or in shared memory. (`launch` keeps spare ranks,
which wait for the next call; they do not count. Until then it also keeps ranks that failed, for
`%debug`.) For a hang, each launcher has a timeout of
{LIMIT} s: `launch(timeout={LIMIT})`, the others `init_process_group(timeout=)`. The functions of
`mp.spawn` are in a module. `notebook_launcher` is *eager*: it checks its ranks every 0.01 s instead
of 0.1 s."""
