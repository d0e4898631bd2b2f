"""What is wrong with a paged cache's state, or with an answer, after an operation; and a hint."""

from helpers.check.week09.block_allocator_scripts import SIZE, A, F, X


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
