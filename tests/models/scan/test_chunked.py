import pytest
import torch

from helpers.models.scan.chunked import scan
from tests.models.scan.oracle import assert_same, loop, recurrence_inputs, with_gradients


@pytest.mark.parametrize("chunk", [1, 2, 4, 7, 64])
@pytest.mark.parametrize("length", [0, 1, 4, 7, 13, 16])
def test_states_and_gradients_are_those_of_a_plain_loop(length, chunk):
    inputs = recurrence_inputs(length)

    def ours(a, b, h0):
        return scan(a, b, h0, chunk=chunk)

    assert_same(with_gradients(ours, inputs), with_gradients(loop, inputs))


def test_chunks_of_64_unless_told():
    inputs = recurrence_inputs(150, (1,))
    assert_same(with_gradients(scan, inputs), with_gradients(loop, inputs))


def test_more_dims_and_a_shared_decay():
    _, b, h0 = recurrence_inputs(7, (4, 2))
    a = torch.rand(2, 7, 4, 1, dtype=torch.float64, requires_grad=True)

    def ours(a, b, h0):
        return scan(a, b, h0, chunk=3)

    assert_same(with_gradients(ours, [a, b, h0]), with_gradients(loop, [a, b, h0]))


def test_numerical_gradients():
    inputs = recurrence_inputs(5, (2,))
    assert torch.autograd.gradcheck(lambda *i: scan(*i, chunk=2), inputs)
    assert torch.autograd.gradgradcheck(lambda *i: scan(*i, chunk=2), inputs)


def test_inputs_stay_as_they_are():
    inputs = [t.detach() for t in recurrence_inputs(8)]
    before = [t.clone() for t in inputs]
    scan(*inputs, chunk=4)
    assert_same(inputs, before)


def test_a_chunk_without_tokens():
    with pytest.raises(ValueError, match=r"chunk is 0"):
        scan(torch.ones(1, 2), torch.ones(1, 2), chunk=0)


def test_the_last_chunk_is_filled_up_in_the_inputs_own_format():
    a, b = torch.rand(2, 2, 7, 3, dtype=torch.bfloat16)
    assert {part.dtype for part in scan(a, b, chunk=4)} == {torch.bfloat16}
