"""What each script of operations makes a paged cache do, by an allocator of sets of owners."""

import random

import pytest

from helpers.check.week09.block_allocator_scripts import SCRIPTS, SIZE, A, F, X, drawn


def story(blocks, script):
    """One word for each operation, and how many blocks are in use at most.

    "a new" takes a block, "a write" takes none, "a copy" replaces a shared block, "a refused" finds
    no free block. "a as f" forks. "a -2" frees two blocks.
    """
    owners, tables, lengths, words, most = [], {}, {}, [], 0

    def take(name):
        if sum(map(bool, owners)) == blocks:
            return False
        owners.append({name})
        tables.setdefault(name, []).append(len(owners) - 1)
        return True

    for kind, name, *rest in script:
        if kind == "append":
            length = lengths.get(name, 0)
            if length % 2 == 0:
                word = "new" if take(name) else "refused"
            elif len(owners[tables[name][-1]]) > 1:
                shared = tables[name][-1]
                word = "copy" if take(name) else "refused"
                if word == "copy":
                    owners[shared].remove(name)
                    tables[name].remove(shared)
            else:
                word = "write"
            lengths[name] = length + (word != "refused")
        elif kind == "fork":
            (fork,) = rest
            assert fork not in tables
            tables[fork], lengths[fork], word = list(tables[name]), lengths[name], f"as {fork}"
            [owners[block].add(fork) for block in tables[fork]]
        else:
            assert kind == "free"
            del lengths[name]
            mine = tables.pop(name)
            [owners[block].remove(name) for block in mine]
            word = f"-{sum(not owners[block] for block in mine)}"
        words.append(f"{name} {word}")
        most = max(most, sum(map(bool, owners)))
    return ", ".join(words), most


@pytest.mark.parametrize(
    ("words", "blocks", "most", "told"),
    [
        ("one sequence grows and is freed", 3, 3,
         "a new, a write, a new, a write, a new, a -3, b new"),
        ("two sequences grow", 4, 4,
         "a new, b new, a write, b write, a new, b new, a -2, b write, b new, b -3"),
        ("a fork, freed at once", 4, 2, "a new, a write, a new, a as f, f -0, a write, a -2"),
        ("a fork whose first owner is freed", 4, 3,
         "a new, a write, a new, a as f, a -0, f write, f new, f -3"),
        ("a fork in the middle of a block, both grow", 6, 4,
         "a new, a write, a new, a as f, f copy, a write, f new, a -1, f -3"),
        ("a fork at the end of a block, both grow", 6, 3,
         "a new, a write, a as f, f new, a new, a write, f -1, a -2"),
        ("a fork of a fork", 6, 4,
         "a new, a as f, f as g, f copy, g copy, a write, a new, f -1, a -2, g -1"),
        ("all blocks in use", 2, 2,
         "a new, a write, a new, a write, a refused, b refused, a -2, b new"),
        ("no free block for a copy", 2, 2,
         "a new, a write, a new, a as f, f refused, a -0, f write"),
    ],
)  # fmt: skip
def test_what_happens_in_a_script(words, blocks, most, told):
    given, script = SCRIPTS[words]
    assert given == blocks
    assert story(given, script) == (told, most)


def test_there_are_nine_scripts_and_a_block_has_two_slots():
    assert len(SCRIPTS) == 9
    assert (SIZE, A, F, X) == (2, "append", "fork", "free")


class Chosen:
    """Chooses what the test has written down, and keeps what it could have chosen."""

    def __init__(self, *answers):
        self.answers, self.offered = list(answers), []

    def choice(self, given):
        self.offered.append(list(given))
        answer = self.answers.pop(0)
        assert answer in given
        return answer


def test_operations_that_are_drawn():
    chosen = Chosen(
        *(X, "a", "a"),  # the last sequence is not freed: it grows
        *(F, "a"),
        *(A, "a", "d"),  # a new sequence
        *(X, "a"),
        *(A, "d", "d"),
        *(X, "c"),
        *(X, "d", "h"),
        *(F, "h"),
        *(F, "i"),
        *(X, "d"),
        *(A, "j", "j"),
        *(A, "h", "m"),
    )
    words, (blocks, script) = drawn(chosen)
    assert words == "operations in any order"
    assert blocks == 30
    assert script == [
        ("append", "a"),
        ("append", "a"),
        ("fork", "a", "c"),
        ("append", "d"),
        ("free", "a"),
        ("append", "d"),
        ("free", "c"),
        ("append", "h"),
        ("fork", "h", "i"),
        ("fork", "i", "j"),
        ("free", "d"),
        ("append", "j"),
        ("append", "m"),
    ]
    assert not chosen.answers
    kinds, live = [A, A, A, F, X], [given for given in chosen.offered if A not in given]
    assert [given for given in chosen.offered if A in given] == [kinds] * 12
    assert live == [
        *(["a"], ["a", "b"]),
        ["a"],
        *(["a", "c"], ["a", "d"]),
        ["a", "c", "d"],
        *(["c", "d"], ["d", "f"]),
        ["c", "d"],
        *(["d"], ["d", "h"]),
        ["d", "h"],
        ["d", "h", "i"],
        ["d", "h", "i", "j"],
        *(["h", "i", "j"], ["j", "l"]),
        *(["h", "i", "j"], ["h", "m"]),
    ]


def test_no_drawn_script_needs_more_blocks_than_there_are():
    for secret in range(30):
        _, (blocks, script) = drawn(random.Random(secret))
        told, most = story(blocks, script)
        assert len(script) == 13
        assert "refused" not in told
        assert most <= blocks
