"""Exercises of week 9: speculative decoding, and blocks of a paged cache."""

import torch

from helpers.check import hidden
from helpers.check.answers import in_a_line, is_number, same, short
from helpers.check.exercise import Edit, Exercise
from helpers.inference.accept import residual

# accept_or_resample: p and q are (V,) float64, the target's and the draft's; q drew the guess

LAWS = (  # the target's probabilities, the draft's, the guess
    ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), 1),
    ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), 0),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), 0),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), 1),
    ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), 2),
    ((0.0, 0.6, 0.4), (0.5, 0.25, 0.25), 0),
    ((0.25, 0.75), (0.25, 0.75), 1),
    ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), 1),
)


def every_guess():
    calls = [call for law in (*LAWS, *hidden.more(drawn_laws, 6)) for call in with_draws(*law)]
    return [("each pair of p and q, with several draws", (calls,))]


def drawn_laws(random):
    p, q = ([random.randint(1, 20) for _ in range(5)] for _ in range(2))
    return [n / sum(p) for n in p], [n / sum(q) for n in q], random.randrange(5)


def with_draws(p, q, guess):
    """The calls for one guess: draws around p/q, around other ratios, and at the ends."""
    p, q = (torch.tensor(law, dtype=torch.float64) for law in (p, q))
    ratio = float(p[guess] / q[guess])
    around = [0.98 * ratio, 1.02 * ratio, 0.98 / ratio if ratio else 1.0, float(p[guess]) * 1.02]
    draws = [draw for draw in (0.0, 0.3, 0.7, *around, 1 - 2**-53) if draw < 1]
    return [(p, q, guess, draw) for draw in draws]


def decide(solve, calls) -> dict:
    """The decisions; where the guess is rejected, the weights up to a factor, and their sum."""
    decisions, weights, sums = [], [], []
    for p, q, guess, draw in calls:
        answer = solve(p.clone(), q.clone(), guess, draw)
        if is_number(answer) or (isinstance(answer, torch.Tensor) and answer.dim() == 0):
            right = float(answer) == guess
            decisions.append("accepted" if right else f"the token {float(answer):g}, no guess")
        elif not isinstance(answer, torch.Tensor) or answer.shape != p.shape:
            decisions.append(f"{short(answer)}, not {len(p)} probabilities")
        else:
            decisions.append("rejected")
            total = answer.double().sum()
            weights.append(answer.double() / (total if total else 1))
            sums.append(float(total))
    return {"decisions": decisions, "probabilities": weights, "their sums": sums}


def say_decision(facet, found, right, calls) -> str:
    if facet == "their sums":
        return "after a rejection, the probabilities do not sum to 1"
    rejected = [call for call in calls if facet == "decisions" or not accepts(*call)]
    near = (same(a, b, 1e-9) for a, b in zip(found, right, strict=True))
    answer, (p, q, guess, draw) = next(
        (answer, call) for answer, call, ok in zip(found, rejected, near, strict=True) if not ok
    )
    if facet == "decisions":
        about = f"a guess with p = {p[guess]:.3g} and q = {q[guess]:.3g}, for the draw {draw:.3g}"
        return f"{answer} {about}" if answer in ("accepted", "rejected") else f"returned {answer}"
    words = f"p = {listed(p)}, q = {listed(q)}, the guess {guess} rejected"
    return f"{words}: you return {listed(answer)}, up to a factor"


def listed(law) -> str:
    return "(" + ", ".join(f"{float(one):.3g}" for one in law) + ")"


def accepts(p, q, guess, draw) -> bool:
    return draw * float(q[guess]) < float(p[guess])


def accept(p, q, guess, draw):
    if draw * q[guess] < p[guess]:
        return guess
    return residual(p, q)


