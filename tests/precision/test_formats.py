"""Formats as data agree with PyTorch's own conversions, number by number."""

import pytest
import torch

from helpers.precision.formats import (
    BF16,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    format_of,
)

SMALL = (BF16, FP16, E4M3, E5M2)


def by_torch(form) -> torch.Tensor:
    """All numbers of the format, in the order of their codes, decoded by PyTorch."""
    codes = torch.arange(2**form.bits)
    codes = codes.to(torch.uint8) if form.bits == 8 else codes.to(torch.int32).to(torch.int16)
    return codes.view(form.dtype).double()


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_every_code_is_the_number_of_pytorch(form):
    decoded, expected = form.decode(torch.arange(2**form.bits)), by_torch(form)
    assert torch.equal(decoded.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(decoded[there], expected[there])
    assert torch.equal(decoded[there].signbit(), expected[there].signbit())  # -0.0, too


@pytest.mark.parametrize("form", [f for f in FORMATS if f.dtype is not None], ids=lambda f: f.name)
def test_ranges_are_those_of_pytorch(form):
    known = torch.finfo(form.dtype)
    assert form.bits == known.bits
    assert form.largest == known.max
    assert form.smallest_normal == known.smallest_normal
    assert form.epsilon == known.eps


def test_ranges_of_the_papers():
    # Micikevicius et al. 2018: fp16's exponents; 2022, table 1: e4m3 and e5m2
    assert (FP16.smallest_exponent, FP16.largest) == (-14, 65504)
    assert FP16.smallest_subnormal == 2.0**-24
    assert FP16.exponents == (-24, -14, 15)
    assert E4M3.exponents == (-9, -6, 8)
    assert (E4M3.largest, E4M3.smallest_normal, E4M3.smallest_subnormal) == (448, 2**-6, 2**-9)
    assert (E5M2.largest, E5M2.smallest_normal, E5M2.smallest_subnormal) == (57344, 2**-14, 2**-16)
    # TF32: the range of fp32, the precision of fp16
    assert (TF32.bits, TF32.smallest_normal, TF32.epsilon) == (19, FP32.smallest_normal, 2**-10)
    assert FP64.smallest_subnormal == 5e-324


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_values_and_their_spacing(form):
    values = form.values()
    assert values.diff().min() > 0
    assert values.isfinite().all()
    assert int((values == 0).sum()) == 1
    positive = values[values >= 0]
    assert torch.equal(form.spacing(positive[:-1]), positive.diff())
    assert torch.equal(form.spacing(-positive[:-1]), positive.diff())
    between = (positive[1:] + positive[:-1]) / 2
    assert torch.equal(form.spacing(between), positive.diff())


def test_2049_is_not_in_fp16():
    assert 2048 in FP16.values()
    assert 2050 in FP16.values()
    assert 2049 not in FP16.values()
    assert FP16.spacing(torch.tensor(2049.0)) == 2


def test_what_is_refused():
    with pytest.raises(ValueError, match="codes from 0 to 255"):
        E4M3.decode(torch.tensor([256]))
    with pytest.raises(ValueError, match="codes from 0 to 255"):
        E4M3.decode(torch.tensor([-1]))
    with pytest.raises(ValueError, match=r"fp32 has 2\^32 numbers: too many to list"):
        FP32.values()
    assert len(TF32.values()) == 2 * 255 * 2**10 - 1  # 19 bits are not too many
    assert E4M3.decode(torch.zeros(0)).tolist() == []
    with pytest.raises(ValueError, match=r"torch\.int8"):
        format_of(torch.int8)
    assert all(format_of(form.dtype) is form for form in (FP64, FP32, *SMALL))


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
def test_beyond_the_ends_the_spacing_is_that_of_the_ends(form):
    ends = [0.0, form.smallest_subnormal, form.smallest_normal, form.largest]
    if form.largest < 1e300:
        ends.append(16 * form.largest)
    least, most = form.smallest_subnormal, form.epsilon * 2.0**form.largest_exponent
    wanted = [least, least, least, most, most][: len(ends)]
    x = torch.tensor(ends, dtype=torch.float64)
    assert form.spacing(x).tolist() == form.spacing(-x).tolist() == wanted
