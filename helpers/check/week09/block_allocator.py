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
from helpers.check.week09.block_allocator_problems import problem
from helpers.check.week09.block_allocator_scripts import SCRIPTS, SIZE, A, drawn


def block_allocator(fn) -> Verdict:
    """Check `fn(state, operation, sequence, fork=None)`, which changes the state."""
    scripts = [*SCRIPTS.items(), *hidden.more(drawn)]
    cases = [(words, (blocks, script), {}) for words, (blocks, script) in scripts]
    return examine_here("block_allocator", lambda *given: play(fn, *given), cases, judge)


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
