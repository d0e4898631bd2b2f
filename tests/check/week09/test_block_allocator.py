"""The block allocator: the solution passes; each common mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week09 import block_allocator as exercise
from helpers.check.week09.block_allocator_scripts import SCRIPTS, A, F, X, drawn
from notebooks.solutions.week09 import block_allocator
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew
from tests.check.week09.edited import edited

COPY = "if slot and references[table[-1]] > 1:"
RELEASE = """        if references[block] == 0:
                free.append(block)"""


def test_the_solution_passes():
    verdict = check.block_allocator(block_allocator)
    assert verdict, verdict


def test_any_free_block_may_be_taken():
    assert check.block_allocator(edited(block_allocator, ("free.pop(0)", "free.pop()")))


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([("if references[block] == 0:", "if True:")], "freed while it is shared"),
        ([(COPY, "if False:")], "written while it is shared"),
        ([("references[block] += 1", "pass")], "Count up where a table gets a block"),
        ([("list(tables[sequence])", "tables[sequence]")], "Copy the list"),
        ([("references[source] -= 1", "pass")], "also where a copy takes its place"),
        ([("references[table[-1]] > 1", "references[table[-1]] > 0")], "can be written as it is"),
        ([("return tables[sequence][-1], slot, source", "return tables[sequence][-1], slot, None")],
         "Which block must be copied into it"),
        ([("-1], slot, source", "-1], slot, None if source is None else tables[sequence][-1]")],
         "Which block must be copied into it"),
        ([("return tables[sequence][-1], slot,", "return (source or tables[sequence][-1]), slot,")],
         "after a copy, the new one"),
        ([("if slot and", "if table and")], "the next token needs a new block"),
        ([("[*table, block]", "[block, *table]")], "Only the block that is written may change"),
        ([("if slot == 0 or", "if not table or")], "the next token needs a new block"),
        ([("if slot == 0 or", "if True or")], "only when all slots"),
        ([("free.pop(0)", "free[0]")], "Take a block out of the list"),
        ([("references[block] = 1", "pass")], "Count up where a table gets a block"),
        ([("                free.append(block)", "                pass")], "or it is lost"),
        ([("references[block] -= 1", "references[block] = 0")], "freed while it is shared"),
        ([("if references[block] == 0:", "for _ in range(2 * (references[block] == 0)):")],
         "Free a block once"),
        ([("tables.pop(sequence)", "tables[sequence]")], "from its first token until it is freed"),
        ([("del state[", "state["), ("tables.pop(sequence)", "tables[sequence]")],
         "Remove the sequence's table"),
        ([('state["lengths"][fork] = state["lengths"][sequence]', 'state["lengths"][fork] = 0')],
         "only when all slots"),
        ([("list(tables[sequence])", "tables[sequence][::-1]")], "A fork shares all blocks"),
        ([('state["lengths"][sequence] = length + 1', 'state["lengths"][sequence] = length')],
         "one token longer"),
        ([("if not free:", "if False:")], "before you take it"),
        ([("raise RuntimeError(f", "return print(f")], "raise a RuntimeError. Which operations"),
        ([("if not free:", "state['lengths'][sequence] = length + 1; b = 0\n        if not free:")],
         "First look whether a block is free"),
        ([("-1], slot, source", "-1], slot + 1, source")], "Slots start at 0"),
        ([("-1], slot, source", "-1], slot")], "Return (block, slot, source)"),
        ([("-1], slot, source", "-1], slot, 0")], "A source is only for a block"),
        ([("[*table, block]", "(*table, block)")], "A table is a list"),
        ([('state["lengths"][fork] = state["lengths"][sequence]',
           'state["lengths"][fork] = state["lengths"][sequence] + 1')], "has the same tokens"),
    ],
    ids=str,
)  # fmt: skip
def test_each_mistake_is_told(edits, words):
    verdict = check.block_allocator(edited(block_allocator, *edits))
    assert verdict.status == "wrong"
    assert words in verdict.hint, verdict


def test_a_block_that_is_free_while_it_is_used():
    """A free list with a block twice gives one block to two sequences."""
    verdict = check.block_allocator(edited(block_allocator, ("free.pop(0)", "0")))
    assert verdict.status == "wrong"


def test_the_stub_and_an_error():
    def stub(*_):
        raise NotImplementedError

    def failing(state, *_):
        return state["tabels"]

    assert check.block_allocator(stub).status == "not written yet"
    verdict = check.block_allocator(failing)
    assert verdict.status == "wrong"
    assert "tabels" in verdict.finding
    assert check.block_allocator(lambda *_: None).status == "wrong"


def test_a_function_that_ends_the_operations_does_not_pass():
    """In a sandbox it runs beside the operations, and could stop them after a right one."""
    blocks, script = SCRIPTS["one sequence grows and is freed"]
    records = exercise.play(block_allocator, blocks, script)
    for kept in ([], records[:1], records[:-1]):
        with pytest.raises(NotRight, match="the operations ended after"):
            exercise.judge(kept, blocks, script)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.block_allocator, block_allocator))


def test_what_grading_draws_can_be_played():
    kinds = set()
    for secret in range(50):
        _, (blocks, script) = drawn(random.Random(secret))
        exercise.judge(exercise.play(block_allocator, blocks, script), blocks, script)
        kinds.update(operation[0] for operation in script)
    assert kinds == {A, F, X}


def test_a_mistake_in_one_case_alone_is_found():
    found = found_alone(check.block_allocator, block_allocator, lambda *_: None)
    assert found == [
        f"{words}: operation 1, 'append a': a had 0 tokens, and has 0 now"
        for words in (
            "one sequence grows and is freed",
            "two sequences grow",
            "a fork, freed at once",
            "a fork whose first owner is freed",
            "a fork in the middle of a block, both grow",
            "a fork at the end of a block, both grow",
            "a fork of a fork",
            "all blocks in use",
            "no free block for a copy",
        )
    ]


@pytest.mark.parametrize("words", SCRIPTS)
def test_the_last_operation_of_each_case_counts(words):
    blocks, script = SCRIPTS[words]
    left = len(script)

    def solve(*given):
        nonlocal left
        left -= 1
        if left:
            return block_allocator(*given)
        return None

    records = exercise.play(solve, blocks, script)
    assert len(records) == len(script)
    with pytest.raises(NotRight, match=f"operation {len(script)}, "):
        exercise.judge(records, blocks, script)


@pytest.mark.parametrize(
    ("words", "refused"), [("all blocks in use", [5, 6]), ("no free block for a copy", [5])]
)
def test_an_operation_without_a_free_block_has_to_be_refused(words, refused):
    blocks, script = SCRIPTS[words]
    records = exercise.play(block_allocator, blocks, script)
    assert [number for number, one in enumerate(records, 1) if one["fails"]] == refused
    assert all(("error" in one) == one["fails"] for one in records)


def test_an_error_where_none_is_due_is_the_student_s():
    def refuses(state, operation, *given):
        if operation == X:
            raise RuntimeError("no free block")
        return block_allocator(state, operation, *given)

    verdict = check.block_allocator(refuses)
    assert "your function raised RuntimeError: no free block" in verdict.finding


def test_the_state_at_first():
    def solve(state, *given):
        if not state["tables"] and not state["lengths"]:
            assert state["free"] in ([*range(n)] for n in (2, 3, 4, 6))
            assert state["references"] == [0] * len(state["free"])
            assert state["block_size"] == 2
        return block_allocator(state, *given)

    verdict = check.block_allocator(solve)
    assert verdict, verdict


def test_a_finding_names_the_fork():
    edits = [("list(tables[sequence])", "tables[sequence][::-1]")]
    verdict = check.block_allocator(edited(block_allocator, *edits))
    assert verdict.finding == (
        "a fork, freed at once: operation 4, 'fork a as f': "
        "the table of f is [1, 0], that of a is [0, 1]"
    )


def test_a_fork_that_makes_nothing():
    def solve(state, operation, *given):
        return None if operation == F else block_allocator(state, operation, *given)

    verdict = check.block_allocator(solve)
    assert verdict.finding == "a fork, freed at once: operation 4, 'fork a as f': f has no table"
    assert verdict.hint == "A fork is a sequence like the others."


@pytest.mark.parametrize(
    ("references", "length", "fails"),
    [((2, 1), 3, False), ((1, 2), 3, True), ((1, 1), 4, True), ((2, 2), 3, True)],
)
def test_only_the_last_block_of_a_sequence_is_written(references, length, fails):
    state = {"free": [], "references": list(references), "tables": {"a": [0, 1]}}
    state["lengths"] = {"a": length}
    assert exercise.must_fail(state, A, "a") == fails
    assert exercise.must_fail(state, A, "b")
    assert not exercise.must_fail(state, F, "a", "b")
    assert not exercise.must_fail(state, X, "a")
    assert not exercise.must_fail({**state, "free": [2]}, A, "a")
