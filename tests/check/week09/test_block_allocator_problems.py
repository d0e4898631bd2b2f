"""What is wrong after one operation of a paged cache: states that are written by hand."""

from copy import deepcopy

import pytest

from helpers.check.week09.block_allocator_problems import problem

# a has 3 tokens, b has 4 and shares both blocks with its fork c; 1, 4 and 6 are free.
START = {
    "free": [4, 1, 6],
    "references": [1, 0, 2, 1, 0, 2, 0],
    "tables": {"a": [3, 0], "b": [5, 2], "c": [5, 2]},
    "lengths": {"a": 3, "b": 4, "c": 4},
}
WRITE = ("append", "a")  # into block 0, slot 1
GROW = ("append", "b")  # a new block, 4
COPY = ("append", "c")  # in ODD: block 2 becomes block 4
FORK = ("fork", "a", "d")
FREE = ("free", "a")
SHARED = ("free", "b")
ODD = {**START, "lengths": {"a": 3, "b": 3, "c": 3}}


def state(before=START, *, free=(4, 1, 6), references=None, tables=None, lengths=None):
    """A state with these changes; None removes a sequence's entry."""
    found = deepcopy(before)
    found["free"] = list(free)
    for block, count in (references or {}).items():
        found["references"][block] = count
    for key, changes in (("tables", tables or {}), ("lengths", lengths or {})):
        found[key] = {n: v for n, v in {**found[key], **changes}.items() if v is not None}
    return found


RIGHT = {  # operation: (state before, state after, answer)
    WRITE: (START, {"lengths": {"a": 4}}, (0, 1, None)),
    GROW: (
        START,
        {
            "free": (1, 6),
            "references": {4: 1},
            "tables": {"b": [5, 2, 4]},
            "lengths": {"b": 5},
        },
        (4, 0, None),
    ),
    COPY: (
        ODD,
        {
            "free": (1, 6),
            "references": {2: 1, 4: 1},
            "tables": {"c": [5, 4]},
            "lengths": {"c": 4},
        },
        (4, 1, 2),
    ),
    FORK: (
        START,
        {"references": {3: 2, 0: 2}, "tables": {"d": [3, 0]}, "lengths": {"d": 3}},
        None,
    ),
    FREE: (
        START,
        {
            "free": (4, 1, 6, 3, 0),
            "references": {3: 0, 0: 0},
            "tables": {"a": None},
            "lengths": {"a": None},
        },
        None,
    ),
    SHARED: (
        START,
        {"references": {5: 1, 2: 1}, "tables": {"b": None}, "lengths": {"b": None}},
        None,
    ),
}


def record(operation, answer="right", **changes):
    """The right record of an operation, with these parts of the state after it changed."""
    before, right, answered = RIGHT[operation]
    merged = dict(right)
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    answer = answered if answer == "right" else answer
    after = state(before, **merged)
    return {"before": before, "after": after, "fails": False, "answer": answer}


@pytest.mark.parametrize("operation", RIGHT, ids=" ".join)
def test_what_is_right_passes(operation):
    assert problem(record(operation), operation) is None


def test_a_new_sequence_has_no_table_before():
    before = {"free": [1, 0], "references": [0, 0], "tables": {}, "lengths": {}}
    after = {"free": [0], "references": [0, 1], "tables": {"x": [1]}, "lengths": {"x": 1}}
    given = {"before": before, "after": after, "fails": False, "answer": (1, 0, None)}
    assert problem(given, ("append", "x")) is None
    after["lengths"]["x"] = 2
    assert problem(given, ("append", "x")) == (
        "x had 0 tokens, and has 2 now",
        "An append makes a sequence one token longer.",
    )


