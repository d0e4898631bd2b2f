"""Exercises of week 10: one step of a state space model, a scan over ranks, bytes of a hybrid.

T, t  tokens of all, of a rank        E, D  channels        N  numbers of state for each channel
"""

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import difference
from helpers.check.exercise import Edit, Exercise, among, parted
from helpers.check.hidden import normal
from helpers.check.number import Number
from helpers.check.traffic import UNSENT, ByMessages, bytes_sent
from helpers.check.verdict import NotRight

# combine

# of a and of b: numbers, vectors, a decay that a whole state shares, no numbers
SHAPES = (((), ()), ((4,), (4,)), ((3, 1), (3, 5)), ((0,), (0,)))


def steps():
    made = []
    for number, (a, b) in enumerate(SHAPES):
        a1, b1, a2, b2 = (normal(4 * number + k, *one) for k, one in enumerate((a, b, a, b)))
        made.append((f"a of shape {a}, b of shape {b}", ((a1, b1), (a2, b2))))
    return made


def say_steps(facet, found, right, earlier, later) -> str:
    pair = isinstance(found, tuple | list) and len(found) == 2
    if not pair or any(getattr(one, "shape", None) != () for one in found):
        return ""
    (a1, b1), (a2, b2), (a, b) = (tuple(f"{one:.3g}" for one in p) for p in (earlier, later, found))
    return f"for (a, b) = ({a1}, {b1}), then ({a2}, {b2}): returned ({a}, {b})"


def one_step(earlier, later):
    (a1, b1), (a2, b2) = earlier, later
    a = a2 * a1
    b = a2 * b1 + b2
    return a, b


IS_IN = "b1 is the state after the earlier steps: their decay a1 is in it already."
combine = Exercise(
    right=one_step,
    keeps=True,
    cases=steps,
    close=1e-12,
    say=say_steps,
    slips=(
        (Edit("a2 * b1 + b2", "a1 * b2 + b1"), "This does the later steps first. The operator is "
         "not commutative: which decay does the state of the earlier steps still have to go "
         "through?"),
        (Edit("a2 * b1 + b2", "b1 + b2"), "The earlier state goes through the later steps, and "
         "they multiply it by their decay."),
        (Edit("a2 * b1 + b2", "a1 * b1 + b2"), IS_IN + " Which decay comes after it?"),
        (Edit("a2 * b1 + b2", "a2 * b1 + a1 * b2"), "The later input b2 comes after the earlier "
         "steps, so their decay does not touch it."),
        (Edit("a2 * b1 + b2", "a2 * (b1 + b2)"), "The later input b2 is added after the later "
         "decay: a2 does not multiply it."),
        (Edit("a2 * b1 + b2", "a1 * a2 * b1 + b2"), IS_IN),
        (Edit("a2 * b1 + b2", "b2"), "The state of the earlier steps is lost."),
        (Edit("a2 * b1 + b2", "a2 * b1"), "The later step adds b2 to the state. Where is it?"),
        (Edit("a2 * b1 + b2", "b1 * b2"), "Inputs are added to the state, never multiplied with "
         "each other. What does the later step make of b1?"),
        (Edit("a2 * b1 + b2", "a2 * (a1 + b1) + b2"), "h is not an argument: return what "
         "multiplies it, and what is added to it. Which numbers do both steps add?"),
        (Edit("a2 * a1", "a2 + a1"), "h goes through both steps: its factors are multiplied, not "
         "added."),
        (Edit("a = a2 * a1", "a = a2.expand(a1.shape)"), Edit("a2 * a1", "a1"), "h goes through "
         "both steps. By which number is it multiplied in all?"),
        (Edit("return a, b", "return b, a"), "Return (a, b): the factor of h first."),
        (Edit("return a, b", "return b"), "Return a pair again: (a, b)."),
        (Edit("return a, b", "return a.flatten() @ torch.ones_like(a).flatten(), b"),
         Edit("return a, b", "return a, b.sum()"), "Each number has its own recurrence: multiply "
         "and add number by number."),
    ),
    last="Start with h. Write down what the earlier step makes of it, then what the later step "
    "makes of that. Sort by h: its factor is a, and the rest is b.",
)  # fmt: skip


