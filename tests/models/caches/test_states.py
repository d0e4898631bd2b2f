"""Each line of states is its own, starts with zeros, and is used again."""

import torch

from helpers.models.caches.cache import Kept
from helpers.models.caches.states import States

KEPT = {2: Kept(per_sequence=((2, 3), (5,))), 4: Kept(per_token=((1, 2),))}


def lines(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def test_lines_are_apart_and_zero_at_first():
    states = States(KEPT, torch.float64, "cpu")
    assert states
    assert states.bytes == 0
    a, b, c = (states.take() for _ in range(3))
    assert len({a, b, c}) == 3
    states.write(2, lines(c, a), [torch.ones(2, 2, 3), torch.tensor([[3.0], [4.0]]).expand(2, 5)])
    matrix, vector = states.read(2, lines(a, b, c))
    assert matrix.dtype == torch.float64
    assert (matrix.shape, vector.shape) == ((3, 2, 3), (3, 5))
    assert vector[:, 0].tolist() == [4, 0, 3]
    assert matrix[:, 1, 2].tolist() == [1, 0, 1]
    assert states.read(4, lines(a)) == ()
    assert states.bytes == 4 * 11 * 8  # the memory has doubled to four lines


def test_a_line_is_copied_and_used_again():
    states = States(KEPT, torch.float32, "cpu")
    a = states.take()
    states.write(2, lines(a), [torch.ones(1, 2, 3), torch.ones(1, 5)])
    b = states.copy(a)
    states.write(2, lines(a), [torch.zeros(1, 2, 3), torch.full((1, 5), 2.0)])
    assert states.read(2, lines(b, a))[1][:, 0].tolist() == [1, 2]
    states.give_back(b)
    assert states.take() == b
    assert states.read(2, lines(b))[1].count_nonzero() == 0
    assert states.read(2, lines(a))[1][0, 0] == 2


def test_a_model_without_states():
    states = States({4: KEPT[4]}, torch.float32, "cpu")
    assert not states
    assert states.take() != states.take()
    assert states.bytes == 0