CASES = [
    (WRITE, {"lengths": {"a": 3}}, "a had 3 tokens, and has 3 now", "one token longer"),
    (WRITE, {"lengths": {"a": None}}, "a had 3 tokens, and has 0 now", "one token longer"),
    (WRITE, {"tables": {"a": None}}, "tables of ['b', 'c'], but lengths of ['a', 'b', 'c']",
     "from its first token until it is freed"),
    (FREE, {"lengths": {"a": 3}}, "tables of ['b', 'c'], but lengths of ['a', 'b', 'c']",
     "from its first token until it is freed"),
    (WRITE, {"tables": {"c": (5, 2)}}, "the table of c is (5, 2)", "A table is a list"),
    (WRITE, {"tables": {"c": [5, 2, 6]}}, "c has 4 tokens and 3 blocks of 2",
     "A new block is needed only when"),
    (GROW, {"tables": {"b": [5, 2]}}, "b has 5 tokens and 2 blocks of 2",
     "the next token needs a new block"),
    # append
    (WRITE, {"answer": None}, "it returned None", "Return (block, slot, source)"),
    (WRITE, {"answer": [0, 1, None]}, "it returned [0, 1, None]", "Return (block, slot, source)"),
    (WRITE, {"answer": (0, 1)}, "it returned (0, 1)", "Return (block, slot, source)"),
    (WRITE, {"answer": (3, 1, None)}, "it returned block 3; the table of a is [3, 0]",
     "after a copy, the new one"),
    (COPY, {"answer": (2, 1, 2)}, "it returned block 2; the table of c is [5, 4]",
     "after a copy, the new one"),
    (WRITE, {"answer": (0, 3, None)}, "it returned slot 3 for token 3", "Slots start at 0"),
    (GROW, {"answer": (4, 2, None)}, "it returned slot 2 for token 4", "Slots start at 0"),
    (COPY, {"tables": {"b": [5, 4]}}, "block 4 is new, but b has it already",
     "the tables of two sequences are the same list"),
    (GROW, {"tables": {"a": [4, 0]}}, "block 4 is new, but a has it already",
     "It was in the list of free blocks while a table had it"),
    (COPY, {"tables": {"c": [5, 2]}, "answer": (2, 1, None)},
     "the token of c goes into block 2, which b has too", "needs a copy first"),
    (GROW, {"tables": {"b": [5, 6, 4]}}, "the table of b was [5, 2], and is [5, 6, 4] now",
     "Only the block that is written may change"),
    (WRITE, {"tables": {"a": [3, 4]}, "answer": (4, 1, 0)},
     "block 0 was copied, although a alone has it", "can be written as it is"),
    (COPY, {"answer": (4, 1, None)}, "block 4 is in the place of 2, but the source is None",
     "Which block must be copied into it"),
    (COPY, {"answer": (4, 1, 5)}, "block 4 is in the place of 2, but the source is 5",
     "Which block must be copied into it"),
    (WRITE, {"answer": (0, 1, 0)}, "it returned the source 0, but block 0 is no copy",
     "takes the place of a shared one"),
    (GROW, {"answer": (4, 0, 2)}, "it returned the source 2, but block 4 is no copy",
     "takes the place of a shared one"),
    # fork
    (FORK, {"tables": {"d": None}, "lengths": {"d": None}}, "d has no table", "like the others"),
    (FORK, {"lengths": {"d": 4}}, "a has 3 tokens, and its fork 4", "has the same tokens"),
    (FORK, {"tables": {"d": [0, 3]}}, "the table of d is [0, 3], that of a is [3, 0]",
     "A fork shares all blocks"),
    # free
    (FREE, {"tables": {"a": [3, 0]}, "lengths": {"a": 3}}, "a still has a table",
     "Remove the sequence's table and length"),
    (SHARED, {"free": (4, 1, 6, 2)}, "block 2 is free, but c has it", "its last owner is gone"),
    (FREE, {"free": (4, 1, 6, 3)}, "no sequence has block 0, but it is not free", "or it is lost"),
    # counts
    (WRITE, {"references": {5: 1}}, "block 5 has 1 references, but 2 tables have it",
     "Count up where a table gets a block"),
    (COPY, {"references": {2: 2}}, "block 2 has 2 references, but 1 tables have it",
     "also where a copy takes its place"),
    (FREE, {"references": {0: 1}}, "block 0 has 1 references, but 0 tables have it",
     "down where it loses one"),
    (GROW, {"free": (4, 1, 6)}, "block 4 is in a table and in the list of free blocks",
     "Take a block out of the list"),
    (FREE, {"free": (4, 1, 6, 3, 0, 0)}, "block 0 is in the free list 2 times",
     "Free a block once"),
    (GROW, {"free": (1,)}, "no sequence has block 6, but it is not free", "or it is lost"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "changes", "finding", "hint"), CASES)
def test_the_first_wrong_thing_is_told(operation, changes, finding, hint):
    found = problem(record(operation, **changes), operation)
    assert found[0] == finding
    assert hint in found[1]


def test_two_names_for_one_list():
    given = record(FORK)
    given["after"]["tables"]["d"] = given["after"]["tables"]["a"]
    found = problem(given, FORK)
    assert found[0] == "d and a have the same list as their table"
    assert "Copy the list" in found[1]


def refused(changes=None, **more):
    after = state(START, **(changes or {}))
    return {"before": START, "after": after, "fails": True, **more}


@pytest.mark.parametrize(
    ("given", "finding", "hint"),
    [
        (refused(error=("RuntimeError", True)), None, None),
        (refused(answer=(0, 0, None)), "no block is free, but nothing was raised",
         "Which operations need a block?"),
        (refused(error=("IndexError", False)), "no block is free, and IndexError was raised",
         "before you take it"),
        (refused({"lengths": {"c": 5}}, error=("RuntimeError", True)),
         "a RuntimeError was raised, but the state has changed", "First look whether"),
        (refused({"free": (4, 1)}, error=("RuntimeError", True)),
         "a RuntimeError was raised, but the state has changed", "only if the operation succeeds"),
    ],
)  # fmt: skip
def test_a_refusal(given, finding, hint):
    found = problem(given, GROW)
    if finding is None:
        assert found is None
    else:
        assert found[0] == finding
        assert hint in found[1]
