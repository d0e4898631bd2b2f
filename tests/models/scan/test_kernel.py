"""The Triton kernel: interpreted beside the recurrence, compiled without a GPU, and on a GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")
from helpers.measure.kernels.interpret import interpreted
from helpers.models.scan import kernel
from helpers.models.scan import recurrence as plain
from helpers.models.scan.kernel import (
    combine,
    compile_selective,
    constants,
    selective,
    selective_forward,
)
from helpers.models.scan.selective import selective_scan
from tests.cuda import Cuda
from tests.models.scan import oracle
from tests.models.scan.oracle import assert_same

GUARD = 77.0
SMALL = {"tile": (4, 4)}


def inputs_of(length, **sizes):
    return [t.detach() for t in oracle.selective_inputs(length, **sizes)]


@pytest.mark.parametrize("tile", [(1, 1), (4, 2), (8, 8)], ids=str)
@pytest.mark.parametrize("length", [1, 4, 9])
def test_tiles_of_any_size_give_the_recurrence_and_write_nothing_else(length, tile):
    x, delta, A, B, C, D, h0 = inputs_of(length)
    sequences, channels, state = h0.shape
    y = torch.full((sequences + 1, length, channels), GUARD, dtype=torch.float64)
    h = torch.full((sequences + 1, state, channels), GUARD, dtype=torch.float64)
    h[:sequences] = h0.mT
    grid = (sequences, -(-channels // tile[1]))
    turned = (x, delta, A.mT.contiguous(), B.mT.contiguous(), C.mT.contiguous(), D)
    interpreted(selective)[grid](
        *turned, y, h, length, channels, **constants(torch.float64, state, tile)
    )
    wanted = oracle.selective(x, delta, A, B, C, D, h0)
    assert_same((y[:sequences], h[:sequences].mT), wanted)
    assert (y[sequences:] == GUARD).all()
    assert (h[sequences:] == GUARD).all()


def test_the_operator_of_the_kernel_is_that_of_the_scans():
    one, two = (torch.randn(2, 3, dtype=torch.float64) for _ in "ab")
    assert_same(combine.fn(*one, *two), plain.combine(tuple(one), tuple(two)))


@pytest.mark.parametrize(("length", "given"), [(0, 7), (1, 7), (5, 5), (7, 7)])
def test_a_launch_is_the_selective_scan(length, given):
    """Without skip and first state too; inputs of any layout stay as they are."""
    inputs = [t.mT.contiguous().mT if t.dim() > 1 else t for t in inputs_of(length)[:given]]
    before = [t.clone() for t in inputs]
    assert_same(selective_forward(*inputs, **SMALL), selective_scan(*inputs, form="loop"))
    assert_same(inputs, before)


def test_the_tile_that_a_gpu_gets_and_low_precision():
    inputs = inputs_of(2, sequences=1, channels=2, state=1)
    assert_same(selective_forward(*inputs), selective_scan(*inputs, form="loop"))
    low = [t.bfloat16() for t in inputs_of(5)]
    y, last = selective_forward(*low, **SMALL)
    wanted = selective_scan(*low)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(last, wanted[1])
    torch.testing.assert_close(y.float(), wanted[0].float(), rtol=0.02, atol=0.02)


def test_gradients_and_shapes_that_do_not_fit_are_refused():
    inputs = inputs_of(3)
    for number in range(7):  # each argument alone
        some = [t.clone().requires_grad_(n == number) for n, t in enumerate(inputs)]
        with pytest.raises(RuntimeError, match=r"the kernel has no backward"):
            selective_forward(*some)
    with torch.no_grad():
        selective_forward(*some, **SMALL)
    x, delta, A, B, C, *_ = inputs
    with pytest.raises(ValueError, match=r"C has the shape"):
        selective_forward(x, delta, A, B, C[:, :2])


def test_the_kernel_runs_on_the_gpu_of_its_tensors(monkeypatch):
    """That may be another GPU than the current one."""
    cuda, gpus = Cuda(monkeypatch), {torch.device("cpu"): 2}
    launched = {"__getitem__": lambda *_: lambda *_, **__: cuda.work()}
    monkeypatch.setattr(kernel, "on_cpu", type("Launched", (), launched))
    monkeypatch.setattr(kernel, "current_gpu", lambda device: cuda.device(gpus[device]))
    selective_forward(*inputs_of(3))
    assert cuda.calls == [("enter", 2), ("work", 2), ("leave", 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capability", [80, 90, 100])  # A100, H100, B200
def test_the_states_stay_in_registers(capability, dtype):
    made = compile_selective(capability, dtype)
    assert (made.spills(), made.stack, made.threads) == (0, 0, 128)
    assert made.registers <= 128  # four programs on a multiprocessor of 65,536 registers
    # 8 numbers of x, Δ and y for each thread; in a loop, those of A, B, C and the state; the skip.
    found = [made.instructions(rf"{kind}\.E[\w.]*").total() for kind in ("LDG", "STG")]
    assert found == [8 + 8 + 19, 8 + 1]
    assert f".target sm_{capability}" in made.ptx


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_channels_by_sixteen_move_by_128_bits(capability, dtype):
    made = compile_selective(capability, dtype, aligned=True)
    assert (made.spills(), made.stack) == (0, 0)
    assert made.registers <= 96  # five programs on a multiprocessor
    # A thread's 8 numbers of x, Δ and y, and the state's. B and C lie along the tokens.
    vectors = {torch.float32: (2 + 2 + 3, 2 + 1), torch.bfloat16: (1 + 1 + 4, 1 + 1)}[dtype]
    found = [made.instructions(rf"{kind}\.E\.128[\w.]*").total() for kind in ("LDG", "STG")]
    assert found == list(vectors)


def test_each_format_computes_and_loads_what_it_should():
    ptx = compile_selective(90, torch.float64).ptx
    assert "fma.rn.f64" in ptx
    assert "fma.rn.f32" not in ptx.replace("fma.rn.f32x2", "")
    made, wide = compile_selective(90, torch.bfloat16), compile_selective(90)
    assert made.spills() == 0
    loads = [one.instructions(r"LDG\.E[\w.]*").total() for one in (made, wide)]
    assert loads[0] <= loads[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_on_a_gpu_it_is_the_selective_scan_again_and_again(length, dtype):
    inputs = [t.detach().cuda() for t in oracle.selective_inputs(length, 3, 100, 16)]
    wanted = selective_scan(*inputs, form="loop")
    given = [t.to(dtype) for t in inputs]
    near = 1e-10 if dtype is torch.float64 else 1e-4
    found = selective_forward(*given)
    for mine, again, right in zip(found, selective_forward(*given), wanted, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=near, atol=near)
        assert torch.equal(mine, again)
