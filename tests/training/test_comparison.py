"""What counts as equal, in numbers alone: no process trains here."""

import math
import re
from dataclasses import replace

import pytest
import torch

from helpers.comm.ledger import Entry, Ledger
from helpers.measure.memory import Memory
from helpers.training.comparison import Comparison, Side
from helpers.training.differences import Difference
from helpers.training.locate import Location

NAN = math.nan
LOSSY = {"lossy": "on purpose", "bound": 0.1}
LATER = {"step": 4, "rank": 1, "loaded": True}
SAME = {"parameter": 0.0, "parameter_name": "w", "relative": 0.0}


def side(size=1, wire=0.0, seconds=0.001, losses=(2.0, 1.0)):
    kinds = ("parameters", "gradients", "optimizer", "buffers", "activations", "peak")
    entry = Entry(call="all_reduce", group="dp", ranks=2, rank=0, payload=size, wire=wire)
    memory = Memory(**dict.fromkeys(kinds, size))
    held = {("parameters", "cpu"): size, ("gradients", "cpu"): 2 * size, ("optimizer", "cpu"): size}
    held[("optimizer", "disk")] = 2 * size
    return Side(losses=losses, seconds=seconds, memory=memory, ledger=Ledger([entry]), held=held)


def compared(*rows, dtype=torch.float64, lossy="", bound=0.0, ranks=None):
    rows = [{"rank": 0, "step": 0} | SAME | row for row in rows]
    return Comparison(
        name="x", dtype=dtype, lossy=lossy, bound=bound, twin=side(), ranks=ranks or (side(),),
        differences=tuple(Difference(**row) for row in rows),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["loss", "gradient", "parameter"])
def test_the_worst_of_all_ranks_is_nan_if_one_is(kind):
    assert compared({kind: 1.0}, {kind: 3.0}, {kind: 2.0}).worst(kind) == 3.0
    for rows in ([{kind: 1.0}, {kind: NAN}], [{kind: NAN}, {kind: 1.0}]):
        assert math.isnan(compared(*rows).worst(kind))


@pytest.mark.parametrize("kind", ["loss", "gradient", "parameter"])
def test_nan_agrees_with_nothing(kind):
    with_nan = {kind: NAN} | ({"relative": NAN} if kind == "parameter" else {"relative_loss": NAN})
    assert not compared(with_nan)
    assert not compared(with_nan, dtype=torch.bfloat16)
    assert not compared(with_nan, lossy="on purpose", bound=0.5)
    if kind != "gradient":  # an absolute difference that the relative one does not show
        assert not compared({kind: NAN})


@pytest.mark.parametrize("kind", ["loss", "gradient", "parameter"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 2e-4)])
def test_an_exact_strategy_may_differ_in_the_last_bits_only(kind, dtype, most):
    assert compared({kind: 0.9 * most}, dtype=dtype)
    far = compared({kind: 0.9 * most}, {kind: 1.1 * most, "rank": 1}, dtype=dtype)
    assert not far
    assert f"step 0, rank 1: the {kind}" in far.verdict()
    assert f"more than {most:g}" in far.verdict()


def test_a_relative_bound_holds_loss_and_parameters_and_finds_a_missing_gradient():
    for kind, far, same in (
        ("relative", 0.09, True),
        ("relative", 0.11, False),
        ("relative_loss", 0.09, True),
        ("relative_loss", 0.11, False),
        ("gradient", 1e9, True),
        ("gradient", math.inf, False),
    ):
        assert bool(compared({kind: far}, lossy="on purpose", bound=0.1)) == same
    assert compared({"relative": 0.49}, dtype=torch.bfloat16)
    assert not compared({"relative": 0.51}, dtype=torch.bfloat16)


def test_an_exact_strategy_is_held_to_relative_bounds_too():
    """Where the twin hardly moves, an absolute difference is tiny, whatever the strategy does."""
    for row, same in (
        ({"relative": 0.5}, True),
        ({"relative": 0.51}, False),
        ({"relative_loss": 0.5}, True),
        ({"relative_loss": 0.51}, False),
        ({"step": -1, "relative": 2**-8}, True),
        ({"step": -1, "relative": 2**-7}, False),
    ):
        assert bool(compared(row)) == same, row


def test_the_first_wrong_is_the_earliest_step_then_the_lowest_rank_then_the_cause():
    late, early = {"step": 1, "loss": 1.0}, {"step": 0, "gradient": 1.0, "parameter": 1.0}
    kind, row = compared(late, early | {"rank": 1}, early).first_wrong()
    assert (kind, row.step, row.rank) == ("gradient", 0, 0)
    assert compared({}, {"step": 1}).first_wrong() is None


@pytest.mark.parametrize("bound", [0.0, -0.1, 1.0, 2.0])
def test_a_bound_is_between_0_and_1(bound):
    with pytest.raises(ValueError, match="set a bound between 0 and 1"):
        compared({}, lossy="on purpose", bound=bound)
    assert compared({}, bound=bound)  # an exact strategy has none


