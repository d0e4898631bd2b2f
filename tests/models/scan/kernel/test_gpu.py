"""The kernel on a GPU: its numbers, and its time. The tests skip themselves without one."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.models.scan.kernel.launch import selective_forward
from helpers.models.scan.selective import selective_scan
from tests.models.scan.oracle import selective_inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_the_selective_scan(length, dtype):
    inputs = [t.detach().cuda() for t in selective_inputs(length, 3, 100, 16)]
    wanted = selective_scan(*inputs, form="loop")
    found = selective_forward(*(t.to(dtype) for t in inputs))
    close = (
        {"rtol": 1e-10, "atol": 1e-10} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    )
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), right, **close)


def test_it_runs_a_second_time_from_the_first_state():
    inputs = [t.detach().cuda() for t in selective_inputs(200, 2, 32, 16)]
    first = selective_forward(*inputs)
    for mine, again in zip(first, selective_forward(*inputs), strict=True):
        assert torch.equal(mine, again)
