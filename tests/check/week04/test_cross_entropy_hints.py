"""The hint for each kind of wrong loss, and of wrong gradient."""

import math

import pytest
import torch

from helpers.check.week04 import cross_entropy_hints as hints
from helpers.check.week04.cross_entropy_hints import hint_gradient, hint_loss
from helpers.check.week04.cross_entropy_values import Cut, gradients, losses
from helpers.check.week04.kinds import INFINITE, OTHER, RIGHT, ROUNDED

LOCAL = "a softmax over this rank's part"
MEAN = "not a mean: the caller divides once"


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("ignored places counted", "Where does your sum include it"),
        ("ignored places counted, lowered", "Where does your sum include it"),
        ("the mean", MEAN),
        ("the mean over all places", MEAN),
        ("not summed", MEAN),
        ("local softmax", LOCAL),
        ("local softmax, own targets", LOCAL),
        ("local softmax, summed", LOCAL),
        ("local softmax, own maximum", LOCAL),
        ("own targets", "Every rank needs the whole loss"),
        ("own target's logit", "How does it reach them"),
        ("own target's logit, lowered", "How does it reach them"),
        ("each rank's maximum", "Which maximum must all ranks subtract"),
        ("each rank's maximum, put back", "Which maximum must all ranks subtract"),
        ("every rank's row, lowered", "What must the other ranks contribute"),
        ("rows not shifted", "Which row is the target's"),
        ("N times", "Which all-reduce is too much"),
        ("divided by N", "already whole"),
        (ROUNDED, "of another dtype"),
        ("of shape (2,), not ()", "Over which dims do you sum"),
        (OTHER, "Which of the two needs all ranks"),
        ("no tensor: NoneType", "Which of the two needs all ranks"),
    ],
)
def test_the_hint_for_a_loss(kind, hint):
    assert hint in hint_loss(kind, 3.0, sent=True)


def test_a_loss_without_messages_is_a_local_one():
    assert LOCAL in hint_loss(OTHER, 3.0, sent=False)
    assert "Which all-reduce is too much" in hint_loss("N times", 3.0, sent=False)


def test_a_loss_that_is_not_finite():
    assert "The logarithm of 0" in hint_loss(INFINITE, -math.inf, sent=True)
    for shown in (math.inf, math.nan, None):
        assert "exp of a large logit overflows" in hint_loss(INFINITE, shown, sent=False)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (INFINITE, "exp overflows in the gradient"),
        ("ignored places", "Where does your sum include it"),
        ("softmax alone, ignored places too", "and what is the gradient at a place"),
        ("local softmax", LOCAL),
        ("local softmax, own targets", LOCAL),
        ("softmax alone", "gradient of the logarithm of the sum"),
        ("own targets", "Which places are zero in your gradient"),
        ("every rank's row", "On which rank is the target's row"),
        ("rows not shifted", "Which row is the target's"),
        ("the mean", MEAN),
        ("the mean over all places", MEAN),
        ("the sign", "makes the loss smaller"),
        ("all logits", "of this rank's logits only"),
        ("N times", "Which all-reduce is too much"),
        ("divided by N", "already whole"),
        (ROUNDED, "of another dtype"),
        ("of shape (2,), not (2, 3)", "Over which dims do you sum"),
        (OTHER, "Which of the two needs all ranks"),
    ],
)
def test_the_hint_for_a_gradient(kind, hint):
    assert hint in hint_gradient(kind)


def test_each_wrong_value_has_a_hint_of_its_own():
    cut = Cut(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), (1, 2), 0)
    for kind in losses(cut):
        assert (hint_loss(kind, 1.0, sent=True) == hints.LAST) == (kind == RIGHT)
    for kind in gradients(cut):
        assert (hint_gradient(kind) == hints.LAST) == (kind == RIGHT)
