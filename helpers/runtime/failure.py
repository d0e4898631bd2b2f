"""Turn the ranks' reports into one error that names the culprit."""

import pickle
import re
import signal
from dataclasses import dataclass

from helpers.runtime.mistakes import DIFFER, sentence
from helpers.runtime.stacks import collective, doing, format_stack, frames, with_cell_names

# A rank's complaint about *another* rank's end: never the cause while there is a better candidate.
CONSEQUENCE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket (closed|error)|peer|"
    r"remote process exited|timed out waiting|NCCL communicator was aborted|store.*(wait|timeout)",
    re.IGNORECASE,
)
START_FAILED = 70  # exit code of a rank that never reached the function
CHANNEL_LOST = 71  # exit code of a rank that cannot answer any more
LONGEST_LINE = 1_000  # characters of a headline; the traceback has more
LONGEST_COMPLAINT = 200  # characters of the headline of another rank
LONGER = "Longer work between two signs of life? worker.log, a print or launch(timeout=…)."
NEVER_KEPT = "Ranks are kept for a debugger only after a failure in a notebook or at a prompt."
SCARCE = (  # how an error says that the machine gives no more; what to do
    (
        r"could not start: .*temporarily unavailable|RuntimeError: Resource temporarily unavailable"
        r"|can't start new thread",
        "This user may start no more processes or threads: end some, or raise `ulimit -u`.",
    ),
    (
        r"Too many open files",
        "A process may open no more files: close some, or raise `ulimit -n`.",
    ),
)
MISMATCH = "Different collectives, or shapes, on the ranks? launch(debug=True) names them."


class WorkerError(RuntimeError):
    """A rank failed. The other ranks were stopped at once.

    In a notebook the ranks stay for `debug` until the next call, for at most 5 minutes. Until then
    they use memory, and no processor time.

    Attributes:
        rank: the rank that failed first; None if the ranks fail together.
        traceback: the rank's own traceback, with the lines of the cell.
        others: the activity of each other rank, by rank.
        kind: "exception", "died", "hang" or "server".
        note: the end of the message: after a hang, advice for the caller of `launch`.

    `__cause__` is the rank's own exception if that exception can travel.
    """

    first = 0  # the rank that a debugger enters first, if `rank` is None
    kept = None  # the ranks, while they are kept

    def __init__(self, headline: str, *, kind, rank=None, traceback="", others=None, note=""):
        self.rank, self.kind, self.traceback = rank, kind, traceback
        self.others: dict[int, str] = others or {}
        said = "\n".join([headline, *self.others.values()])
        remedies = [remedy for words, remedy in SCARCE if re.search(words, said)]
        self.note = note = "\n".join(filter(None, [note, *remedies]))
        doing = [f"  rank {rank} was {what}" for rank, what in sorted(self.others.items())]
        meanwhile = "\n".join(["Meanwhile", *doing]) if doing else ""
        parts = [headline, traceback.rstrip(), meanwhile, note]
        super().__init__("\n".join(part for part in parts if part))

    def __reduce__(self):  # a launch inside a rank may send this error back
        return rebuild, (str(self), {k: v for k, v in self.__dict__.items() if k != "kept"})

    def debug(self, rank: int | None = None):
        """Enter a rank where it failed or where it waits, as `%debug` does.

        Args:
            rank: the rank to enter; by default the rank that failed.
        """
        if self.kept is None:
            print(NEVER_KEPT)
        else:
            self.kept.debug(rank)

    def _render_traceback_(self):
        """In a notebook, show the rank's traceback and not this process's own."""
        return [f"WorkerError: {self}", *getattr(self, "__notes__", [])]


class ServerLost(WorkerError):
    """The server, the process that forks the ranks, is gone, and its ranks with it."""

    def __init__(self, last_words: str):
        super().__init__(
            "the process that starts the ranks is gone (killed?), and the ranks went with it",
            kind="server",
            note=f"{last_words}\nThe next call starts another: run the cell again.".strip(),
        )


class CannotStart(WorkerError):
    """The server, the process that forks the ranks, cannot be started."""

    def __init__(self, reason: str):
        super().__init__(f"rank 0 could not start: {reason}", kind="server", rank=0)


def rebuild(text: str, attributes: dict) -> WorkerError:
    error = WorkerError(text, kind=attributes["kind"])
    error.__dict__.update(attributes)
    return error


