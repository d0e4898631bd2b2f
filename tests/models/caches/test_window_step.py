"""The plan of a step with a window, against loops over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.caches.kept import RotaryPart
from helpers.models.caches.window_step import NOTHING, WindowStep, held_places


def held(length, window, sinks):
    """Put token after token into its slot."""
    slots = [NOTHING] * (sinks + window)
    for n in range(length):
        slots[n if n < sinks else sinks + (n - sinks) % window] = n
    return slots


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("sinks", [0, 1, 3])
def test_held_places(window, sinks):
    lengths = list(range(15))
    found = held_places(torch.tensor(lengths)[:, None], window, sinks)
    assert found.tolist() == [held(length, window, sinks) for length in lengths]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=3),
    window=st.integers(1, 4),
    sinks=st.integers(0, 3),
    copies=st.booleans(),
)
def test_a_plan(rows, window, sinks, copies):
    lengths, added = zip(*rows, strict=True)
    tokens, slots = max(added), sinks + window
    step = WindowStep(lengths, added, tokens, window, sinks, "cpu")
    seen = step.seen(copies)
    assert seen.shape == (len(rows), 1, tokens, slots + tokens * (1 + sinks * copies))
    places = step.places.expand(len(rows), -1)
    assert step.moved == any(new and old + new > slots for old, new in rows)
    after = [held(old, window, sinks) for old in lengths]
    for row, column, slot in zip(*(index.tolist() for index in step.slots), strict=True):
        after[row][slot] = lengths[row] + column
    assert after == [held(old + new, window, sinks) for old, new in rows]
    places_written = list(zip(step.slots[0].tolist(), step.slots[2].tolist(), strict=True))
    assert len(set(places_written)) == len(places_written)  # or the order of writes would matter
    for row, (old, new) in enumerate(rows):
        keys = held(old, window, sinks) + [old + t if t < new else NOTHING for t in range(tokens)]
        sink_keys = [keys[i] for i in step.sink_index[row].tolist()] if tokens else []
        for t in range(new):
            query = old + t
            assert places[row, t] == min(query, slots - 1)
            assert step.dropped[row, t] == query - min(query, slots - 1)
            mine = [keys[i] for i in seen[row, 0, t, : slots + tokens].nonzero().flatten()]
            mine += [
                sink_keys[i % sinks] if i // sinks == t else "another query's"
                for i in seen[row, 0, t, slots + tokens :].nonzero().flatten().tolist()
            ]
            expected = [n for n in range(query + 1) if n < sinks or n > query - window]
            assert sorted(mine) == expected
        for t in range(new, tokens):  # padding sees itself only, and not nothing
            assert seen[row, 0, t, slots + t]


def test_places_are_flat_where_all_sequences_have_the_same():
    assert WindowStep([3, 3], [2, 2], 2, 4, 1, "cpu").places.tolist() == [3, 4]
    assert WindowStep([3, 3], [2, 1], 2, 4, 1, "cpu").places.tolist() == [[3, 4], [3, 0]]
    assert WindowStep([9, 2], [1, 1], 1, 4, 1, "cpu").places.tolist() == [[4], [2]]


def test_angles_are_those_of_the_dropped_tokens():
    step = WindowStep([6, 2], [2, 2], 2, 4, 1, "cpu")
    assert step.dropped.tolist() == [[2, 3], [0, 0]]
    cos, sin = step.angles(RotaryPart(width=4, base=100.0), torch.float64)
    turns = torch.tensor([[2.0, 3.0], [0.0, 0.0]], dtype=torch.float64)[..., None]
    angle = turns * torch.tensor([1.0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(cos, angle.cos())
    torch.testing.assert_close(sin, angle.sin())
    for dtype, wide in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        assert step.angles(RotaryPart(width=4, base=100.0), dtype)[0].dtype == wide
    assert step.angles(RotaryPart(width=2, base=100.0), torch.float64)[0].shape == (2, 2, 1)
    other = step.angles(RotaryPart(width=4, base=10_000.0), torch.float64)[0]
    torch.testing.assert_close(other, (turns * torch.tensor([1.0, 0.01])).cos())
