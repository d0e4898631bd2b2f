"""Attention's Triton kernel: interpreted beside the plain form, compiled without a GPU, on one."""

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="Triton is there on Linux only")
from helpers.measure.kernels.interpret import interpreted
from helpers.models import attention_kernel
from helpers.models.attention_kernel import (
    LN_2,
    attention,
    attention_forward,
    compile_attention,
    constants,
)
from helpers.models.blockwise import attend, blockwise, merge
from tests.cuda import Cuda

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
GUARD = 77.0


def inputs(tokens, keys, heads=2, kept=1, sequences=1, width=16):
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, tokens), (kept, keys), (kept, keys)]
    return [torch.randn(sequences, *shape, width, generator=generator) for shape in shapes]


def plain(q, k, v, first=None):
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    first = k.shape[2] - q.shape[2] if first is None else first
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(first)
    return attend(q, k, v, seen)


@pytest.mark.parametrize("tile", [(16, 16), (32, 16), (16, 32)], ids=str)
@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (1, 33), (16, 16), (17, 17), (20, 50)])
def test_tiles_of_any_size_give_the_plain_form(tokens, keys, tile):
    q, k, v = inputs(tokens, keys, 4, 2, sequences=2)
    found = attention_forward(q, k, v, tile=tile)
    torch.testing.assert_close(found, plain(q, k, v), **CLOSE)


@pytest.mark.parametrize("first", [-1, -20, 0, 3, 17, 40])
def test_a_query_that_sees_no_key_or_all_of_them(first):
    q, k, v = inputs(20, 17)
    found = attention_forward(q, k, v, first, tile=(16, 16))
    torch.testing.assert_close(found, plain(q, k, v, first), **CLOSE)


def test_blocks_of_a_ring_merge():
    """A striped ring of two: the other rank's keys, where query t sees those before t; own keys."""
    q, k, v = inputs(40, 40)
    even, odd = slice(0, None, 2), slice(1, None, 2)
    own, other = (
        attention_forward(q[:, :, even], *(x[:, :, at] for x in (k, v)), first, tile=(16, 16))
        for at, first in ((even, 0), (odd, -1))
    )
    y, _ = merge(*own, *other)
    torch.testing.assert_close(y, blockwise(q, k, v)[:, :, even], **CLOSE)


def test_it_writes_nothing_else():
    q, k, v = inputs(21, 21)
    y, total = torch.full((3, 21, 16), GUARD), torch.full((3, 21), GUARD)
    of = 21, 21, 0, 0.25 / LN_2
    interpreted(attention)[2, 2](q, k, v, y, total, *of, **constants(16, 2, (16, 16)))
    torch.testing.assert_close((y[:2], total[:2]), tuple(x[0] for x in plain(q, k, v)), **CLOSE)
    assert (y[2] == GUARD).all()
    assert (total[2] == GUARD).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_adds_up_in_float32(dtype):
    low = [one.to(dtype) for one in inputs(33, 33)]
    y, total = attention_forward(*low, tile=(16, 16))
    wanted, sums = plain(*(one.float() for one in low))
    assert (y.dtype, total.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(total, sums, **CLOSE)
    torch.testing.assert_close(y.float(), wanted, rtol=0.02, atol=0.02)


def test_what_it_cannot_do_is_refused():
    q, k, v = inputs(3, 3)
    for number in range(3):
        some = [one.clone().requires_grad_(n == number) for n, one in enumerate((q, k, v))]
        with pytest.raises(RuntimeError, match="no backward"):
            attention_forward(*some)
    for width in (8, 24):
        with pytest.raises(ValueError, match=f"width of a head is {width}"):
            attention_forward(*inputs(3, 3, width=width))
    assert attention_forward(*inputs(0, 3))[0].shape == (1, 2, 0, 16)


def test_the_kernel_runs_on_the_gpu_of_its_tensors(monkeypatch):
    cuda, gpus = Cuda(monkeypatch), {torch.device("cpu"): 2}
    launched = {"__getitem__": lambda *_: lambda *_, **__: cuda.work()}
    monkeypatch.setattr(attention_kernel, "on_cpu", type("Launched", (), launched))
    monkeypatch.setattr(attention_kernel, "current_gpu", lambda device: cuda.device(gpus[device]))
    attention_forward(*inputs(3, 3))
    assert cuda.calls == [("enter", 2), ("work", 2), ("leave", 2)]


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capability", [80, 90, 100])  # A100, H100, B200
def test_scores_stay_in_registers(capability, dtype, width):
    made = compile_attention(capability, dtype, width)
    assert (made.spills(), made.stack, made.threads) == (0, 0, 128)
    assert made.registers <= {64: 168, 128: 224}[width]
    # Queries and results move once between memory and the chip, by 128 bits: 2 bytes a number.
    assert made.bytes_per_parameter() == {"loads": 2, "stores": 2}
    # Keys and values go to shared memory on their way; products are on the tensor cores.
    assert made.instructions(r"LDGSTS\.E\.BYPASS\.128").total() >= 8 * width // 64
    assert made.instructions(r"LDG\.E\.128").total() == 64 * width * 2 // 16 // 128
    assert made.instructions({80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}[capability] + r"[\w.]*")
    assert f".target sm_{capability}" in made.ptx


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("width", [64, 128])
def test_on_a_gpu_it_is_the_fused_attention(tokens, width):
    q, k, v = (one.cuda().bfloat16() for one in inputs(tokens, tokens, 8, 2, 2, width))
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    y, total = attention_forward(q, k, v)
    torch.testing.assert_close(y, wanted, rtol=0.02, atol=0.02)
    assert torch.equal(y, attention_forward(q, k, v)[0])
    torch.testing.assert_close(total, plain(q.float(), k.float(), v.float())[1], **CLOSE)
