"""Exercise of week 10: the linear recurrence on a sequence that is cut over ranks."""

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight
from helpers.check.traffic import bytes_sent, examine_messages, observed
from helpers.check.verdict import Verdict

CHANNELS = 2
# Tokens of each rank.
PARTS = ([5], [3, 4], [2, 3, 4], [1, 4, 1, 2], [2, 0, 3], [200, 200, 200])
CLOSE = {"rtol": 0, "atol": 1e-11}


def scan_over_ranks(fn) -> Verdict:
    """Check `fn(worker, a, b) -> h`: the states of this rank's part, with messages only.

    The message of a rank does not grow with the tokens of its part.
    """
    cases = [(len(parts), {"parts": parts}) for parts in PARTS]
    return examine_messages("scan_over_ranks", fn, cases, run, judge)


def inputs(parts) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(a, b) of each rank, (t, D) each. Decays are below 1, and some are negative."""
    g = torch.Generator().manual_seed(hidden.seed(len(parts)))
    a, b = torch.rand(2, sum(parts), CHANNELS, generator=g, dtype=torch.float64)
    return list(zip((1.6 * a - 0.6).split(parts), (b + 0.5).split(parts), strict=True))


def run(worker, solve, parts):
    a, b = inputs(parts)[worker.rank]
    answer, seen = observed(solve, worker, a.clone(), b.clone())
    return {"h": answer if isinstance(answer, torch.Tensor) else repr(answer)[:80], **seen}


class Reference:
    """The right way, and the same with one mistake.

    Args:
        mistake: "" for none.
    """

    def __init__(self, mistake: str = ""):
        self.mistake = mistake

    def run(self, parts) -> list[torch.Tensor]:
        """The states of all ranks."""
        handed, found = torch.zeros(CHANNELS, dtype=torch.float64), []
        for a, b in parts:
            own, decay = scanned(a, b), a.cumprod(0)
            found.append(own + self.mend(a, decay) * handed)
            handed = self.hand_on(own, decay, handed)
        return found

    def mend(self, a, decay):
        """By what each token of the part multiplies the state before the part."""
        if self.mistake == "nothing handed on":
            return torch.zeros_like(decay)
        if self.mistake == "mended without decay":
            return torch.ones_like(decay)
        if self.mistake == "mended with each token's own decay":
            return a
        if self.mistake == "mended with the whole decay":
            return decay[-1:].expand_as(decay)
        if self.mistake == "mended one token late":
            return torch.cat([torch.ones_like(decay[:1]), decay[:-1]])
        if self.mistake == "first token only":
            return torch.cat([decay[:1], torch.zeros_like(decay[1:])])
        return decay

    def hand_on(self, own, decay, handed):
        """The state after a part, as the next rank gets it."""
        if not len(own):
            return handed
        if self.mistake == "own state only":
            return own[-1]
        if self.mistake == "handed on without decay":
            return own[-1] + handed
        if self.mistake == "the last token's decay only":
            return own[-1] + (decay[-1] / decay[-2] if len(decay) > 1 else decay[-1]) * handed
        return own[-1] + decay[-1] * handed


HINTS = {
    "nothing handed on": "Each rank scanned as if its part began the sequence. What is h before "
    "the first token of rank 1?",
    "handed on without decay": "The state that rank 1 hands on contains what came from rank 0. On "
    "the way through rank 1's tokens it has decayed: by which product?",
    "own state only": "Rank 1 hands on what its own tokens have added. What came from rank 0, and "
    "has gone through rank 1's tokens, is missing.",
    "the last token's decay only": "A state that goes through a part meets every decay of the "
    "part, not only the last one.",
    "mended without decay": "What comes from the rank before decays with every token of this part.",
    "mended with each token's own decay": "At token t, the state from the rank before has met the "
    "decays of all tokens up to t, not only a[t].",
    "mended with the whole decay": "At token t, the state from the rank before has met the decays "
    "up to t only. The product of all is for the last token.",
    "mended one token late": "The first token's own decay counts as well: h[0] = a[0] h_before + "
    "b[0].",
    "first token only": "The state from the rank before is in every later state too, not only in "
    "the first.",
}


def scanned(a, b):
    h, every = torch.zeros_like(b[0]) if len(b) else None, []
    for decay, step in zip(a, b, strict=True):
        h = decay * h + step
        every.append(h)
    return torch.stack(every) if every else b


def judge(runs, parts):
    given, answers = inputs(parts), runs.column("h")
    for rank, (answer, (_, b)) in enumerate(zip(answers, given, strict=True)):
        if not isinstance(answer, torch.Tensor) or answer.shape != b.shape:
            got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else answer
            raise NotRight(
                f"rank {rank} returned {got}",
                f"Return the states of the rank's own part: a tensor {tuple(b.shape)} here.",
            )
    right = Reference().run(given)
    if not same(answers, right):
        raise NotRight(where(answers, right, parts), hint(answers, given))
    judge_bytes(runs, parts)


def judge_bytes(runs, parts):
    """A decay and a state for every other rank is enough, and much less than a long part."""
    most = 2 * CHANNELS * 8 * max(1, len(parts) - 1)
    sizes = [bytes_sent(calls) for calls in runs.column("calls")]
    if max(sizes) > most and max(parts) * CHANNELS * 8 > most:
        rank = sizes.index(max(sizes))
        raise NotRight(
            f"the states are right, but rank {rank} sent {sizes[rank]:,} bytes for its "
            f"{parts[rank]} tokens",
            "A whole part is one step h → a h + b to the others. Which numbers describe this step?",
        )


def hint(answers, given) -> str:
    for mistake, words in HINTS.items():
        if same(answers, Reference(mistake).run(given)):
            return words
    wrong = [
        not same(pair[:1], pair[1:]) for pair in zip(answers, Reference().run(given), strict=True)
    ]
    if wrong[0]:
        return "Rank 0 needs no other rank: begin with h = 0, and compare with the loop."
    return (
        "Scan the part from h = 0. Then add, at token t, the state from the rank before, "
        "multiplied by a[0] … a[t]. What is the last state then, that the next rank needs?"
    )


def same(found, wanted) -> bool:
    return all(torch.allclose(a.double(), b, **CLOSE) for a, b in zip(found, wanted, strict=True))


def where(answers, right, parts) -> str:
    """The first wrong number."""
    for rank, (found, wanted) in enumerate(zip(answers, right, strict=True)):
        wrong = ~torch.isclose(found.double(), wanted, **CLOSE)
        if wrong.any():
            t, d = wrong.nonzero()[0].tolist()
            return (
                f"{sum(parts)} tokens, cut into {parts}. Rank {rank}, token {t} of its part, "
                f"number {d}: {found[t, d]:.6g}, and one process gives {wanted[t, d]:.6g}"
            )
    return ""
