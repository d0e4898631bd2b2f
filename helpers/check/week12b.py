"""Exercises of week 12 on experts: dispatch over ranks, capacity, the balance bias, bytes of nodes.

N  tokens        E  experts        k  experts of a token
"""

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.exercise import Edit, Exercise
from helpers.check.number import Number
from helpers.check.ranks import OnRanks
from helpers.check.verdict import NotRight


def scored(seed: int, tokens: int, experts: int, hot: int = 0) -> torch.Tensor:
    """Scores from 0 to 1; the first `hot` experts have higher ones."""
    generator = torch.Generator().manual_seed(hidden.seed(seed))
    scores = torch.rand(tokens, experts, generator=generator, dtype=torch.float64)
    scores[:, :hot] = 0.5 + scores[:, :hot] / 2
    return scores


# mix_over_ranks

WIDTH = 32  # of a row: many more bytes than its gate, or than counts
SPARE = 512  # bytes of a rank for counts, as the student's function sends them
FAR = (
    "A row goes to the ranks of its own experts alone. Which rows does your function send further?"
)


def tokens_of(worker, tokens, k, hot):
    count = tokens[worker.rank]
    scores = scored(10 + worker.rank, count, worker.world_size, hot)
    gates, chosen = scores.topk(k)
    return scored(50 + worker.rank, count, WIDTH) - 0.4, chosen, gates, expert_of(worker.rank)


def expert_of(rank: int):
    """A rank's expert: no multiple of its input, so a gate before it is another result."""
    return lambda rows: torch.tanh((rank + 1) * rows) + 0.1 * (rank + 1)


def few_rows(trace, right, ranks, case):
    """Half as many bytes again as in the reference are enough for gates and places, too."""
    found, needed = (
        sum(call.sent for calls in t["calls"] for call in calls) for t in (trace, right)
    )
    if found > 1.5 * needed + ranks * SPARE:
        words = f"the results are right, but the ranks sent {found:,.0f} bytes"
        raise NotRight(f"{words}; {needed:,.0f} are enough", FAR)


def by_all_to_all(worker, x, chosen, gates, expert):
    n, k = worker.world_size, chosen.shape[1]
    slots = chosen.flatten().argsort(stable=True)
    tokens, sent = slots // k, torch.bincount(chosen.flatten(), minlength=n)
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    sent, came = sent.tolist(), came.tolist()
    theirs = x.new_empty(sum(came), x.shape[1])
    dist.all_to_all_single(theirs, x[tokens], came, sent)
    mine = x.new_empty(sum(sent), x.shape[1])
    dist.all_to_all_single(mine, expert(theirs), sent, came)
    mine = mine * gates.flatten()[slots, None]
    return torch.zeros_like(x).index_add(0, tokens, mine)


