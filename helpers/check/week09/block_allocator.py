"""Exercise of week 9: blocks of a paged cache, with reference counts and copy on write.

The stub:

    def block_allocator(state, operation, sequence, fork=None):
        '''Change the state of a paged cache, in place.

        Args:
            state: "free": a list of the free blocks; "references": for each block how many tables
                have it; "tables": sequence -> list of its blocks; "lengths": sequence -> its
                tokens; "block_size": slots in a block.
            operation: "append": make room for one more token; "fork": make a second sequence with
                the same tokens, which shares all blocks; "free": remove a sequence.
            sequence: the name of a sequence. "append" makes it, if it is new.
            fork: the name of the second sequence.

        Returns:
            For "append": (block, slot, source), where the token goes. If the block is a copy of a
            shared one, source is that block; else None. For the others: None.

        Raises:
            RuntimeError: "append" needs a block and none is free. The state is as before.
        '''
"""

import copy

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight
from helpers.check.verdict import Verdict

SIZE = 2
A, F, X = "append", "fork", "free"
SCRIPTS = {  # words: (blocks, operations)
    "one sequence grows and is freed": (3, [(A, "a")] * 5 + [(X, "a"), (A, "b")]),
    "two sequences grow": (4, [(A, "a"), (A, "b")] * 3 + [(X, "a"), (A, "b"), (A, "b"), (X, "b")]),
    "a fork, freed at once": (4, [(A, "a")] * 3 + [(F, "a", "f"), (X, "f"), (A, "a"), (X, "a")]),
    "a fork whose first owner is freed": (
        4, [(A, "a")] * 3 + [(F, "a", "f"), (X, "a"), (A, "f"), (A, "f"), (X, "f")]
    ),
    "a fork in the middle of a block, both grow": (
        6, [(A, "a")] * 3 + [(F, "a", "f"), (A, "f"), (A, "a"), (A, "f"), (X, "a"), (X, "f")]
    ),
    "a fork at the end of a block, both grow": (
        6, [(A, "a")] * 2 + [(F, "a", "f"), (A, "f"), (A, "a"), (A, "a"), (X, "f"), (X, "a")]
    ),
    "a fork of a fork": (
        6,
        [(A, "a"), (F, "a", "f"), (F, "f", "g"), (A, "f"), (A, "g"), (A, "a"), (A, "a")]
        + [(X, "f"), (X, "a"), (X, "g")],
    ),
    "all blocks in use": (2, [(A, "a")] * 4 + [(A, "a"), (A, "b"), (X, "a"), (A, "b")]),
    "no free block for a copy": (
        2, [(A, "a")] * 3 + [(F, "a", "f"), (A, "f"), (X, "a"), (A, "f")]
    ),
}  # fmt: skip


def block_allocator(fn) -> Verdict:
    """Check `fn(state, operation, sequence, fork=None)`, which changes the state."""
    scripts = [*SCRIPTS.items(), *hidden.more(drawn)]
    cases = [(words, (blocks, script), {}) for words, (blocks, script) in scripts]
    return examine_here("block_allocator", lambda *given: play(fn, *given), cases, judge)


def drawn(random):
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


def play(solve, blocks, script) -> list[dict]:
    """Run the operations. Return what each answered, and the state after it."""
    state = {"free": list(range(blocks)), "references": [0] * blocks, "tables": {}, "lengths": {}}
    state["block_size"] = SIZE
    records = []
    for operation in script:
        before, found = copy.deepcopy(state), {}
        expected_to_fail = must_fail(before, *operation)
        try:
            found["answer"] = solve(state, *operation)
        except NotImplementedError:
            raise
        except (RuntimeError, IndexError) as error:
            if not expected_to_fail:
                raise
            found["error"] = type(error).__name__, isinstance(error, RuntimeError)  # as plain data
        after = copy.deepcopy(state)  # one copy: lists that two names share stay shared
        records.append({"before": before, "after": after, "fails": expected_to_fail, **found})
        if problem(records[-1], operation):
            break  # what follows is a consequence
    return records


def must_fail(state, operation, sequence, fork=None) -> bool:
    """Whether the operation needs a block and none is free."""
    table, length = state["tables"].get(sequence, []), state["lengths"].get(sequence, 0)
    if operation != A or state["free"]:
        return False
    return length % SIZE == 0 or state["references"][table[-1]] > 1


def judge(records, blocks, script):
    for number, (record, operation) in enumerate(zip(records, script, strict=False), start=1):
        found = problem(record, operation)
        if found:
            name = " ".join(operation[:2]) + (f" as {operation[2]}" if operation[2:] else "")
            raise NotRight(f"operation {number}, {name!r}: {found[0]}", found[1])
    if len(records) < len(script):
        raise NotRight(f"the operations ended after {len(records)} of {len(script)}")


def problem(record, operation) -> tuple[str, str] | None:
    """The first thing wrong after an operation, and a hint."""
    before, after = record["before"], record["after"]
    if record["fails"]:
        return refusal_problem(record)
    kind, sequence, *fork = operation
    return (
        (kind == A and length_problem(before, after, sequence))
        or shape_problem(after)
        or {A: append_problem, F: fork_problem, X: free_problem}[kind](record, sequence, *fork)
        or count_problem(before, after)
    )


def refusal_problem(record):
    if "error" not in record:
        return (
            "no block is free, but nothing was raised",
            "Without a free block, raise a RuntimeError. Which operations need a block?",
        )
    name, refused = record["error"]
    if not refused:
        return (
            f"no block is free, and {name} was raised",
            "Look whether a block is free before you take it, and raise a RuntimeError.",
        )
    if record["before"] != record["after"]:
        return (
            "a RuntimeError was raised, but the state has changed",
            "First look whether a block is free. Change the state only if the operation succeeds.",
        )
    return None