# ssm_step

TOKENS, CHANNELS, STATE, SEEN = 9, 3, 4, 3
PLACES = (  # words, the token, and where its sequence starts
    ("token 4 of a sequence that starts at 0", 4, 0),
    ("token 0, the first of all", 0, 0),
    ("token 6, the first of the second sequence", 6, 6),
    ("token 7, the second of the second sequence", 7, 6),
    ("token 8, the last of all", 8, 6),
)


def given(t: int, start: int) -> tuple:
    shapes = ((TOKENS, CHANNELS), (CHANNELS, STATE), (SEEN, CHANNELS), (CHANNELS,),
              (CHANNELS, STATE), (STATE,), (STATE,))  # fmt: skip
    x, h, weight, delta, A, B, C = (normal(9 * t + k, *one) for k, one in enumerate(shapes))
    return t, x, start, h, weight, delta.exp() / 2, -A.exp(), B, C


def play_token(solve, *arguments) -> dict:
    """The state first: y is made of it."""
    found = parted(solve(*arguments), ("y", "h"))
    return {"returned": found["returned"], "h": found.get("h"), "y": found.get("y")}


def say_token(facet, found, right, *arguments) -> str:
    before = {"h": "the state h: ", "y": "the state is right; the output y: "}
    return before[facet] + difference(found, right)[0]


def one_token(t, x, start, h, weight, delta, A, B, C):
    k = len(weight)
    u = torch.zeros_like(x[t])
    for j in range(k):
        s = t - j
        if start <= s < len(x):
            u = u + weight[k - 1 - j] * x[s]
    before = torch.zeros_like(h) if t == start else h
    step = delta[:, None]
    decay = torch.exp(step * A)
    write = step * B
    new = decay * before + write * u[:, None]
    return new @ C, new


MIXED = (
    "The convolution sees tokens of the sequence before. What stands before the first token of a "
    "sequence?"
)
LATER = "This convolution sees a later token. Token t may see tokens t-k+1 … t."
ssm_step = Exercise(
    right=one_token,
    play=play_token,
    names=("the output y, (E,)", "the state h, (E, N)"),
    cases=lambda: [(words, given(t, start)) for words, t, start in PLACES],
    close=1e-9,
    say=say_token,
    slips=(
        (Edit("write = step * B", "write = (decay - 1) / A * B"), "This discretises B like A, by "
         "the zero-order hold. Mamba does so with A only: what does the simpler rule make of B?"),
        (Edit("write = step * B", "write = torch.exp(step * B)"), "This discretises B like A, with "
         "an exponential. Only A becomes exp(Δ A): what does the simpler rule make of B?"),
        (Edit("s = t - j", "s = t - j + k - 1"), Edit("s = t - j", "s = t + j"), "This convolution "
         "sees later tokens. Token t may see tokens t-k+1 … t."),
        (Edit("s = t - j", "s = t - j + k // 2"), LATER + " Its window has t in the middle."),
        (Edit("s = t - j", "s = t - j - 1"), "The last row of the weight belongs to token t "
         "itself."),
        (Edit("weight[k - 1 - j]", "weight[j]"), "The rows of the weight are in the wrong order: "
         "weight[k-1] belongs to token t."),
        (Edit("write * u[:", "write * x[t][:"), "The state gets the output of the convolution, not "
         "x itself."),
        (Edit("range(k)", "range(1)"), "Only token t itself is in the sum. How many tokens does "
         "the convolution see?"),
        (Edit("torch.zeros_like(h) if t == start else h", "h"), Edit("if t == start else",
              "if t == 0 else"), "The state of the sequence before is still there. With which "
         "state does a new sequence start?"),
        (Edit("start <= s", "0 <= s"), Edit("start <= s", "max(start - 1, 0) <= s"), MIXED),
        (Edit("start <= s", "-len(x) <= s"), MIXED + " And x[-1] is the last token of all."),
        (Edit("torch.exp(step * A)", "step * A"), "The decay is negative: discretise A, exp(Δ A)."),
        (Edit("torch.exp(step * A)", "torch.exp(A)"), "The decay does not depend on the token: "
         "where is Δ?"),
        (Edit("torch.exp(step * A)", "torch.exp(-step * A)"), "A is negative, so that exp(Δ A) is "
         "below 1. Your state grows: where does a sign come in?"),
        (Edit("torch.exp(step * A)", "1 + step * A"), "1 + Δ A is only the beginning of exp(Δ A), "
         "and can become negative."),
        (Edit("write = step * B", "write = B.expand_as(A)"), "B is not discretised: a small step Δ "
         "lets the token write little."),
        (Edit("decay * before + write * u[:, None]", "decay * (before + write * u[:, None])"),
         "The token's own input does not decay yet: decay the old state first."),
        (Edit("decay * before +", "before +"), "The old state does not decay."),
        (Edit("before = torch", "u = torch.nn.functional.silu(u)\n    before = torch"),
         "The exercise has no activation: u is the sum alone."),
        (Edit("new @ C", "before @ C"), Edit("new @ C", "h @ C"), "y reads the state after this "
         "token's update, so that it sees the token."),
        (Edit("new @ C", "new @ B"), "B says what a token writes. Which vector says what it "
         "reads?"),
        (Edit("new @ C", "new @ C + u"), "The exercise has no direct way from u to y: y reads the "
         "state alone."),
        (Edit("new @ C", "new * C"), "Each channel's y is the sum over its N numbers of state, "
         "each times its C."),
    ),
    last="h[t] = exp(Δ A) h[t-1] + Δ B u[t], where u[t] is the convolution's output. Each "
    "channel's y is the sum over its N numbers of state, each times its C.",
)  # fmt: skip