GATED, ADDED = "mine = mine * gates.flatten()[slots, None]", "index_add(0, tokens, mine)"
THERE = "dist.all_to_all_single(theirs, x[tokens], came, sent)"
mix_over_ranks = OnRanks(
    right=by_all_to_all,
    given=tokens_of,
    close=1e-12,
    free=("calls",),
    rule=few_rows,
    cases=(
        (2, {"tokens": (4, 3), "k": 1, "hot": 1}),
        (3, {"tokens": (5, 2, 4), "k": 2, "hot": 1}),
        (4, {"tokens": (3, 6, 1, 4), "k": 2, "hot": 2}),  # experts 2 and 3 get no row
    ),
    slips=(
        (Edit("x[tokens]", "x[tokens] * gates.flatten()[slots, None]"), "The gate counts twice: "
         "before the expert, and after it. Once is enough, after it."),
        (Edit(GATED, "mine = mine * gates.flatten()[slots, None] ** 2"), "The gate counts twice."),
        (Edit(GATED, "mine = mine * 1", "x[tokens]", "x[tokens] * gates.flatten()[slots, None]"),
         "An expert is not linear: multiply its result by the gate, not its input."),
        (Edit(GATED, "mine = mine * 1"), "Each result is multiplied by its gate."),
        (Edit(GATED, "mine = mine * gates.flatten()[:, None]", ADDED,
              "index_add(0, torch.arange(len(slots)) // k, mine)"), "You add the rows in the order "
         "in which they return: by experts. Which token does each row belong to?"),
        (Edit(GATED, "mine = mine * gates.flatten()[:, None]"), "Rows return in the order of "
         "experts, and the gates are in the order of tokens."),
        (Edit(ADDED, "index_add(0, torch.arange(len(slots)) // k, mine)"), "Each row has its own "
         "gate, but it goes to another token: rows return in the order of experts."),
        (Edit("torch.zeros_like(x)." + ADDED, "torch.zeros_like(x).index_copy(0, tokens, mine)"),
         "A token has k rows. The last one overwrites the others: add them up."),
        (Edit(ADDED, "index_add(0, tokens, mine) / k"), "The gates weigh the experts already: add "
         "up, and do not divide."),
        (Edit("torch.zeros_like(x)." + ADDED, "x.index_add(0, tokens, mine)"), "Return what the "
         "experts add. The residual stream is not part of it."),
        (Edit("tokens, sent = slots // k", "tokens, sent = slots % len(x)"), "Slot s is choice "
         "s % k of token s // k."),
        (Edit(THERE, "theirs = x[tokens]", "dist.all_to_all_single(mine, expert(theirs), sent, "
              "came)", "mine = expert(theirs)"), "Each row went to this rank's expert. Its expert "
         "is on another rank."),
    ),
    failures=(
        (r"[Ss]plit sizes", "How many rows come from each rank? The ranks must tell each other "
         "before the rows travel; on the way back, the two lists change places.",
         Edit("came, sent)\n    mine", "sent, sent)\n    mine")),
    ),
    last="Sort the choices by expert. Exchange counts, then rows, then results. Multiply each row "
    "by its gate once, and add it to its token.",
)  # fmt: skip


# gates_with_room


def rooms():
    return (
        ("6 tokens, 3 experts, k = 1, room for 2", (scored(1, 6, 3, 1), one_of(1, 6, 3, 1, 1), 2)),
        ("7 tokens, 4 experts, k = 2, room for 3", (scored(2, 7, 4, 1), one_of(2, 7, 4, 1, 2), 3)),
        ("8 tokens, 5 experts, k = 3, room for 4", (scored(3, 8, 5, 2), one_of(3, 8, 5, 2, 3), 4)),
        ("5 tokens, 4 experts, k = 2, room for all", (scored(4, 5, 4), one_of(4, 5, 4, 0, 2), 5)),
    )


def one_of(seed, tokens, experts, hot, k) -> torch.Tensor:
    """The choices; every other token names its best expert last."""
    chosen = scored(seed, tokens, experts, hot).topk(k).indices
    return torch.where(torch.arange(tokens)[:, None] % 2 == 0, chosen, chosen.flip(1))


def play_room(solve, scores, chosen, capacity) -> dict:
    """The gates, and the gradient of their weighted sum."""
    scores = scores.clone().requires_grad_()
    gates = solve(scores, chosen, capacity)
    trace = {"returned": gates.detach() if isinstance(gates, torch.Tensor) else gates}
    if not isinstance(gates, torch.Tensor) or not gates.requires_grad:
        return trace | {"the gradient of `scores`": "none"}
    weights = torch.linspace(1, 2, gates.numel(), dtype=gates.dtype).view(gates.shape)
    (gradient,) = torch.autograd.grad((gates * weights).sum(), [scores])
    return trace | {"the gradient of `scores`": gradient}


def first_come(scores, chosen, capacity):
    gates = scores.gather(1, chosen)
    gates = gates / gates.sum(1, keepdim=True)
    taken, kept = [0] * scores.shape[1], torch.zeros_like(chosen, dtype=torch.bool)
    for token in range(len(chosen)):
        for place, expert in enumerate(chosen[token].tolist()):
            kept[token, place] = taken[expert] < capacity
            taken[expert] += 1
    return gates * kept


