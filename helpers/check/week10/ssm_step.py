"""Exercise of week 10: one step of a selective state space model, with its convolution."""

import torch

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
TOKENS, CHANNELS, STATE, SEEN = 9, 3, 4, 3
# Words, the token, and where its sequence starts. Tokens 0 … 5 are one sequence, 6 … 8 another.
CASES = (
    ("token 4 of a sequence that starts at 0", 4, 0),
    ("token 0, the first of all", 0, 0),
    ("token 6, the first of the second sequence", 6, 6),
    ("token 7, the second of the second sequence", 7, 6),
    ("token 8, the last of all", 8, 6),
)


def ssm_step(fn) -> Verdict:
    """Check `fn(t, x, start, h, weight, delta, A, B, C) -> (y, h)`.

    Shapes: x (T, E), several sequences one after the other; h (E, N), the state after token t-1;
    weight (k, E), of which weight[k-1] belongs to token t; delta (E,), A (E, N), B and C (N,).
    """
    cases = [(where, inputs(t, start), {}) for where, t, start in CASES]
    return examine_here("ssm_step", fn, cases, judge)


def inputs(t: int, start: int) -> tuple:
    generator = torch.Generator().manual_seed(hidden.seed(t))

    def some(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, h, weight = some(TOKENS, CHANNELS), some(CHANNELS, STATE), some(SEEN, CHANNELS)
    delta, A = some(CHANNELS).exp() / 2, -some(CHANNELS, STATE).exp()
    return t, x, start, h, weight, delta, A, some(STATE), some(STATE)


def step(t, x, start, h, weight, delta, A, B, C, mistake=""):
    """The right step, or one with a mistake of HINTS."""
    u = convolved(t, x, start, weight, mistake)
    if t == start and mistake != "state kept":
        h = torch.zeros_like(h)
    before, step = h, delta[:, None]  # (E, 1)
    decay = {"no exp": step * A, "no step in A": A.exp(), "Euler": 1 + step * A}
    decay = decay.get(mistake, torch.exp(step * A))
    write = {
        "hold": (torch.exp(step * A) - 1) / A * B,
        "exp of B": torch.exp(step * B),
        "no step in B": B.expand(len(u), -1),
    }.get(mistake, step * B)
    if mistake == "write, then decay":
        h = decay * (h + write * u[:, None])
    else:
        h = decay * h + write * u[:, None]
    return (before if mistake == "read before" else h) @ C, h


def convolved(t, x, start, weight, mistake):
    """The convolution's output for token t, (E,)."""
    seen = len(weight)
    shift = {"future": seen - 1, "centred": seen // 2, "one behind": -1}.get(mistake, 0)
    first = 0 if mistake == "sequences mixed" else start
    rows = weight.flip(0) if mistake == "flipped" else weight
    u = torch.zeros_like(x[0])
    for place, row in enumerate(rows):
        s = t - seen + 1 + place + shift
        if first <= s < len(x):
            u = u + row * x[s]
    return x[t] if mistake == "no convolution" else u


HINTS = {
    "hold": "This discretises B like A, by the zero-order hold. Mamba does so with A only: what "
    "does the simpler rule make of B?",
    "exp of B": "This discretises B like A, with an exponential. Only A becomes exp(Δ A): what "
    "does the simpler rule make of B?",
    "future": "This convolution sees later tokens. Token t may see tokens t-k+1 … t.",
    "centred": "This convolution sees a later token: its window has t in the middle. Token t may "
    "see tokens t-k+1 … t.",
    "one behind": "The last row of the weight belongs to token t itself.",
    "flipped": "The rows of the weight are in the wrong order: weight[k-1] belongs to token t.",
    "no convolution": "The state gets the output of the convolution, not x itself.",
    "state kept": "The state of the sequence before is still there. With which state does a new "
    "sequence start?",
    "sequences mixed": "The convolution sees tokens of the sequence before. What stands before the "
    "first token of a sequence?",
    "no exp": "The decay is negative: discretise A, exp(Δ A).",
    "no step in A": "The decay does not depend on the token: where is Δ?",
    "Euler": "1 + Δ A is only the beginning of exp(Δ A), and can become negative.",
    "no step in B": "B is not discretised: a small step Δ lets the token write little.",
    "write, then decay": "The token's own input does not decay yet: decay the old state first.",
    "read before": "y reads the state after this token's update, so that it sees the token.",
}


def judge(answer, *case):
    right = step(*case)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise NotRight(f"returned {said(answer)}", "Return a pair: the output y, and the state h.")
    for name, part, wanted in zip(("y", "h"), answer, right, strict=True):
        if not isinstance(part, torch.Tensor):
            raise NotRight(f"{name} is {said(part)}", "Return two tensors: y (E,), and h (E, N).")
        if part.shape != wanted.shape:
            finding = f"{name} has the shape {tuple(part.shape)}, and should have "
            raise NotRight(finding + f"{tuple(wanted.shape)}", "y is (E,), and h is (E, N).")
    if same(answer, right):
        return
    state = same(answer[1:], right[1:])
    finding = "the state is right, but y is not" if state else "the state is not right"
    raise NotRight(finding, hint(answer, case))


def hint(answer, case) -> str:
    for mistake, words in HINTS.items():
        if same(answer, step(*case, mistake=mistake)):
            return words
    if same(answer[1:], step(*case)[1:]):
        return "Each channel's y is the sum over its N numbers of state, each times its C."
    return "h[t] = exp(Δ A) h[t-1] + Δ B u[t], where u[t] is the convolution's output."


def same(answer, right) -> bool:
    return all(torch.allclose(a.double(), b, **CLOSE) for a, b in zip(answer, right, strict=True))


def said(answer) -> str:
    text = repr(answer)
    return text if len(text) < 80 else f"{text[:77]}…"
