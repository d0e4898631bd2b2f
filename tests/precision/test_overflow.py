"""The first operation that is not finite is named, with its line, forward and backward."""

import pytest
import torch

from helpers.models.gpt import GPTConfig, build
from helpers.precision.overflow import Place, find_overflow

HALF = torch.float16


def test_forward():
    def function():
        x = torch.full((4,), 300.0, dtype=HALF, requires_grad=True)
        y = x / 2
        z = x * x  # here
        return (z + y).sum()

    found = find_overflow(function)
    assert (found.operation, found.kind, found.backward) == ("mul", "inf", False)
    assert found.dtype is HALF
    assert found.largest == 300
    assert found.place == found.caller
    assert found.place.text == "z = x * x  # here"
    assert found.place.line == function.__code__.co_firstlineno + 3
    assert found.place.file == __file__
    assert found.exponents.counts == {8: 8}
    assert "mul made inf in torch.float16" in str(found)
    assert "6.55e+04" in str(found)


def test_nan_and_its_kind():
    found = find_overflow(lambda: torch.zeros(2) / torch.zeros(2))
    assert (found.operation, found.kind) == ("div", "NaN")
    assert (found.dtype, found.largest, found.exponents.zeros) == (torch.float32, 0, 4)
    assert "div made NaN in torch.float32" in str(found)
    assert "the largest number of the format is 3.4e+38" in str(found)
    assert "called from" not in str(found)
    # the infinity is given, and its difference is the first NaN
    found = find_overflow(lambda x: x * 2 - x, torch.tensor(float("inf")))
    assert (found.operation, found.kind) == ("sub", "NaN")
    found = find_overflow(lambda x: x.mul_(1000).add_(1), torch.full((2,), 1000.0, dtype=HALF))
    assert (found.operation, found.kind) == ("mul", "inf")  # its input, not its result
    assert found.largest == 1000
    # an infinity is new beside a NaN that was given, and magnitudes have no sign
    found = find_overflow(lambda x: x * 300, torch.tensor([float("nan"), -300.0], dtype=HALF))
    assert (found.operation, found.kind, found.largest) == ("mul", "inf", 300)


def test_what_is_given_is_not_new():
    """An infinity as a number, in a list, or by keyword; and an input that is written over."""
    inf, one = float("inf"), torch.ones(1)
    assert find_overflow(lambda: one * inf) is None
    assert find_overflow(lambda: torch.cat([one, one * inf])) is None
    assert find_overflow(lambda: torch.cat([one * inf, one])) is None  # wherever it is
    assert find_overflow(lambda: torch.cat([one * float("nan"), one])) is None
    assert find_overflow(lambda: torch.full((1,), fill_value=inf)) is None
    assert find_overflow(torch.add, one, other=one * inf) is None

    def written(x):
        x *= 1000
        return x

    found = find_overflow(written, torch.full((2,), 1000.0, dtype=HALF))
    assert (found.operation, found.kind, found.largest) == ("mul", "inf", 1000)

    def stored(x, y):
        x[0] = y
        return x

    found = find_overflow(stored, torch.zeros(2, dtype=HALF), torch.tensor(1e6))
    assert (found.operation, found.kind, found.largest) == ("setitem", "inf", 1e6)
    assert found.dtype is HALF
    assert find_overflow(stored, torch.zeros(2), torch.tensor(inf)) is None
    found = find_overflow(lambda x: x.exp(), x=torch.full((2,), 100.0))
    assert (found.operation, found.largest) == ("exp", 100)
    found = find_overflow(lambda x: torch.exp(x, out=x), torch.full((2,), 100.0))
    assert (found.operation, found.largest) == ("exp", 100)
    assert find_overflow(lambda: torch.ones(3) + 1) is None


def test_the_search_ends_with_the_function():
    before = torch.overrides._get_current_function_mode_stack()
    find_overflow(lambda: torch.zeros(1) / 0)
    with pytest.raises(ZeroDivisionError):
        find_overflow(lambda: 1 / 0)
    assert torch.overrides._get_current_function_mode_stack() == before


