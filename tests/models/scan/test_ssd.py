import pytest
import torch

from helpers.measure.memory import SavedTensors
from helpers.models.scan.selective import selective_scan
from helpers.models.scan.ssd import FORMS, decays, ssd
from tests.models.scan.oracle import assert_same, dual, dual_inputs, with_gradients

every_form = pytest.mark.parametrize("form", FORMS)
NAMES = ("x", "delta", "A", "B", "C", "D", "h0")


@every_form
@pytest.mark.parametrize("chunk", [1, 4, 5, 64])
@pytest.mark.parametrize("length", [0, 1, 2, 4, 13])
def test_chunks_of_any_size_give_the_recurrence(length, chunk, form):
    inputs = dual_inputs(length)

    def ours(*inputs):
        return ssd(*inputs, chunk=chunk, form=form)

    assert_same(with_gradients(ours, inputs), with_gradients(dual, inputs))


@pytest.mark.parametrize(
    "sizes",
    [{"groups": 1}, {"groups": 4}, {"heads": 6, "groups": 3}, {"width": 1, "state": 1},
     {"sequences": 1}, {"sequences": 0}],
)  # fmt: skip
@every_form
def test_groups_and_odd_sizes(sizes, form):
    inputs = dual_inputs(9, **sizes)

    def ours(*inputs):
        return ssd(*inputs, chunk=4, form=form)

    assert_same(with_gradients(ours, inputs), with_gradients(dual, inputs))


def test_chunks_of_64_unless_told():
    inputs = dual_inputs(150, heads=2, width=2, groups=1, state=2)
    assert_same(with_gradients(ssd, inputs), with_gradients(dual, inputs))


@every_form
def test_a_sequence_shorter_than_a_chunk_needs_no_room_for_one(form):
    inputs, saved = dual_inputs(5), []
    for chunk in (5, 64):
        saved.append(SavedTensors(dict))
        with saved[-1]:
            ssd(*inputs, chunk=chunk, form=form)[0].sum().backward()
    assert saved[0].peak == saved[1].peak > 0


def test_numerical_gradients():
    inputs = [t.detach() for t in dual_inputs(5, 1, 2, 2, 1, 2)]
    inputs[1] = inputs[1] + 0.1
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *i: ssd(*i, chunk=2), inputs)


def test_without_skip_and_first_state():
    x, delta, A, B, C, D, h0 = dual_inputs(7)
    assert_same(ssd(x, delta, A, B, C, chunk=4), dual(x, delta, A, B, C, 0 * D, 0 * h0))


def test_it_is_the_selective_scan_with_one_decay_for_each_head():
    x, delta, A, B, C, D, h0 = dual_inputs(11, groups=1)
    width, state = x.shape[-1], B.shape[-1]
    wide = [
        x.flatten(2), delta.repeat_interleave(width, 2),
        A.repeat_interleave(width)[:, None].expand(-1, state), B[:, :, 0], C[:, :, 0],
        D.repeat_interleave(width), h0.flatten(1, 2),
    ]  # fmt: skip
    y, last = selective_scan(*wide, form="loop")
    ours = ssd(x, delta, A, B, C, D, h0, chunk=4)
    assert_same(ours, (y.unflatten(2, (-1, width)), last.unflatten(1, (-1, width))))


@every_form
def test_strong_decay_makes_no_infinity(form):
    x, delta, A, B, C, D, h0 = dual_inputs(9, dtype=torch.float32)
    strong = [x, delta + 400, A - 1, B, C, D, h0]  # e⁴⁰⁰ overflows in float32
    leaves = [t.detach().requires_grad_() for t in strong]
    results = with_gradients(lambda *i: ssd(*i, chunk=4, form=form), leaves)
    assert all(t.isfinite().all() for t in results)


def test_the_mask_of_the_duality():
    log = torch.tensor([-1.0, -3.0, -6.0])
    wanted = torch.tensor([[0.0, -1e9, -1e9], [-2.0, 0.0, -1e9], [-5.0, -3.0, 0.0]]).exp()
    torch.testing.assert_close(decays(log), wanted)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_shape_that_does_not_fit_is_named(name):
    inputs = dict(zip(NAMES, dual_inputs(4), strict=True))
    inputs[name] = inputs[name][..., :-1]
    said = "C" if name == "B" else name  # B says how large the state is
    with pytest.raises(ValueError, match=f"{said} has the shape"):
        ssd(**inputs)


def test_what_cannot_be_scanned():
    x, delta, A, B, C, *_ = dual_inputs(4)
    with pytest.raises(ValueError, match=r"chunk is 0"):
        ssd(x, delta, A, B, C, chunk=0)
    with pytest.raises(ValueError, match="form is 'loop': choose one of fused, plain"):
        ssd(x, delta, A, B, C, form="loop")
    with pytest.raises(ValueError, match=r"4 heads do not divide into 3 groups"):
        ssd(x, delta, A, B.repeat(1, 1, 2, 1)[:, :, :3], C)
    with pytest.raises(ValueError, match=r"need \(B, L, H, P\) and \(B, L, G, N\)"):
        ssd(x[0], delta, A, B, C)
