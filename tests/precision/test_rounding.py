"""Rounding equals PyTorch's conversion; stochastic rounding is unbiased, and goes no further."""

import pytest
import torch

from helpers.precision.formats import BF16, E4M3, E5M2, FP16, FP32, TF32
from helpers.precision.rounding import nearest, neighbours, stochastic

SMALL = (BF16, FP16, E4M3, E5M2)


def tricky(form) -> torch.Tensor:
    """In float32: numbers of the format, the middles between them, and their next numbers."""
    values = form.values()
    middles = (values[1:] + values[:-1]) / 2
    exact = torch.cat([values, middles]).float()
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    return torch.cat([exact, exact.nextafter(up), exact.nextafter(down)])


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_nearest_is_the_conversion_of_pytorch(form):
    x = tricky(form)
    assert torch.equal(nearest(x, form), x.to(form.dtype).float())
    torch.manual_seed(0)
    x = torch.randn(20_000) * 2.0 ** torch.randint(form.smallest_exponent - 9, 5, (20_000,))
    assert torch.equal(nearest(x, form), x.to(form.dtype).float())


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_beyond_the_largest(form):
    half = form.spacing(torch.tensor(form.largest)) / 2
    x = torch.tensor([form.largest + half * 0.99, form.largest + half * 1.01, float("inf")])
    x = torch.cat([x, -x]).double()
    instead = float("inf") if form.infinities else float("nan")
    most = form.largest
    torch.testing.assert_close(
        nearest(x, form),
        torch.tensor([most, instead, instead, -most, -instead, -instead]).double(),
        equal_nan=True,
        rtol=0,
        atol=0,
    )
    most = torch.tensor([most] * 3 + [-most] * 3).double()
    assert torch.equal(nearest(x, form, saturate=True), most)
    assert nearest(torch.tensor([float("nan")]), form).isnan().all()
    assert nearest(torch.tensor([float("nan")]), form, saturate=True).isnan().all()


def test_tf32_keeps_ten_bits_and_the_range():
    x = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 3e38, 2.0**-126])
    assert nearest(x, TF32).tolist() == [
        1 + 2**-10,
        1,
        1 + 2**-9,
        float(nearest(torch.tensor(3e38), TF32)),
        2.0**-126,
    ]
    assert abs(float(nearest(torch.tensor(3e38), TF32)) / 3e38 - 1) < 2**-11


def test_rounding_to_float32_from_float64():
    torch.manual_seed(0)
    x = torch.randn(1000, dtype=torch.float64)
    assert torch.equal(nearest(x, FP32), x.float().double())


def test_no_double_rounding():
    # PyTorch converts float64 to float16 by way of float32: it rounds twice, and gets 1.
    x = torch.tensor([1 + 2**-11 + 2**-40], dtype=torch.float64)
    assert nearest(x, FP16).item() == 1 + 2**-10


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_neighbours_enclose_each_number(form):
    values = form.values()
    below, above = neighbours(values, form)
    assert torch.equal(below, values)
    assert torch.equal(above, values)
    middles = (values[1:] + values[:-1]) / 2
    below, above = neighbours(middles, form)
    assert torch.equal(below, values[:-1])
    assert torch.equal(above, values[1:])
    far = torch.tensor([form.largest * 1.5, -form.largest * 1.5], dtype=torch.float64)
    below, above = neighbours(far, form)
    assert below[0] == form.largest
    assert above[1] == -form.largest
    if form.infinities:
        assert above[0] == float("inf")
        assert below[1] == -float("inf")
    else:
        assert above[0].isnan()
        assert below[1].isnan()


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_neighbours_of_what_is_not_finite(form):
    """Infinity is a number of its own, and so its own neighbour; NaN never becomes a number."""
    x = torch.tensor([float("inf"), -float("inf"), float("nan")])
    wanted = x if form.infinities else torch.full_like(x, torch.nan)
    for found in neighbours(x, form):
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_stochastic_rounding_takes_a_neighbour(form):
    x = tricky(form)
    x = x[x.abs() <= form.largest]
    below, above = neighbours(x, form)
    rounded = stochastic(x, form, torch.Generator().manual_seed(1))
    assert ((rounded == below) | (rounded == above)).all()
    assert torch.equal(rounded[below == above], x[below == above])  # numbers of the format stay


def test_stochastic_rounding_is_unbiased():
    n = 40_000
    for share in (0.1, 0.25, 0.5, 0.9):
        for start, step in ((1.0, 2**-7), (-3.0, 2**-6), (0.0, BF16.smallest_subnormal)):
            x = torch.full((n,), start + share * step, dtype=torch.float64)
            rounded = stochastic(x, BF16, torch.Generator().manual_seed(2))
            upper = float((rounded > x).double().mean())
            # 4 standard errors of a share: a sound rounding fails once in 16,000 such checks
            assert abs(upper - share) < 4 * (share * (1 - share) / n) ** 0.5
    # rounding to the nearest would give 0 or 1


def test_stochastic_rounding_is_seeded_and_beyond_the_largest_it_is_the_nearest():
    x = torch.rand(100)
    first, again, other = (
        stochastic(x, BF16, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    far = torch.tensor([65504.0, 65505.0, 1e6, -1e6, float("inf")])
    rounded = stochastic(far, FP16, torch.Generator().manual_seed(3))
    assert rounded.tolist() == [65504, 65504, float("inf"), -float("inf"), float("inf")]
    assert stochastic(torch.tensor([float("nan")]), FP16, torch.Generator()).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_keeps_the_dtype_of_its_input(dtype):
    x = torch.tensor([0.3, -500.0, 0.0], dtype=dtype)
    made = [nearest(x, E4M3), nearest(x, E4M3, saturate=True), *neighbours(x, E4M3)]
    made.append(stochastic(x, E4M3, torch.Generator().manual_seed(0)))
    assert [one.dtype for one in made] == [dtype] * 5
