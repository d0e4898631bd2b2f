"""The hint for each kind of wrong number and wrong message of a parallel linear layer."""

import pytest

from helpers.check.week04 import linear
from helpers.check.week04.kinds import INFINITE, OTHER, ROUNDED
from helpers.check.week04.linear_hints import hint_message, hint_value

SENT = [("all_reduce", 240)]
ELSE = "Write the layer for N = 1 first"
SHAPE = "A wrong shape. Which dims must the result have"
OWN_GROUP = [
    ("N times the right one", "does this backward need a message"),
    ("the sum over the ranks", "which other rank has this group"),
    ("the mean over the ranks", "which other rank has this group"),
    ("the right one, divided by N", "belongs to one rank: nothing to share"),
    ("the whole gradient", "Return this rank's group"),
    ("transposed", "Yours is transposed"),
    ("the mean over the tokens", "added, or averaged"),
    ("the gradient of rank 2", "This is another rank's group"),
    ("of shape (3,), not (4,)", SHAPE),
    (OTHER, ELSE),
]


def hint(exercise, name, kind, sent=(), phase="forward"):
    other = {"forward": "backward", "backward": "forward"}[phase]
    run = {name: kind, "messages": {phase: list(sent), other: [("broadcast", 1)] * 2}}
    return hint_value(exercise, name, run, phase)


@pytest.mark.parametrize(
    ("kind", "sent", "words"),
    [
        ("N times the products", SENT, "You sum in the forward"),
        ("N times the products", [], "You sum in the forward"),
        ("N times the right one", [], "You sum in the forward"),
        ("the sum of all ranks' outputs", SENT, "You sum in the forward"),
        ("the sum of all ranks' outputs", [], ELSE),
        ("all outputs", SENT, "Which rows of W are this rank's own"),
        ("every N-th output", [], "Yours are strided"),
        ("the outputs of rank 2", SENT, "another rank's outputs"),
        ("without the bias", SENT, "Which F/N numbers belong to this rank"),
        ("with rank 1's bias", [], "Which F/N numbers belong to this rank"),
        ("with W instead of its transpose", SENT, "outputs are rows of W"),
        ("of shape (2, 3), not (2, 4)", SENT, SHAPE),
        (INFINITE, SENT, ELSE),
    ],
)
def test_the_output_of_a_column(kind, sent, words):
    assert words in hint("column_linear", "y", kind, sent)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("this rank's part of the sum", "Which message does the backward need"),
        ("this rank's part, divided by N", "is its gradient a sum or a mean"),
        ("the mean over the ranks", "is its gradient a sum or a mean"),
        ("N times the right one", "Summed once too often"),
        ("from summed gradients of y", "Multiply by this rank's part of W first"),
        ("from summed gradients of y, summed", "Multiply by this rank's part of W first"),
        ("of shape (3,), not (4,)", SHAPE),
        (OTHER, ELSE),
    ],
)
def test_the_gradient_of_a_column_s_input(kind, words):
    assert words in hint("column_linear", "of_x", kind, phase="backward")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("the sum, and N times the bias", "How often is it in the sum"),
        ("this rank's part of the sum", "parts one y"),
        ("this rank's part of the sum, and the bias", "parts one y"),
        ("the sum, without the bias", "Where does the bias come in"),
        ("the mean over the ranks, and the bias", "their sum or their mean"),
        ("the mean over the ranks", "their sum or their mean"),
        ("the right one, divided by N", "their sum or their mean"),
        ("with rank 0's columns of W on each rank", "Which columns multiply this rank's inputs"),
        ("with W instead of its transpose", "inputs are columns of W"),
        ("of shape (3,), not (4,)", SHAPE),
        (OTHER, ELSE),
    ],
)
def test_the_output_of_a_row(kind, words):
    assert words in hint("row_linear", "y", kind)


@pytest.mark.parametrize(("kind", "words"), OWN_GROUP)
@pytest.mark.parametrize(
    ("exercise", "name"),
    [
        ("column_linear", "of_weight"), ("column_linear", "of_bias"),
        ("row_linear", "of_x"), ("row_linear", "of_weight"),
    ],
)  # fmt: skip
def test_the_gradient_of_a_rank_s_own_group(exercise, name, kind, words):
    assert words in hint(exercise, name, kind, phase="backward")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("N times the right one", "What would a sum over ranks count N times"),
        ("the right one, divided by N", "need a share, or all of it"),
        *(pair for pair in OWN_GROUP if "N" not in pair[0]),
    ],
)
def test_the_gradient_of_a_row_s_bias(kind, words):
    assert words in hint("row_linear", "of_bias", kind, phase="backward")


@pytest.mark.parametrize("name", ["y", "of_x", "of_weight", "of_bias"])
@pytest.mark.parametrize("exercise", ["column_linear", "row_linear"])
def test_what_every_value_may_be(exercise, name):
    assert "of another dtype" in hint(exercise, name, ROUNDED)
    words = f"`{name}` is not a tensor. What does your last line return?"
    assert hint(exercise, name, "no tensor: NoneType") == words


@pytest.mark.parametrize("layer", [linear.column, linear.row])
def test_each_kind_has_a_hint_of_its_own(layer):
    _, _, candidates, _ = layer(1, 4, 12)
    for name, kinds in candidates.items():
        for kind in list(kinds)[1:]:
            assert ELSE not in hint(f"{layer.__name__}_linear", name, kind, SENT, "backward"), kind


@pytest.mark.parametrize(
    ("sent", "due", "words"),
    [
        ([], 240, "this rank has computed other ranks' parts too"),
        (SENT, 0, "Which message can you leave out"),
        ([("all_gather", 60)], 0, "Which message can you leave out"),
        ([("all_reduce", 240), ("all_gather", 60)], 240, "adds them up, and gives the result"),
        ([("reduce_scatter", 240)], 240, "adds them up, and gives the result"),
        (SENT * 2, 240, "One all-reduce is enough"),
        (SENT, 120, "another size than B T D numbers"),
    ],
)
def test_the_hint_for_messages(sent, due, words):
    assert words in hint_message("column_linear", "backward", sent, due)
