"""A schedule survives the way through its text, and a slip in the text is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans.schedules import (
    ScheduleError,
    from_grid,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    to_grid,
    zero_bubble_h1,
    zero_bubble_v,
)


def test_as_it_looks():
    text = to_grid(one_f_one_b(2, 2))
    assert text == "rank 0: F0 F1 .  B0 .  B1\nrank 1: .  F0 B0 F1 B1"
    assert from_grid(text, name="1F1B") == one_f_one_b(2, 2)
    assert to_grid(gpipe(2, 2)) == "rank 0: F0 F1 .  .  B0 B1\nrank 1: .  F0 F1 B0 B1"
    lines = to_grid(zero_bubble_v(2, 1)).splitlines()
    assert lines[1] == "rank 1: .    F0@1 F0@2 .    .    I0@2 W0@2 I0@1 W0@1"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from("ngoihv"))
def test_there_and_back(p, m, which):
    schedule = {
        "n": lambda: naive(p, m),
        "g": lambda: gpipe(p, m),
        "o": lambda: one_f_one_b(p, m),
        "i": lambda: interleaved(p, p * m, 2),
        "h": lambda: zero_bubble_h1(p, p + m),
        "v": lambda: zero_bubble_v(p, m),
    }[which]()
    assert from_grid(to_grid(schedule), name=schedule.name) == schedule


def test_what_a_student_may_write():
    text = """
        # my first schedule
        rank 0: f0 | F1 .. | b0 b1
        F0 b0 . - F1 B1   # the last stage
    """.replace("..", ". _")
    assert from_grid(text).orders == one_f_one_b(2, 2).orders
    assert from_grid(text).name == "yours"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the grid is empty"),
        ("# nothing\n\n", "the grid is empty"),
        (". .\n.", "no computation"),
        ("F0 B0\n.", "rank 1 has no computation"),
        ("F0 B0 F1x", "rank 0, cell 2: 'F1x' is not a letter and a number"),
        ("F0 B", "rank 0, cell 1: 'B' is not"),
        ("F0 .\nF0 X0", "rank 1, cell 1: 'X0' is no computation"),
        ("F0@0 B0@0\nF0@0 B0@0", "stage 0 is on rank 0 and on rank 1"),
        ("F0 B0\nF0@3 B0@3", "stages up to 3, but no cell of stage 1"),
        ("F0 B0 F3 B3", "micro-batches go up to 3, but no rank computes micro-batch 1"),
        ("rank 1: F0 B0", "line 0 is named 'rank 1'"),
        ("rank 0: F0 B0\nrank 0: F0 B0", "line 1 is named 'rank 0'"),
        ("device 0: F0 B0", "is not 'rank 0:' and cells"),
        ("F0 B0\nF0", "rank 1 never computes B0 of stage 1"),
        ("F0 B0 B0", "more than once"),
        ("F0 B0 F1 B1\nF1 B1 F0 B0", "deadlock: rank 0 waits"),
    ],
)
def test_what_is_wrong(text, reason):
    with pytest.raises(ScheduleError, match=reason):
        from_grid(text)