def test_a_lossy_strategy_starts_from_rounded_parameters_at_most():
    for far, same in ((2**-9, True), (2**-7, False)):
        start = compared({"step": -1, "relative": far}, lossy="on purpose", bound=0.5)
        assert bool(start) == same
    assert start.first_wrong()[0] == "start"


@pytest.mark.parametrize(
    ("row", "given", "said"),
    [
        ({}, {}, "within 1e-12, at every step on every rank"),
        ({}, {"dtype": torch.bfloat16}, "within 0.5 of how far .* (it computes in torch.bfloat16)"),
        ({}, LOSSY, "within 0.1 of how far its parameters moved (on purpose), at every step"),
        ({"step": -1, "rank": 2, "parameter": 0.125, "relative": 0.1}, {},
         "rank 2 does not start from the twin's parameters: w is off by 0.125"),
        (LATER | {"gradient": 0.125, "gradient_name": "b"}, {},
         "step 4, after a load, rank 1: the gradient of b is off by 0.125, more than 1e-12"),
        (LATER | {"gradient": math.inf, "gradient_name": "b"}, LOSSY, "of b is off by inf"),
        ({"loss": 0.5, "relative_loss": 0.25}, LOSSY, "step 0, rank 0: the loss is off by 0.5"),
        ({"relative": 0.985}, LOSSY, "by 0.985 of how far the twin moved, more than 0.1"),
        ({"relative": 0.99}, LOSSY, "the parameters do not change, but the twin's do"),
        ({"relative": 1.02}, LOSSY, "by 1.02 of how far the twin moved, more than 0.1"),
    ],
)  # fmt: skip
def test_verdicts(row, given, said):
    words = re.escape(said).replace(re.escape(".*"), ".*")
    assert re.search(words, compared(row, **given).verdict())


def test_it_writes_itself():
    text = repr(compared({"loss": 1e-13, "gradient": 2e-13}, ranks=(side(), side())))
    first, second, *rest = text.split("\n")
    assert first == f"x on 2 ranks: {compared({}).verdict()}"
    assert second == "largest differences: loss 1e-13, gradient 2e-13, parameter 0"
    assert len(rest) == 7
    assert rest[0].split() == ["one", "process", "a", "rank"]
    assert len({len(line) for line in rest}) == 1
    where = Location(step=3, rank=1, kind="update", name="w", off=0.25, guess="Why?")
    located = repr(replace(compared({}), location=where)).split("\n")
    assert located[0] == first.replace("2 ranks", "1 ranks")
    assert located[1] == str(where)


def test_the_table_has_the_rank_with_the_most():
    ranks = (side(10, 5.0, 0.002), side(20, 7.0, 0.001), side(15, 6.0, 0.004))
    table = {what: each for what, _, each in compared({}, ranks=ranks).table()}
    sizes = {"parameters": "20", "gradients": "40", "optimizer": "60", "activations": "20"}
    assert {kind: table[f"{kind} (bytes)"] for kind in sizes} == sizes
    assert len(table) == 6  # no row of master copies
    mine = {what: own for what, own, _ in compared({}, ranks=ranks).table()}
    assert mine["optimizer (bytes)"] == "3"
    mixed = replace(side(), held={("master copies", "cpu"): 7})
    assert ("master copies (bytes)", "0", "7") in compared({}, ranks=(side(), mixed)).table()
    assert (mine["sent per step (bytes)"], mine["step (ms)"]) == ("0", "1.0")
    assert table["sent per step (bytes)"] == "7"
    assert table["step (ms)"] == "4.0"


def test_the_plot_leaves_out_the_start_and_the_load():
    rows = [{"step": -1, "parameter": 7.0}, {"step": 0, "loss": 1.0}, {"step": 1, "loss": 3.0}]
    rows += [{"step": 1, "rank": 1, "loss": 5.0}, {"step": 2, "loss": 9.0, "loaded": True}]
    drawn = compared(*rows).plot()
    lines = {line.get_label(): list(line.get_ydata()) for line in drawn.axes[1].get_lines()}
    assert lines["loss"] == [1.0, 5.0]
    ranks = (side(losses=(2.0, 1.5)), side(losses=(7.0, 7.0)))
    drawn = compared({}, {"step": 1}, ranks=ranks).plot().axes[0].get_lines()
    curves = {line.get_label(): list(line.get_ydata()) for line in drawn}
    assert curves == {"one process": [2.0, 1.0], "x": [2.0, 1.5]}
    rows = [
        {"step": k, "relative": (k + 1) / 8, "relative_loss": 0.25, "loss": 9.0} for k in range(3)
    ]
    drawn = compared(*rows, lossy="on purpose", bound=0.5).plot()
    values = [list(line.get_ydata()) for line in drawn.axes[1].get_lines()]
    assert [0.125, 0.25, 0.375] in values
    assert [0.25] * 3 in values
    assert not any(9.0 in own for own in values)
    for plot, bound in ((compared(*rows).plot(), 1e-12), (drawn, 0.5)):
        assert {bound} in [set(line.get_ydata()) for line in plot.axes[1].get_lines()]
