"""What a rule sees of a call."""

from helpers.parallel.tensor.call import PARTIAL, WHOLE, Call, PlacementError, said


def test_an_argument_is_found_by_its_place_or_by_its_name():
    call = Call("mean", [0], [(2, 3)], ("x", "by place"), {"keepdim": False, "dtype": None})
    assert call.argument(1, "dim") == "by place"
    assert call.argument(0, "input") == "x"
    assert call.argument(2, "keepdim", True) is False  # given, and false
    assert call.argument(3, "dtype", "default") is None
    assert call.argument(2, "other", "default") == "default"  # the first place without an argument
    assert call.argument(5, "other") is None


def test_a_name_comes_before_a_place():
    """A method's own tensor may be the only argument that is given by its place."""
    assert Call("cat", [0], [(2,)], ("x", 1), {"dim": 2}).argument(1, "dim", 0) == 2


def test_placements_in_words():
    assert [said(placement) for placement in (WHOLE, PARTIAL, 0, 2)] == [
        "whole", "partial", "cut(0)", "cut(2)",
    ]  # fmt: skip


def test_an_operator_does_not_hide_the_error():
    """After a TypeError, + would try the other side's method."""
    assert issubclass(PlacementError, ValueError)
    assert not issubclass(PlacementError, TypeError)
