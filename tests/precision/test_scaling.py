"""The factor of the loss makes every decision as `torch.amp.GradScaler` does."""

import pytest
import torch

from helpers.precision.scaling import LossScale, static


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 8.0, "growth": 4.0, "backoff": 0.25, "interval": 3},
        {"scale": 2.0**125, "interval": 1},  # would overflow float32
        {"scale": (2 - 2.0**-23) * 2.0**125, "interval": 1},  # grows to the largest of float32
    ],
    ids=["default", "odd", "overflowing", "largest"],
)
def test_decisions_of_gradscaler(options):
    ours = LossScale(**options)
    theirs = torch.amp.GradScaler(
        "cpu", ours.scale, ours.growth, ours.backoff, growth_interval=ours.interval
    )
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    torch.manual_seed(0)
    skips = 0
    for step in range(60):
        bad = bool(torch.rand(()) < 0.15) and step > 10
        assert theirs.get_scale() == ours.scale
        before = weight.detach().clone()
        gradient = float("inf") if bad else ours.scale
        theirs.scale(torch.zeros(1))  # makes its lazy tensors
        weight.grad = torch.tensor([gradient])
        theirs.step(optimizer)
        skipped = torch.equal(before, weight)
        assert skipped == bad
        theirs.update()
        ours.update(skipped=skipped)
        skips += skipped
    assert theirs.get_scale() == ours.scale
    assert skips > 3


def test_a_static_scale_never_changes():
    scale = static(128.0)
    for skipped in (True, False) * 1500:
        scale.update(skipped=skipped)
    assert scale.scale == 128
    for _ in range(2001):
        scale.update(skipped=False)
    assert scale.scale == 128


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "positive"),
        ({"scale": -1.0}, "positive"),
        ({"scale": float("inf")}, "positive"),
        ({"scale": float("nan")}, "positive"),
        ({"growth": float("inf")}, r"growth .* not inf and 0\.5"),
        ({"growth": 0.5}, "growth"),
        ({"backoff": 0.0}, "backoff"),
        ({"backoff": 2.0}, "backoff"),
        ({"interval": 0}, "interval"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LossScale(**options)


def test_the_usual_settings_are_those_of_gradscaler():
    ours, theirs = LossScale(), torch.amp.GradScaler("cpu")
    assert ours.scale == theirs.get_scale() == 65_536
    assert ours.growth == theirs.get_growth_factor()
    assert ours.backoff == theirs.get_backoff_factor()
    assert ours.interval == theirs.get_growth_interval()


def test_a_state_replaces_both_numbers():
    scale = LossScale(scale=4.0, interval=3)
    scale.update(skipped=False)
    assert scale.state() == {"scale": 4.0, "good_steps": 1}
    other = LossScale(interval=3)
    other.update(skipped=False)
    other.update(skipped=False)
    other.load(scale.state())
    assert other == scale