# scan_over_ranks

WIDTH = 2
PARTS = ([5], [3, 4], [2, 3, 4], [1, 4, 1, 2], [2, 0, 3], [200, 200, 200])  # tokens of each rank


def parts_of(parts) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(a, b) of each rank, (t, D) each. Decays are below 1, and some are negative.

    Each rank has a generator of its own, in each case: many numbers of a generator tell the others.
    """
    made = []
    for seed, tokens in enumerate(parts, 100 * sum(parts) + 10 * len(parts)):
        generator = torch.Generator().manual_seed(hidden.seed(seed))
        a, b = torch.rand(2, tokens, WIDTH, generator=generator, dtype=torch.float64)
        made.append((1.6 * a - 0.6, b + 0.5))
    return made


def part_of(worker, parts):
    return tuple(one.clone() for one in parts_of(parts)[worker.rank])


def judge_sizes(trace, right, n, case):
    """A decay and a state for every other rank are enough, and much less than a long part.

    A rank with tokens, before another with tokens, has to send a state at least.
    """
    parts, most = case["parts"], 2 * WIDTH * 8 * max(1, n - 1)
    sizes = [bytes_sent(calls) for calls in trace["calls"]]
    if max(sizes) > most and max(parts) * WIDTH * 8 > most:
        rank = sizes.index(max(sizes))
        raise NotRight(
            f"the states are right, but rank {rank} sent {sizes[rank]:,} bytes for its "
            f"{parts[rank]} tokens",
            "A whole part is one step h → a h + b to the others. Which numbers describe this step?",
        )
    for rank, size in enumerate(sizes):
        if parts[rank] and any(parts[rank + 1 :]) and size < WIDTH * 8:
            raise NotRight(
                f"the states are right, but rank {rank} sent {size} bytes, and a later rank needs "
                "its last state",
                UNSENT,
            )


def judge_order_and_sizes(trace, right, n, case):
    judge_sizes(trace, right, n, case)
    for rank, late in enumerate(trace["late"]):
        if 2 in late:  # the worker, a, b
            words = f"the states are right, but rank {rank} read no number of b before it waited"
            raise NotRight(words + " for a message", SERIAL)


def scan(a, b):
    """The states from h = 0."""
    h, every = torch.zeros_like(b[:1]).sum(0), [b[:0]]
    for decay, step in zip(a, b, strict=True):
        h = decay * h + step
        every.append(h[None])
    return torch.cat(every)


def chain(worker, a, b):
    h, decay = scan(a, b), a.cumprod(0)
    before = b.new_zeros(b.shape[1])
    if worker.rank > 0:
        dist.recv(before, worker.rank - 1)
    mended = h + decay * before
    state = mended[-1] if len(h) else before
    if worker.rank < worker.world_size - 1:
        dist.send(state, worker.rank + 1)
    return mended


def without_a_last_token(worker, a, b):
    return Edit(" if len(h) else before", "").of(chain)(worker, a, b)


SCAN = "    h, decay = scan(a, b), a.cumprod(0)\n"
MEND, STATE_AFTER = "h + decay * before", "mended[-1] if len(h)"
DECAYS = "What comes from the rank before decays with every token of this part."
UP_TO = (
    "At token t, the state from the rank before has met the decays of all tokens up to t, not only "
    "a[t]."
)
WHOLE = (
    "At token t, the state from the rank before has met the decays up to t only. The product of "
    "all is for the last token."
)
FIRST_DECAY = "The first token's own decay counts as well: h[0] = a[0] h_before + b[0]."
FIRST_ONLY = "The state from the rank before is in every later state too, not only in the first."
SERIAL = (
    "A rank works only when the rank before has finished. What can a part's scan begin with, "
    "before any message is there?"
)
NO_TOKEN = "A rank without tokens has no last state of its own. What does it hand on?"
scan_over_ranks = ByMessages(
    right=chain,
    given=part_of,
    cases=tuple((len(parts), {"parts": parts}) for parts in PARTS),
    draw=lambda random: (5, {"parts": [random.randint(1, 9) for _ in range(5)]}),
    close=1e-11,
    free=("calls", "changed", "late"),
    rule=judge_order_and_sizes,
    slips=(
        (Edit("return mended", "return h"), lambda worker, a, b: scan(a, b), "Each rank scanned as "
         "if its part began the sequence. What is h before the first token of rank 1?"),
        (Edit(STATE_AFTER, "h[-1] + before if len(h)"), "The state that rank 1 hands on contains "
         "what came from rank 0. On the way through rank 1's tokens it has decayed: by which "
         "product?"),
        (Edit(STATE_AFTER, "h[-1] if len(h)"), Edit(STATE_AFTER + " else before",
              "h[-1] if len(h) else torch.zeros_like(before)"), "Rank 1 hands on what its own "
         "tokens have added. What came from rank 0, and has gone through rank 1's tokens, is "
         "missing."),
        (Edit(STATE_AFTER, "h[-1] + a[-1] * before if len(h)"), "A state that goes through a part "
         "meets every decay of the part, not only the last one."),
        *((Edit(*change), hint) for new, hint in (
            ("h + before", DECAYS), ("h + a * before", UP_TO), ("h + decay[-1:] * before", WHOLE),
            ("h + torch.cat([torch.ones_like(a[:1]), decay])[: len(a)] * before", FIRST_DECAY),
            ("torch.cat([h[:1] + decay[:1] * before, h[1:]])", FIRST_ONLY))
          for change in ((MEND, new), ("return mended", "return " + new))),
        (Edit("else before", "else torch.zeros_like(before)"), NO_TOKEN),
        (Edit("a.cumprod(0)", "a.cumsum(0)"), "Decays are multiplied along the tokens, not added."),
        (Edit("len(h) else before",
              "len(h) else before\n    state, mended = mended[:1].sum(0), mended"),
         "The state after the part is that of its last token."),
        (Edit(SCAN, "", "    mended =", SCAN + "    mended ="), SERIAL),
        (Edit("scan(a, b)", "b"), "Rank 0 needs no other rank: begin with h = 0, and compare with "
         "the loop."),
        (Edit("return mended", "return state"), Edit("return mended", "return mended, state"),
         Edit("return mended", "return None"), "Return the states of the rank's own part: a tensor "
         "(t, D)."),
        (Edit("    dist.recv(before, worker.rank - 1)",
              "    rows = b.new_zeros(200, b.shape[1])\n        dist.recv(rows, worker.rank - 1)\n "
              "       before = rows[-1]", "dist.send(state,",
              "dist.send(state.expand(200, -1).contiguous(),"), "A whole part is one step h → a h "
         "+ b to the others. Which numbers describe this step?"),
    ),
    failures=(
        (r"index -1 is out of bounds|index 0 is out of bounds", NO_TOKEN, without_a_last_token),
    ),
    last="Scan the part from h = 0. Then add, at token t, the state from the rank before, "
    "multiplied by a[0] … a[t]. What is the last state then, that the next rank needs?",
)  # fmt: skip


# hybrid_bytes


def kept_bytes(layers, attention, kv_heads, head_width, channels, state, groups, seen, sequences,
               tokens, number_bytes):  # fmt: skip
    inputs = (seen - 1) * (channels + 2 * groups * state)
    matrix = channels * state
    states = (layers - attention) * (matrix + inputs)
    keys = attention * 2 * kv_heads * head_width * tokens
    each = sequences * number_bytes
    return states * each, keys * each


hybrid_bytes = Number(
    right=kept_bytes,
    names=("states", "keys and values"),
    unit="bytes",
    draw=among(layers=(50, 99), attention=(0, 50), kv_heads=(1, 99), head_width=(1, 99),
               channels=(1, 99), state=(1, 99), groups=(1, 99), seen=(2, 5), sequences=(1, 99),
               tokens=(1, 999), number_bytes=[1, 2, 4]),
    cases=(  # in the order of the arguments; factors differ, so that one that is missing shows
        ("8 blocks, 3 with attention, 7 sequences of 11 tokens in fp32",
         (8, 3, 5, 6, 24, 10, 3, 4, 7, 11, 4)),
        ("Bamba-9B, one sequence of 4,096 tokens in bf16",
         (32, 3, 8, 128, 8192, 128, 1, 4, 1, 4096, 2)),
        ("Bamba-9B, 16 sequences of 262,144 tokens in bf16",
         (32, 3, 8, 128, 8192, 128, 1, 4, 16, 262_144, 2)),
        ("attention in no block", (5, 0, 4, 16, 96, 13, 1, 3, 2, 100, 2)),
        ("attention in every block", (5, 5, 4, 16, 96, 13, 1, 3, 2, 100, 2)),
        ("sequences without a token", (6, 1, 4, 16, 96, 13, 1, 3, 2, 0, 2)),
    ),
    slips=(
        (Edit("(layers - attention) * (", "layers * ("), "Blocks with attention keep no state."),
        (Edit("(layers - attention) * (", "(layers > attention) * ("), "Each Mamba-2 block keeps a "
         "state of its own."),
        (Edit("(matrix + inputs)", "matrix"), "What does the convolution need of the tokens "
         "before?"),
        (Edit("(seen - 1)", "seen"), "The convolution sees the token itself too: how many before "
         "it must be kept?"),
        (Edit("(channels + 2 * groups * state)", "channels"), "B and C pass through a convolution "
         "too."),
        (Edit("2 * groups * state", "groups * state"), "B and C pass through a convolution each."),
        (Edit("2 * groups * state", "2 * state"), "Each group has a B and a C of its own."),
        (Edit("(matrix + inputs)", "inputs"), "That is what the convolution keeps. And the state "
         "itself?"),
        (Edit("(matrix + inputs)", "(matrix + inputs) * tokens"), "The state does not grow: it "
         "replaces the tokens."),
        (Edit("matrix = channels * state", "matrix = channels * state * groups"), "Groups share B "
         "and C, but each channel has one row of state."),
        (Edit("keys = attention", "keys = layers"), "Only blocks with attention keep keys and "
         "values."),
        (Edit("keys = attention", "keys = (layers - attention)"), "Which blocks keep keys and "
         "values?"),
        (Edit("keys = attention", "keys = (attention > 0)"), "Each block with attention keeps keys "
         "and values of its own."),
        (Edit("2 * kv_heads", "kv_heads"), "Each token leaves a key, and what else?"),
    ),
    last="Per Mamba-2 block: `state` numbers for each channel; and, for each channel that is "
    "convolved, the inputs before the next token. Per token and block with attention: a key and a "
    "value for each key/value head.",
)  # fmt: skip