TOKENS = "for token in range(len(chosen)):"
DROPPED = "return gates * kept"
gates_with_room = Exercise(
    right=first_come,
    play=play_room,
    cases=rooms,
    close=1e-12,
    slips=(
        (Edit(DROPPED, "gates.data[~kept] = 0\n    return gates"),
         Edit(DROPPED, "return gates + (gates * kept - gates).detach()"), "The values are right, "
         "but drops still get gradients: their zeros were written behind autograd's back. Multiply "
         "by a mask."),
        (Edit(DROPPED, "return (gates * kept).detach()"), "The gates need a gradient: the router "
         "learns by them alone."),
        (Edit(DROPPED, "gates = gates * kept\n    return gates / gates.sum(1, keepdim=True)"
              ".clamp(min=1e-20)"), "A drop takes its share with it: do not spread it over the "
         "experts that are left."),
        (Edit("    gates = gates / gates.sum(1, keepdim=True)\n", ""), "The gates of a token sum "
         "to 1, before drops."),
        (Edit("gates.sum(1, keepdim=True)", "scores.sum(1, keepdim=True)"), "Divide by the sum "
         "over the chosen experts, not over all."),
        (Edit(DROPPED, "return gates"), "Nothing is dropped."),
        (Edit("taken[expert] < capacity", "taken[expert] <= capacity"), "An expert takes one token "
         "too many."),
        (Edit(TOKENS, "for token in reversed(range(len(chosen))):"), "The first tokens are "
         "dropped. A later token must not change an earlier one."),
        (Edit(TOKENS + "\n        for place, expert in enumerate(chosen[token].tolist()):",
              "for place in range(chosen.shape[1]):\n        for token, expert in "
              "enumerate(chosen[:, place].tolist()):"), "All first choices come before all second "
         "ones: so a later token can take the room of an earlier one. Go token by token."),
        (Edit(DROPPED, "return gates * kept.all(1, keepdim=True)"), "One expert has no room: the "
         "token's other experts still have."),
        (Edit("taken[expert] < capacity", "sum(taken) < capacity"), "Each expert has a capacity of "
         "its own."),
    ),
    last="Normalise the chosen scores first. Then go through the tokens in order: an expert that "
    "already has `capacity` tokens drops the next one.",
)  # fmt: skip


# route_with_bias


def biased():
    even = torch.tensor([[0.9, 0.1, 0.2], [0.2, 0.8, 0.1], [0.1, 0.3, 0.7]], dtype=torch.float64)
    bias = (scored(7, 1, 4)[0] - 0.5, scored(8, 1, 6)[0] - 0.5)
    return (
        ("8 tokens, 4 experts, k = 2", (scored(1, 8, 4, 1), bias[0], 2, 0.25)),
        ("9 tokens, 6 experts, k = 2", (scored(2, 9, 6, 2), bias[1], 2, 0.125)),
        ("10 tokens, 6 experts, k = 3", (scored(3, 10, 6, 3), torch.zeros(6).double(), 3, 0.5)),
        ("3 tokens, 3 experts, each chosen once", (even, torch.zeros(3).double(), 1, 0.5)),
    )


def by_bias(scores, bias, k, rate):
    chosen = (scores + bias).topk(k).indices
    gates = scores.gather(1, chosen)
    gates = gates / gates.sum(1, keepdim=True)
    loads = torch.bincount(chosen.flatten(), minlength=len(bias)).double()
    return chosen, gates, bias + rate * (loads.mean() - loads).sign()


