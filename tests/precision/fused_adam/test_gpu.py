"""FusedAdamW on a GPU: the compiled kernels. The tests skip themselves without one."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.precision.fused_adam.optimizer import FusedAdamW

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SIZES = (1, 3, 1023, 1024, 1025, 4097, 10**6, 0)


def make(dtype):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, device="cuda").to(dtype)) for size in SIZES]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_equals_the_fused_adamw_of_torch(dtype):
    mine, others = make(dtype), make(dtype)
    ours, theirs = FusedAdamW(mine, lr=0.01), torch.optim.AdamW(others, lr=0.01, fused=True)
    for _ in range(20):
        for p, q in zip(mine, others, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        ours.step()
        theirs.step()
    for p, q in zip(mine, others, strict=True):
        torch.testing.assert_close(p, q)
        for name, value in ours.state[p].items():
            torch.testing.assert_close(value, theirs.state[q][name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_formats_round_once_a_step(dtype):
    """Against float64 that is rounded after each step. A tie in float32 may round otherwise.

    PyTorch's fused kernel on an H100 (torch 2.11) differs from it in a tenth of the first moments.
    """
    p = torch.nn.Parameter(torch.randn(20_000, device="cuda").to(dtype))
    plain, m, v = p.detach().double(), torch.zeros(20_000).cuda(), torch.zeros(20_000).cuda()
    m, v, ours = m.double(), v.double(), FusedAdamW([p], lr=0.01, weight_decay=0.1)
    for step in range(1, 21):
        p.grad = torch.randn_like(p)
        g = p.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        root = (v / (1 - 0.999**step)).sqrt() + 1e-8
        plain = plain * (1 - 0.01 * 0.1) - 0.01 / (1 - 0.9**step) * m / root
        plain, m, v = (one.to(dtype).double() for one in (plain, m, v))
        ours.step()
    found = [p, ours.state[p]["exp_avg"], ours.state[p]["exp_avg_sq"]]
    for mine, right in zip(found, (plain, m, v), strict=True):
        assert (mine.double() != right).float().mean() < 0.002


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_copies_and_the_scaler_without_a_synchronisation(dtype):
    mine = make(dtype)
    ours = FusedAdamW(mine, lr=torch.tensor(0.01, device="cuda"), master_copies=True)
    ours.found_inf = torch.zeros(1, device="cuda")
    ours.grad_scale = torch.full((1,), 8.0, device="cuda")
    for overflow in (0.0, 1.0, 0.0):
        ours.found_inf.fill_(overflow)
        for p in mine:
            p.grad = torch.randn_like(p)
        before = [p.detach().clone() for p in mine]
        torch.cuda.set_sync_debug_mode("error")
        try:
            ours.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        changed = [not torch.equal(p, old) for p, old in zip(mine, before, strict=True)]
        assert any(changed) != bool(overflow)
    for p in mine:
        assert torch.equal(p, ours.state[p]["master"].to(dtype))
        assert ours.state[p]["step"] == 2


def test_a_pointer_that_is_not_aligned():
    flat = torch.randn(2, 4098, device="cuda")
    mine, others = (torch.nn.Parameter(x[1:]) for x in (flat[0], flat[0].clone()))
    ours, theirs = FusedAdamW([mine]), torch.optim.AdamW([others], fused=True)
    for own, p in ((ours, mine), (theirs, others)):
        p.grad = flat[1, 1:]
        own.step()
    torch.testing.assert_close(mine, others)