def scaled(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum()


RULE, LEFT = "draw * q[guess] < p[guess]", "residual(p, q)"
accept_or_resample = Exercise(
    right=accept,
    play=decide,
    cases=every_guess,
    say=say_decision,
    close=1e-9,  # float64, sums of some numbers below 1
    slips=(
        (Edit(RULE, "True"), "No guess is ever rejected. Then the tokens are the draft's."),
        (Edit(RULE, "False"), "No guess is ever accepted, although p ≥ q at some."),
        (Edit(RULE, "draw * p[guess] < q[guess]"), "The ratio is upside down: the target's wish "
         "counts, relative to the draft's."),
        (Edit(RULE, "draw * q[guess] >= p[guess]"), Edit(RULE, "draw * q[guess] > p[guess]"),
         Edit(RULE, "draw * p[guess] > q[guess]"), "You reject the guesses that you should accept. "
         "In which direction is the comparison?"),
        (Edit(RULE, "draw < p[guess]"), "The draft has proposed this guess already with the "
         "probability q: divide by it."),
        (Edit(RULE, "draw < q[guess]"), Edit(RULE, "draw < 1 - q[guess]"), "The chance to accept "
         "must depend on the target's p too."),
        (Edit(RULE, "p[guess] >= q[guess]"), Edit(RULE, "p[guess] > q[guess]"), "A guess with p < "
         "q is accepted sometimes. How often, and what is the draw for?"),
        (Edit(RULE, "p[guess] < q[guess]"), Edit(RULE, "p[guess] < q[guess] and " + RULE), "A "
         "guess with p ≥ q is always accepted."),
        (Edit(RULE, "guess == p.argmax()"), "This accepts the target's best token alone. The guess "
         "may be another one, with p > 0."),
        (Edit(RULE, "draw * q[guess] <= p[guess]"), "A draw of 0 accepts a guess that is "
         "impossible for the target. Compare with <."),
        (Edit(RULE, "draw < 0.5"), "Accept with the probability min(1, …). Of which ratio?"),
        (Edit(RULE, "draw < p[guess] - q[guess]"), "Accept with a ratio of p and q, not with their "
         "difference."),
        (Edit(RULE, "draw < p[guess] * q[guess]"), "Accept with a ratio of p and q, not with their "
         "product."),
        (Edit(LEFT, "int(p.argmax())"), Edit("return guess", "return guess + 1", LEFT, "guess"),
         Edit(LEFT, "int(residual(p, q).argmax())"), "Return the guess itself, or else "
         "probabilities. Nothing is drawn here."),
        (Edit(LEFT, "p"), "That is p itself. Accepted guesses have given the draft's favourites "
         "their share already: what is left of p?"),
        (Edit(LEFT, "(p - q).clamp(min=0)"), "These do not sum to 1: renormalise what is left of "
         "p."),
        (Edit(LEFT, "q"), "That is the draft's law: the token must come from what is left of the "
         "target's."),
        (Edit(LEFT, "scaled((q - p).clamp(min=0))"), "That is what q has too much. What has p that "
         "q does not give?"),
        (Edit(LEFT, "scaled((p - q).abs())"), "Where q > p, nothing is left of p: do not take the "
         "absolute value there."),
        (Edit(LEFT, "p - q"), Edit(LEFT, "scaled(p - q)"), "A probability cannot be negative. "
         "Where q > p, nothing is left of p."),
        (Edit(LEFT, "(p - q).softmax(0)"), Edit(LEFT, "(p - q).clamp(min=0).softmax(0)"), "A "
         "softmax makes new probabilities: renormalise what is left of p, divide by its sum."),
        (Edit(LEFT, "scaled(p * (p > q))"), "You keep all of p where p > q. The draft has given "
         "min(p, q) of it already: what is left?"),
        (Edit(LEFT, "scaled(p * (torch.arange(len(p)) != guess))"), "You leave out the guess, and "
         "keep p elsewhere. Of which tokens has the draft given p a share already?"),
        (Edit(LEFT, "scaled(torch.minimum(p, q))"), "That is what accepted guesses give. What is "
         "left of p?"),
        (Edit(LEFT, "scaled(p / q.clamp(min=1e-9))"), "What is left is a difference of p and q, "
         "not their ratio."),
    ),
    last="Accept with the probability min(1, …) of which ratio? After that, what is left of p, "
    "where the draft's guesses give each token min(p, q)?",
)  # fmt: skip


# block_allocator

SIZE = 2  # slots in a block
A, F, X = "append", "fork", "free"
SCRIPTS = (  # words, (blocks, operations)
    ("one sequence grows and is freed", (3, [(A, "a")] * 5 + [(X, "a"), (A, "b")])),
    ("two sequences grow", (
        4, [(A, "a"), (A, "b")] * 3 + [(X, "a"), (A, "b"), (A, "b"), (X, "b")]
    )),
    ("a fork, freed at once", (4, [(A, "a")] * 3 + [(F, "a", "f"), (X, "f"), (A, "a"), (X, "a")])),
    ("a fork whose first owner is freed", (
        4, [(A, "a")] * 3 + [(F, "a", "f"), (X, "a"), (A, "f"), (A, "f"), (X, "f")]
    )),
    ("a fork in the middle of a block, both grow", (
        6, [(A, "a")] * 3 + [(F, "a", "f"), (A, "f"), (A, "a"), (A, "f"), (X, "a"), (X, "f")]
    )),
    ("a fork at the end of a block, both grow", (
        6, [(A, "a")] * 2 + [(F, "a", "f"), (A, "f"), (A, "a"), (A, "a"), (X, "f"), (X, "a")]
    )),
    ("a fork of a fork", (
        6,
        [(A, "a"), (F, "a", "f"), (F, "f", "g"), (A, "f"), (A, "g"), (A, "a"), (A, "a")]
        + [(X, "f"), (X, "a"), (X, "g")],
    )),
    ("all blocks in use", (2, [(A, "a")] * 4 + [(A, "a"), (A, "b"), (X, "a"), (A, "b")])),
    ("no free block for a copy", (
        2, [(A, "a")] * 3 + [(F, "a", "f"), (A, "f"), (X, "a"), (A, "f")]
    )),
)  # fmt: skip


def drawn_script(random):
    """Operations in any order; blocks for all of them."""
    script, live = [(A, "a")], ["a"]
    for name in "bcdefghijklm":
        kind, one = random.choice((A, A, A, F, X)), random.choice(live)
        if kind == F:
            script.append((F, one, name))
            live.append(name)
        elif kind == X and len(live) > 1:
            script.append((X, one))
            live.remove(one)
        else:
            script.append((A, random.choice((one, name))))
            live = sorted({*live, script[-1][1]})
    return "operations in any order", (30, script)


def operate(solve, blocks, script) -> dict:
    """Run the operations. For each, what it answered and the state after it.

    Any free block may be taken. So the blocks are numbered by their first use.
    """
    state = {"free": list(range(blocks)), "references": [0] * blocks, "tables": {}, "lengths": {}}
    state["block_size"], trace, labels = SIZE, {}, {}
    for number, operation in enumerate(script, start=1):
        name = f"{operation[0]} {operation[1]}" + "".join(f" as {one}" for one in operation[2:])
        facet, free, answer, raised = f"operation {number}, {name!r}", [*state["free"]], None, ""
        try:
            answer = solve(state, *operation)
        except NotImplementedError:
            raise
        except Exception as error:
            if free and not trace:
                raise  # with the student's line
            raised = type(error).__name__ if not free else in_a_line(error)
        parts = {"raised": raised, **state_of(state, answer, labels)}
        trace |= {f"{facet}: {part}": value for part, value in parts.items()}
        if raised and free:
            break  # no operation on what is left
    return trace


def state_of(state, answer, labels: dict) -> dict:
    """The state after an operation, as plain data with the blocks' labels."""
    for table in state["tables"].values():
        for block in table:
            labels.setdefault(block, len(labels))
    if isinstance(answer, tuple | list) and len(answer) == 3:
        block, slot, source = answer
        answer = (labels.get(block, block), slot, labels.get(source, source))
    elif answer is not None:
        answer = short(answer)
    counts = state["references"]
    tables = {
        name: [labels[block] for block in table] if isinstance(table, list) else short(table)
        for name, table in sorted(state["tables"].items())
    }
    lists = [id(table) for table in state["tables"].values()]
    return {
        "answer": answer,
        "lengths": dict(sorted(state["lengths"].items())),
        "tables": tables,
        "tables that are one list": len(lists) - len(set(lists)),
        "references": {new: counts[old] for old, new in labels.items()},
        "free blocks": sorted(labels.get(block, -1) for block in state["free"]),
    }


def say_state(facet, found, right, blocks, script) -> str:
    if facet.endswith("raised"):
        due = f"{right} is due" if right else "none is due"
        return f"{facet.removesuffix(': raised')} raised {found or 'no error'}; {due}"
    note = " (-1: never used)" if facet.endswith("free blocks") else ""
    return f"{facet} {found}, not {right}{note}; blocks are numbered by their first use"


def right_allocator(state, operation, sequence, fork=None):
    free, references, tables = state["free"], state["references"], state["tables"]
    lengths = state["lengths"]
    if operation == "fork":
        tables[fork] = list(tables[sequence])
        lengths[fork] = lengths[sequence]
        for block in tables[fork]:
            references[block] += 1
        return None
    if operation == "free":
        del lengths[sequence]
        for block in tables.pop(sequence):
            references[block] -= 1
            if references[block] == 0:
                free.append(block)
        return None
    length, table = lengths.get(sequence, 0), tables.get(sequence, [])
    slot, source = length % state["block_size"], None
    if slot and references[table[-1]] > 1:
        source = table[-1]
    if slot == 0 or source is not None:
        if not free:
            raise RuntimeError(f"{sequence} needs a block, but none is free")
        block = free.pop(0)
        references[block] = 1
        if source is not None:
            references[source] -= 1
            table = table[:-1]
        tables[sequence] = [*table, block]
    lengths[sequence] = length + 1
    return tables[sequence][-1], slot, source


OWNERS = "if references[block] == 0:"
SLOT = "if slot == 0 or"
ANSWER = "return tables[sequence][-1], slot, source"
block_allocator = Exercise(
    right=right_allocator,
    play=operate,
    cases=SCRIPTS,
    draw=drawn_script,
    say=say_state,
    about={
        ": raised": "Raise a RuntimeError where append needs a block and none is free, and nothing "
        "elsewhere.",
        "raised": "append also begins new sequences, which have no table and no length yet.",
        "answer": "append returns (block, slot, source): the last block of the table, the slot in "
        "this block, and the shared block, if this one is a copy of it. fork and free return None.",
        "lengths": "A length counts a sequence's tokens: append adds one, a fork has those of the "
        "first, and free removes the sequence.",
        "tables": "A table has its sequence's blocks in order. A fork shares all of them; later a "
        "copy takes the place of the last block only.",
        "references": "Each count is the number of tables that have the block, for every block of "
        "a table.",
        "free blocks": "A block is in the list of free blocks, once, while no table has it.",
    },
    slips=(
        (Edit(OWNERS, "if True:"), Edit("references[block] -= 1", "references[block] = 0"), "The "
         "block was freed while it is shared. It is free when its last owner is gone: which number "
         "says so?"),
        (Edit("if slot and references[table[-1]] > 1:", "if False:"), "The block is written while "
         "it is shared: the others would read this token. Which number says that a block needs a "
         "copy first?"),
        (Edit("references[block] += 1", "pass"), Edit("references[source] -= 1", "pass"),
         Edit("references[block] = 1", "pass"), Edit("references[block] -= 1", "pass"), "Count up "
         "where a table gets a block, and down where it loses one: also where a copy takes its "
         "place."),
        (Edit("list(tables[sequence])", "tables[sequence]"), "Two sequences have the same list as "
         "their table. When one gets a block, the other gets it too. Copy the list."),
        (Edit("list(tables[sequence])", "tables[sequence][::-1]"), "A fork shares all blocks, in "
         "the same order. The copies come later, when one of them writes."),
        (Edit("references[table[-1]] > 1", "references[table[-1]] > 0"), "A block with one "
         "reference can be written as it is."),
        (Edit(ANSWER, "return tables[sequence][-1], slot, None"),
         Edit(ANSWER, ANSWER.replace("source", "source and free")), "The new block has none of the "
         "earlier tokens. Which block must be copied into it?"),
        (Edit(ANSWER, ANSWER + " or 0"), "A source is only for a block that takes the place of a "
         "shared one."),
        (Edit(ANSWER, "return source or tables[sequence][-1], slot, source"),
         Edit(ANSWER, "return tables[sequence][0], slot, source"), "Return the block that is in "
         "the table for this token: the last one, and after a copy, the new one."),
        (Edit(ANSWER, "return tables[sequence][-1], slot + 1, source"),
         Edit(ANSWER, "return tables[sequence][-1], length, source"), "Slots start at 0 in each "
         "block."),
        (Edit(ANSWER, "return tables[sequence][-1], slot"),
         Edit(ANSWER, "return tables[sequence][-1]"), "Return (block, slot, source)."),
        (Edit("table = table[:-1]", "pass"), "The copy takes the place of the shared block in the "
         "table: it does not come behind it."),
        (Edit("[*table, block]", "[block, *table]"), "Only the block that is written may change: "
         "a new block is the last of its table."),
        (Edit(SLOT, "if not table or"), Edit('state["block_size"]', "4"), "When all slots of the "
         "blocks are used, the next token needs a new block."),
        (Edit(SLOT, "if True or"), Edit('state["block_size"]', "1"), "A new block is needed only "
         "when all slots of the blocks are used."),
        (Edit("free.pop(0)", "free[0]"), "Take a block out of the list when you use it."),
        (Edit("                free.append(block)", "                pass"),
         Edit(OWNERS, "if references[block] == 1:"), "A block without owners goes back into the "
         "list of free blocks, or it is lost."),
        (Edit(OWNERS, "for _ in range(2 * (references[block] == 0)):"), "Free a block once."),
        (Edit("tables.pop(sequence)", "tables[sequence]"), Edit("del lengths[sequence]", "pass"),
         Edit("del lengths[sequence]", "pass", "tables.pop(sequence)", "tables[sequence]"), "Each "
         "sequence has a table and a length, from its first token until it is freed."),
        (Edit("lengths[fork] = lengths[sequence]", "lengths[fork] = 0"),
         Edit("lengths[fork] = lengths[sequence]", "pass"), "A fork has the same tokens: its "
         "length is that of the first."),
        (Edit('if operation == "fork":', 'if operation == "fork":\n        return None'), "A fork "
         "is a sequence like the others: it needs a table and a length."),
        (Edit("lengths[sequence] = length + 1", "lengths[sequence] = length"), "An append makes a "
         "sequence one token longer."),
        (Edit("if not free:", "if False:"), "Look whether a block is free before you take it, and "
         "raise a RuntimeError."),
        (Edit("raise RuntimeError(f", "return None and (f"), "Without a free block, raise a "
         "RuntimeError. Which operations need a block?"),
        (Edit("if not free:", "lengths[sequence] = length + 1\n        if not free:"), "First look "
         "whether a block is free. Change the state only if the operation succeeds."),
        (Edit(SLOT, "if not free:\n        raise RuntimeError\n    " + SLOT), "A token that fits "
         "into its block needs no free one. Which operations need a block?"),
    ),
    last="After each operation: is each count the number of tables that have the block, and is "
    "each block without a table free, once?",
)  # fmt: skip