def test_the_backward_names_the_line_of_the_forward():
    def function():
        x = torch.zeros(3, requires_grad=True)
        y = torch.sqrt(x)  # slope at 0: infinite
        y.sum().backward()

    found = find_overflow(function)
    assert (found.operation, found.kind, found.backward) == ("sqrt", "inf", True)
    assert found.place.text.startswith("y = torch.sqrt(x)")
    assert "the backward of sqrt" in str(found)
    x = torch.full((1,), 1e-7, dtype=HALF, requires_grad=True)
    found = find_overflow((x * 60_000 * 60_000).backward)  # the forward was before
    assert (found.operation, found.kind, found.backward) == ("MulBackward0", "inf", True)


def test_of_several_in_a_backward_the_first_counts():
    def function():
        x = torch.ones(3, requires_grad=True)
        torch.sqrt(x * 0).sum().backward()  # an infinite slope, and then 0 times infinity

    found = find_overflow(function)
    assert (found.operation, found.kind) == ("sqrt", "inf")


def test_the_largest_of_all_inputs():
    pair = (torch.tensor(value, dtype=HALF) for value in (10.0, -30_000.0))
    assert find_overflow(torch.mul, *pair).largest == 30_000


def test_a_sum_of_gradients():
    def function():
        x = torch.ones(1, dtype=HALF, requires_grad=True)
        y = x * 1.0
        (y * 40_000 - 39_000).add(y * 40_000 - 40_000).sum().backward()

    found = find_overflow(function)
    assert found.operation == "the sum of gradients into mul"
    assert found.kind == "inf"
    assert found.place.text == "y = x * 1.0"


def test_masks_are_no_overflow():
    model = build(GPTConfig(vocab=17, context=8, width=32, attention="explicit"))
    tokens = torch.arange(16).reshape(2, 8)

    def step():
        model.criterion(model(tokens), tokens)[0].backward()

    assert find_overflow(step) is None
    with torch.no_grad():
        model.blocks["0"].mlp.down.weight.fill_(float("1e38"))
    found = find_overflow(step)
    assert found.place.file.endswith("mlp.py")
    assert found.place != found.caller
    assert found.caller.text.startswith("model.criterion(")
    assert "called from" in str(found)
    picture = found.draw()
    assert "Inputs of" in repr(picture)
    assert "fp32 from -149 to 127" in repr(picture)


def test_a_place_in_words():
    assert str(Place("/x/gpt.py", 7, "y = x")) == "line 7 of gpt.py: y = x"
    assert str(Place("/x/ipykernel_12/34567.py", 7, "y = x")) == "line 7 of the cell: y = x"


def test_errors_of_the_function():
    with pytest.raises(ZeroDivisionError):
        find_overflow(lambda: 1 / 0)

    def both():
        torch.log(torch.zeros(1))
        raise RuntimeError("later")

    assert find_overflow(both).operation == "log"


def test_a_product_hides_several_nodes_of_the_graph():
    """Each is looked at: the sum over the matrices that share a factor, and not only the last."""

    def function():
        x = torch.ones(1, 1, 1, dtype=HALF, requires_grad=True) * 1.0
        y = torch.ones(2, 1, 1, 1, dtype=HALF, requires_grad=True) * 1.0
        z = x @ y
        (z * 40_000).sum(dtype=torch.float32).backward()

    found = find_overflow(function)
    assert (found.operation, found.kind, found.backward) == ("matmul", "inf", True)
    assert found.place.text == "z = x @ y"


def test_later_overflows_do_not_hide_the_first():
    def function():
        x = torch.full((2,), 300.0, dtype=HALF)
        y = x * x
        return y, torch.full((1,), 100.0).exp(), torch.zeros(1) / 0

    found = find_overflow(function)
    assert (found.operation, found.kind, found.largest) == ("mul", "inf", 300)


def test_an_overflow_without_an_input():
    found = find_overflow(lambda: torch.tensor([1e6, 1.0], dtype=HALF))
    assert (found.operation, found.kind, found.largest) == ("tensor", "inf", 0)
    assert found.exponents.total == 0