MOVED = "rate * (loads.mean() - loads).sign()"
route_with_bias = Exercise(
    right=by_bias,
    names=("chosen", "gates", "the new bias"),
    keeps=True,
    cases=biased,
    close=1e-12,
    slips=(
        (Edit("(scores + bias).topk", "scores.topk"), "The bias changes the choice: add it before "
         "you take the best k."),
        (Edit("(scores + bias).topk", "(scores - bias).topk"), "A higher bias brings more tokens."),
        (Edit("gates = scores.gather", "gates = (scores + bias).gather"), "The bias is for the "
         "choice alone. With it in the gates, balance would change what the model computes."),
        (Edit("    gates = gates / gates.sum(1, keepdim=True)\n", ""), "The gates of a token sum "
         "to 1."),
        (Edit("gates.sum(1, keepdim=True)", "scores.sum(1, keepdim=True)"), "Divide by the sum "
         "over the chosen experts, not over all."),
        (Edit(MOVED, "rate * (loads - loads.mean()).sign()"), "An expert with too many tokens gets "
         "even more of them."),
        (Edit(MOVED, "rate * (loads.mean() - loads)"), "The step has one size, the rate: only its "
         "sign depends on the load."),
        (Edit(MOVED, "rate * (loads.mean() - loads) / loads.mean()"), "The step has one size, the "
         "rate: only its sign depends on the load."),
        (Edit(MOVED, "rate * torch.where(loads < loads.mean(), 1.0, -1.0)"),
         Edit(MOVED, "rate * torch.where(loads > loads.mean(), -1.0, 1.0)"), "An expert with just "
         "the mean load keeps its bias."),
        (Edit(MOVED, "rate * (loads.median() - loads).sign()"), "Compare with the mean: the load "
         "of each expert if all had the same."),
        (Edit("bias + " + MOVED, MOVED), "The bias adds up over steps."),
        (Edit("chosen.flatten(), minlength", "chosen[:, 0], minlength"), "All k choices of a token "
         "count as load, not the first alone."),
    ),
    last="Choose by score plus bias. Make gates of the scores alone. Then move each bias by the "
    "rate: up below the mean load, down above it.",
)  # fmt: skip


# bytes_across_nodes


def drawn_choice(random):
    nodes, size, k = random.randint(2, 9), random.randint(2, 9), random.randint(1, 4)
    choices = [random.sample(range(nodes * size), k) for _ in range(random.randint(5, 20))]
    widths = (random.randint(1, 99) * 128, *random.choice(((1, 2), (2, 4))))
    return "other tokens", (choices, random.randrange(nodes), nodes, nodes * size, *widths)


def once_a_node(chosen, home, nodes, experts, width, there, back):
    size, copies = experts // nodes, 0
    for token in chosen:
        copies += len({expert // size for expert in token} - {home})
    return copies * width * (there + back)


NODES = "{expert // size for expert in token} - {home}"
bytes_across_nodes = Number(
    right=once_a_node,
    unit="bytes",
    draw=drawn_choice,
    cases=(  # chosen, home, nodes, experts, width, bytes of a number there and back
        ("2 tokens, 2 nodes of 2 experts", ([[0, 1], [1, 2]], 0, 2, 4, 128, 1, 2)),
        ("3 tokens, 3 nodes of 4 experts",
         ([[0, 1, 5], [4, 5, 6], [8, 3, 11]], 1, 3, 12, 256, 1, 2)),
        ("a token at home, and one that goes to all nodes",
         ([[6, 7, 8], [0, 3, 6], [1, 2, 4]], 2, 3, 9, 512, 2, 2)),
        ("one node", ([[0, 3], [1, 2]], 0, 1, 4, 128, 1, 2)),
    ),
    slips=(
        (Edit(NODES, "[expert for expert in token if expert // size != home]"), "That sends a "
         "token once for each expert. Experts of one node can share a copy: it goes on inside."),
        (Edit(NODES, "{expert // size for expert in token}"), "A token for an expert of its own "
         "node does not cross the slow link."),
        (Edit(NODES, "token"), "That is every choice. Which of them are on another node, and "
         "which share a node?"),
        (Edit("expert // size", "expert % size"), Edit("expert // size", "expert % nodes"),
         "Neighbouring experts share a node: experts 0 … E/K-1 are on node 0."),
        (Edit("(there + back)", "there"), "The results come back: a second message."),
        (Edit("    for token in chosen:\n        copies += len(" + NODES + ")",
              "    copies = len({expert // size for token in chosen for expert in token} - "
              "{home})"), "These are the nodes of all tokens together. Count them for each token."),
        (Edit(NODES, "set(range(nodes)) - {home}"), "That is a copy for every other node, as an "
         "all-gather sends it."),
    ),
    last="A token crosses once to each other node that has one of its experts, and once back.",
)  # fmt: skip