def shape_problem(after):
    if set(after["tables"]) != set(after["lengths"]):
        return (
            f"tables of {sorted(after['tables'])}, but lengths of {sorted(after['lengths'])}",
            "Each sequence has a table and a length, from its first token until it is freed.",
        )
    for name, table in after["tables"].items():
        if not isinstance(table, list):
            return f"the table of {name} is {table!r}", "A table is a list of block numbers."
        needed = -(-after["lengths"][name] // SIZE)
        if len(table) > needed:
            return (
                f"{name} has {after['lengths'][name]} tokens and {len(table)} blocks of {SIZE}",
                "A new block is needed only when all slots of the blocks are used.",
            )
        if len(table) < needed:
            return (
                f"{name} has {after['lengths'][name]} tokens and {len(table)} blocks of {SIZE}",
                "When all slots of the blocks are used, the next token needs a new block.",
            )
    return None


def length_problem(before, after, sequence):
    length = before["lengths"].get(sequence, 0)
    if after["lengths"].get(sequence) != length + 1:
        return (
            f"{sequence} had {length} tokens, and has {after['lengths'].get(sequence, 0)} now",
            "An append makes a sequence one token longer.",
        )
    return None


def append_problem(record, sequence):
    before, after, answer = record["before"], record["after"], record["answer"]
    length = before["lengths"].get(sequence, 0)
    if not isinstance(answer, tuple) or len(answer) != 3:
        return f"it returned {answer!r}", "Return (block, slot, source)."
    block, slot, source = answer
    table, place = after["tables"][sequence], length // SIZE
    if block != table[place]:
        return (
            f"it returned block {block!r}; the table of {sequence} is {table}",
            "Return the block that is in the table for this token: after a copy, the new one.",
        )
    if slot != length % SIZE:
        return f"it returned slot {slot!r} for token {length}", "Slots start at 0 in each block."
    others = [n for n, t in after["tables"].items() if n != sequence and block in t]
    if others:
        return written_shared(before, sequence, block, others)
    old = before["tables"].get(sequence, [])
    if old[:place] != table[:place]:
        return (
            f"the table of {sequence} was {old}, and is {table} now",
            "Only the block that is written may change.",
        )
    replaced = len(old) > place and old[place] != block
    if replaced and before["references"][old[place]] == 1:
        return (
            f"block {old[place]} was copied, although {sequence} alone has it",
            "A block with one reference can be written as it is.",
        )
    if replaced and source != old[place]:
        return (
            f"block {block} is in the place of {old[place]}, but the source is {source!r}",
            "The new block has none of the earlier tokens. Which block must be copied into it?",
        )
    if not replaced and source is not None:
        return (
            f"it returned the source {source!r}, but block {block} is no copy",
            "A source is only for a block that takes the place of a shared one.",
        )
    return None


def written_shared(before, sequence, block, others):
    """Say why the block that is written belongs to other sequences too."""
    if block in before["free"]:
        return (
            f"block {block} is new, but {others[0]} has it already",
            "It was in the list of free blocks while a table had it, or the tables of two "
            "sequences are the same list.",
        )
    return (
        f"the token of {sequence} goes into block {block}, which {others[0]} has too",
        "The block is written while it is shared: the others would read this token. "
        "Which number says that a block needs a copy first?",
    )


def fork_problem(record, sequence, fork):
    before, after = record["before"], record["after"]
    if fork not in after["tables"]:
        return f"{fork} has no table", "A fork is a sequence like the others."
    if after["lengths"][fork] != before["lengths"][sequence]:
        return (
            f"{sequence} has {before['lengths'][sequence]} tokens, and its fork "
            f"{after['lengths'][fork]}",
            "A fork has the same tokens.",
        )
    if after["tables"][fork] is after["tables"][sequence]:
        return (
            f"{fork} and {sequence} have the same list as their table",
            "When one of them gets a block, the other would get it too. Copy the list.",
        )
    if after["tables"][fork] != before["tables"][sequence]:
        return (
            f"the table of {fork} is {after['tables'][fork]}, that of {sequence} is "
            f"{before['tables'][sequence]}",
            "A fork shares all blocks. The copies come later, when one of them writes.",
        )
    return None


def free_problem(record, sequence):
    before, after = record["before"], record["after"]
    if sequence in after["tables"]:
        return f"{sequence} still has a table", "Remove the sequence's table and length."
    for block in before["tables"][sequence]:
        others = [name for name, table in after["tables"].items() if block in table]
        if others and block in after["free"]:
            return (
                f"block {block} is free, but {others[0]} has it",
                "The block was freed while it is shared. It is free when its last owner is gone: "
                "which number says so?",
            )
        if not others and block not in after["free"]:
            return (
                f"no sequence has block {block}, but it is not free",
                "A block without owners goes back into the list of free blocks, or it is lost.",
            )
    return None


def count_problem(before, after):
    """Compare the counts and the free blocks with the tables."""
    owners = [0] * len(after["references"])
    for table in after["tables"].values():
        for block in table:
            owners[block] += 1
    for block, count in enumerate(owners):
        if after["references"][block] != count:
            return (
                f"block {block} has {after['references'][block]} references, but {count} tables "
                "have it",
                "Count up where a table gets a block, and down where it loses one: also where a "
                "copy takes its place.",
            )
        times = after["free"].count(block)
        if count and times:
            return (
                f"block {block} is in a table and in the list of free blocks",
                "Take a block out of the list when you use it.",
            )
        if times > 1:
            return f"block {block} is in the free list {times} times", "Free a block once."
        if not count and not times:
            return (
                f"no sequence has block {block}, but it is not free",
                "A block without owners goes back into the list of free blocks, or it is lost.",
            )
    return None