@dataclass
class Failure:
    """How one rank's call failed: by an exception, or by the end of its process."""

    rank: int
    when: float
    kind: str = ""  # the exception's type
    message: str = ""
    traceback: str = ""
    exception: bytes | None = None
    status: int | None = None  # exit code, or minus the signal
    verb: str = "raised"
    hint: str = ""  # the rank's own advice

    @property
    def consequence(self) -> bool:
        return self.status is None and bool(CONSEQUENCE.search(f"{self.kind}: {self.message}"))

    def what(self) -> tuple[str, str]:
        return self.kind, "" if self.kind == DIFFER else self.message

    def original(self) -> BaseException | None:
        """The rank's own exception, if it could travel."""
        try:
            return pickle.loads(self.exception) if self.exception else None
        except Exception:  # this process cannot rebuild the class
            return None

    def headline(self) -> str:
        if self.status is None:
            first = self.message.strip().split("\n")[0][:LONGEST_LINE]
            if self.kind == "SystemExit":
                return f"rank {self.rank} called sys.exit({first}); return from it instead"
            return f"rank {self.rank} {self.verb} {self.kind}{': ' if first else ''}{first}"
        if self.status == START_FAILED:
            return f"rank {self.rank} could not start: {self.message or 'the reason is above'}"
        if self.status == CHANNEL_LOST:
            return (
                f"rank {self.rank} lost its connection to the notebook: did the function close "
                "descriptors that it did not open (os.closerange, for example)?"
            )
        if self.status >= 0:
            return f"rank {self.rank} ended with exit code {self.status} before it returned"
        number = -self.status
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = {
            "SIGKILL": ": out of memory? (the system kills the largest process then)",
            "SIGSEGV": ": a crash in compiled code",
            "SIGBUS": ": a crash in compiled code, or no room left in shared memory (/dev/shm)",
            "SIGABRT": ": compiled code gave up; its last words are above",
        }.get(name, "")
        return f"rank {self.rank} was killed by {name}{hint}"


def culprit(failures: list[Failure]) -> Failure:
    """The likeliest cause: a death, then an error that no other rank can cause, then the first."""
    return min(failures, key=lambda f: (f.status is None, f.consequence, f.when))


def blame(failures: list[Failure], whereabouts: dict[int, str], stacks: dict[int, str]):
    """Build the error for a call in which ranks failed.

    Args:
        failures: of the ranks that failed.
        whereabouts: for every rank, "done" if it had returned.
        stacks: faulthandler's output, for ranks that were running and ranks that crashed.
    """
    first = culprit(failures)
    others = {rank: known or doing(stacks.get(rank, "")) for rank, known in whereabouts.items()}
    same = []
    for failure in failures:
        if failure.status is None and failure.what() == first.what():
            same.append(failure.rank)
            del others[failure.rank]
        else:
            complaint = failure.headline().split(" ", 2)[2]
            others[failure.rank] = f"failing too: {complaint[:LONGEST_COMPLAINT]}"
    others.pop(first.rank, None)
    same = [rank for rank in same if rank != first.rank]
    note = ""
    if same and first.kind != DIFFER:
        note = (
            f"rank{'s' * (len(same) > 1)} {', '.join(map(str, sorted(same)))} failed the same way"
        )
    note = "\n".join(filter(None, [first.hint, note]))
    said, trace = sentence(first.rank, first.kind, first.message, first.traceback)
    trace = with_cell_names(trace)
    if first.status is not None and (stack := format_stack(stacks.get(first.rank, ""))):
        trace = "Its last Python stack (most recent call last):\n" + stack
        if first.status == -signal.SIGABRT and "torch/distributed" in stacks[first.rank]:
            note = "\n".join(filter(None, [note, MISMATCH]))
    error = WorkerError(
        said or first.headline(),
        kind="exception" if first.status is None else "died",
        rank=first.rank,
        traceback=trace,
        others=others,
        note=note,
    )
    error.__cause__ = first.original()
    return error


def blame_hang(
    reason: float | str,
    whereabouts: dict[int, str],
    stacks: dict[int, str],
    on_gpus: dict[int, str] | None = None,
):
    """Build the error for a call that hangs.

    Args:
        reason: the proof of the hang; or, without a proof, the seconds without a sign of life.
            Without a proof, the error names the odd rank if there is one.
        on_gpus: the collectives of NCCL that ranks wait in, by rank.
    """
    on_gpus = on_gpus or {}
    calls = {
        r: collective(frames(stacks.get(r, ""))) or on_gpus.get(r)
        for r, known in whereabouts.items()
        if not known
    }
    text = []
    for rank, known in sorted(whereabouts.items()):
        text.append(f"rank {rank} was {known or doing(stacks.get(rank, ''))}")
        if not known:
            if rank in on_gpus:
                text.append(f"  its GPU was in {on_gpus[rank]}")
            text.append(format_stack(stacks.get(rank, "")))
    proved = isinstance(reason, str)
    headline, odd = (reason, None) if proved else suspect(reason, calls, len(whereabouts))
    advice = []
    if not proved:
        advice.append(LONGER)
        if any(calls.values()) and odd is None:
            advice.append(MISMATCH)
    error = WorkerError(
        headline,
        kind="hang",
        rank=odd,
        traceback="\n".join(filter(None, text)),
        note="\n".join(advice),
    )
    error.first = min(calls, default=0)
    return error


def suspect(seconds: float, calls: dict[int, str | None], ranks: int) -> tuple[str, int | None]:
    """Return the headline for a hang without a proof, and the odd rank or None."""
    headline = f"no sign of life from any rank for {seconds:g} s: a hang"
    idle = [rank for rank, call in calls.items() if call is None]
    if len(idle) == 1 and len(calls) > 1:
        return f"{headline}; only rank {idle[0]} is not in a collective", idle[0]
    if len(set(calls.values())) > 1:
        return f"{headline}; the ranks are in different collectives", None
    if len(calls) < ranks and any(calls.values()):
        return f"{headline}; some ranks wait in a collective for others that have returned", None
    return headline, None
