"""Block quantisation: the bytes by hand, the bound on hostile numbers, what is not finite."""

import math
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.measure.kernels import in_c
from helpers.precision import block_loops, blocks
from helpers.precision.blocks import Blocks

FORMATS = [Blocks(bits=bits, size=size) for bits in (8, 4) for size in (2, 6, 64, 256)]


@pytest.fixture(params=["operators", "loops in C"])
def both(request, monkeypatch):
    """By operators, then by loops in C, however short a row is."""
    if request.param != "operators":
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        monkeypatch.setattr(block_loops, "ENOUGH", 0)


def there_and_back(form, row):
    return form.decode(form.encode(row), torch.full_like(row, 7))


@pytest.mark.parametrize(
    ("bits", "row", "scales", "codes"),
    [
        (8, [127.0, -1.0, 0.5, 1.5, 254.0, -254.0], [1, 2], [127, -1, 0, 2, 127, -127]),
        (8, [0.0, 0.0, 0.0, 0.0, -12.7], [2.0**-126, 0.1], [0, 0, 0, 0, -127]),
        (4, [7.0, -7.0, 1.0, -3.0], [1], [0x17, 0xD9]),  # low half: 7, -7; high half: 1, -3
        (4, [7.0, -1.4, 2.6, 0.0, 14.0], [1, 2], [0x37, 0x0F, 0x07]),
        (4, [7.0, 0.0, 0.0, 0.0, -3.5, 7.0, 1.0], [1, 1], [0x07, 0x00, 0x1C, 0x07]),
    ],
)
@pytest.mark.usefixtures("both")
def test_bytes_by_hand(bits, row, scales, codes):
    """Blocks of 4. Half a step goes to the even number: 0.5 to 0, 1.5 to 2, -3.5 to -4."""
    form, row = Blocks(bits=bits, size=4), torch.tensor(row)
    coded = form.encode(row)
    assert coded.dtype == torch.uint8
    assert coded.numel() == form.nbytes(row.numel()) == 4 * len(scales) + -(-len(codes) // 4) * 4
    assert torch.equal(coded[: 4 * len(scales)].view(torch.float32), torch.tensor(scales).float())
    written = coded[4 * len(scales) :][: len(codes)]
    assert written.tolist() == [code % 256 for code in codes]
    steps = torch.tensor(scales).float().repeat_interleave(4)[: row.numel()]
    back = form.decode(coded, torch.empty(row.numel()))
    assert ((back - row).abs() <= steps / 2).all()
    assert torch.equal((back / steps).round() * steps, back)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 1e-38, 2.0**-126, 2.0**-133, 1.5e-36, 3.4e38, -3.4e38, 0.5]
)


@given(
    st.sampled_from(FORMATS),
    st.lists(NUMBERS, max_size=40),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_every_number_is_within_its_bound(form, numbers, dtype):
    row = torch.tensor(numbers, dtype=torch.float64)
    row = row.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    row = torch.where(row.isfinite(), row, 0)
    back = there_and_back(form, row)
    error = (back.double() - row.double()).abs()
    assert (error <= form.bound(row)).all()
    assert (back[row == 0] == 0).all()
    assert torch.equal(there_and_back(form, -row), -back)  # symmetric


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("numel", [0, 1, 2, 5, 63, 64, 257, 2**18 + 2 * 64 + 3])
@pytest.mark.usefixtures("both")
def test_sizes_that_no_block_and_no_chunk_divides(form, numel):
    row = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).exp()
    error = (there_and_back(form, row) - row).abs()
    assert (error <= form.bound(row)).all()
    first = there_and_back(form, row[: form.size])  # a block does not depend on the others
    assert torch.equal(first, there_and_back(form, row)[: form.size])
    if numel > 256:
        assert error.max() > 0.8 * form.bound(row).min()  # the bound is not far off
        codes = form.encode(row)[4 * -(-numel // form.size) :][:numel].view(torch.int8)
        assert codes.min() >= -form.largest or form.bits == 4


def test_the_bound_is_half_a_step():
    row = torch.tensor([254.0, 0, 0, 0, 1.0, 0])
    bound = Blocks(size=4).bound(row)
    assert bound.tolist() == pytest.approx([1, 1, 1, 1, 1 / 254, 1 / 254], rel=1e-4)
    assert Blocks(bits=4, size=4).bound(row)[0].item() == pytest.approx(254 / 14, rel=1e-4)
    worst = torch.tensor([127.0, 63.5, 0.5, -1.5])
    error = (there_and_back(Blocks(size=4), worst) - worst).abs()
    assert error.tolist() == [0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_format_rounds_once_more(dtype):
    row = torch.randn(2**14, generator=torch.Generator().manual_seed(0)).to(dtype)
    form = Blocks(size=64)
    error = (there_and_back(form, row).double() - row.double()).abs()
    assert (error <= form.bound(row)).all()
    assert (error > form.bound(row.float())).any()


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("both")
def test_what_is_not_finite_spoils_its_block_and_no_other(form, bad):
    row = torch.ones(3 * form.size)
    row[form.size] = bad
    back = there_and_back(form, row)
    spoiled = slice(form.size, 2 * form.size)
    assert not back[spoiled].isfinite().any()
    back[spoiled] = 1
    assert torch.equal(back, torch.ones_like(row))


def test_float64_beyond_float32():
    row = torch.tensor([1e-300, -1e-200, 1e300, 1.0], dtype=torch.float64)
    back = there_and_back(Blocks(size=2), row)
    assert back[:2].tolist() == [0, 0]
    assert not back[2:].isfinite().any()


@pytest.mark.usefixtures("both")
def test_it_writes_where_told_and_nowhere_else():
    form, row = Blocks(bits=4, size=4), torch.randn(9)
    memory = torch.full((3, form.nbytes(9)), 99, dtype=torch.uint8)
    out = torch.full((3, 9), 99.0)
    assert form.encode(row, memory[1]).data_ptr() == memory[1].data_ptr()
    form.decode(memory[1], out[1])
    assert (memory[::2] == 99).all()
    assert (out[::2] == 99).all()
    assert torch.equal(out[1], there_and_back(form, row))


def test_chunks_do_not_show(monkeypatch):
    row = torch.randn(1000)
    whole = [form.encode(row) for form in FORMATS]
    for chunk in (1, 100, 300):
        monkeypatch.setattr(blocks, "CHUNK", chunk)
        for form, coded in zip(FORMATS, whole, strict=True):
            scales = -(-1000 * form.bits // 8) + 4 * -(-1000 // form.size)
            assert torch.equal(form.encode(row)[:scales], coded[:scales])
            assert torch.equal(there_and_back(form, row), form.decode(coded, torch.empty(1000)))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"bits": 2}, "8 or 4, not 2"), ({"size": 5}, "even number of numbers, not 5"),
     ({"size": 0}, "even number")],
)  # fmt: skip
def test_formats_that_do_not_exist(wrong, why):
    with pytest.raises(ValueError, match=why):
        Blocks(**wrong)


def test_a_cuda_row_goes_in_one_piece():
    row = torch.empty(2**18, device="meta")
    coded = torch.empty(Blocks().nbytes(2**18), dtype=torch.uint8, device="meta")
    assert len(list(Blocks().pieces(row, coded))) == 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@given(st.sampled_from(FORMATS), st.lists(NUMBERS, max_size=40))
def test_the_loops_in_c_write_the_bytes_of_the_operators(form, numbers):
    row = torch.tensor(numbers)
    coded, back = form.encode(row), there_and_back(form, row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_loops, "ENOUGH", 0)
        again = torch.zeros_like(coded)
        assert block_loops.in_c(f"encode{form.bits}", row, again, form.size)
        used = 4 * -(-len(numbers) // form.size) + -(-len(numbers) * form.bits // 8)
        assert torch.equal(again[:used], coded[:used])
        assert torch.equal(there_and_back(form, row), back)


def test_rows_that_the_loops_cannot_read_go_by_operators(monkeypatch):
    form, row = Blocks(size=4), torch.randn(9)
    coded = form.encode(row)
    given = "encode8", row, coded, 4
    assert not block_loops.in_c(*given)  # too short
    monkeypatch.setattr(block_loops, "ENOUGH", 9)
    others = row.double(), torch.randn(18)[::2], torch.nn.Parameter(row), row.to("meta"), row[:8]
    assert not any(block_loops.in_c("encode8", other, coded, 4) for other in others)
    monkeypatch.setattr(in_c.shutil, "which", lambda name: None)
    block_loops.loops.cache_clear()
    assert not block_loops.in_c(*given)
    block_loops.loops.cache_clear()
    used = 3 * 4 + 9  # scales and codes; what follows is padding
    assert torch.equal(form.encode(row)[:used], coded[:used])
