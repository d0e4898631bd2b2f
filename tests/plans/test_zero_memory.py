"""ZeRO's memory: every figure that the paper prints, and what fits into a GPU."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plans.zero_memory import (
    FP32,
    MIXED,
    STAGES,
    Moment,
    States,
    largest_model,
    largest_models,
    moments,
    padded,
    peak,
    zero_memory,
)

PUBLISHED = json.loads(Path(__file__).with_name("published_zero.json").read_text())
SIZES = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1000e9}
V100 = 32e9  # bytes: the GPU of table 1
CELLS = [
    (model, int(ranks), stage, printed)
    for model, rows in PUBLISHED["table1"].items()
    for ranks, row in rows.items()
    for stage, printed in enumerate(row, 1)
]


def agrees(printed: str, value: float) -> bool:
    """Within one unit of the last printed digit: the paper rounds some numbers, cuts others."""
    unit = 10.0 ** Decimal(printed).as_tuple().exponent
    return abs(value - float(printed)) <= unit * (1 + 1e-9)


@pytest.mark.parametrize(("stage", "printed"), list(enumerate(PUBLISHED["figure1"]["printed"])))
def test_figure_1(stage, printed):
    memory = zero_memory(PUBLISHED["figure1"]["params"], PUBLISHED["figure1"]["ranks"], stage)
    assert agrees(printed, memory.total / 1e9)


@pytest.mark.parametrize(("model", "ranks", "stage", "printed"), CELLS)
def test_table_1(model, ranks, stage, printed):
    assert agrees(printed, zero_memory(SIZES[model], ranks, stage).total / 1e9)


def test_table_1_is_whole():
    assert len(CELLS) == 3 * 6 * 3


@pytest.mark.parametrize(("model", "stage", "ranks"), PUBLISHED["table1_first_fit_32GB"])
def test_what_the_paper_prints_in_bold_is_the_first_that_fits(model, stage, ranks):
    """Published for GPUs of 32 GB."""
    columns = [int(n) for n in PUBLISHED["table1"][model]]
    fits = [n for n in columns if largest_model(V100, n, stage) >= SIZES[model]]
    assert fits[0] == ranks


@pytest.mark.parametrize(("stage", "printed"), list(enumerate(PUBLISHED["table2"]["largest"])))
def test_table_2_the_largest_model_in_32_gb(stage, printed):
    assert agrees(printed, largest_model(V100, PUBLISHED["table2"]["ranks"], stage) / 1e9)


def test_the_kinds_of_each_stage():
    by_stage = [zero_memory(1200, 4, stage).by_kind() for stage in STAGES]
    assert by_stage == [
        {"parameters": 2400, "gradients": 2400, "optimizer": 14400},
        {"parameters": 2400, "gradients": 2400, "optimizer": 3600},
        {"parameters": 2400, "gradients": 600, "optimizer": 3600},
        {"parameters": 600, "gradients": 600, "optimizer": 3600},
    ]


def test_fp32_has_as_many_bytes_and_other_shares():
    assert FP32.total == MIXED.total == 16
    memory = zero_memory(1200, 4, 1, each=FP32)
    assert memory.by_kind() == {"parameters": 4800, "gradients": 4800, "optimizer": 2400}


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_padding(params, world):
    room = padded(params, world)
    assert room % world == 0
    assert params <= room < params + world


@given(st.integers(1, 4096), st.sampled_from(STAGES), st.floats(0, 1e9))
def test_the_largest_model_fills_the_memory(world, stage, reserved):
    params = largest_model(80e9, world, stage, reserved=reserved)
    assert zero_memory(params, world, stage).total + reserved == pytest.approx(80e9)


def test_what_does_not_fit_at_all():
    assert largest_model(80e9, 8, 3, reserved=81e9) == 0


def test_the_chart_s_data():
    found = largest_models(80e9, (1, 8), stages=(0, 3))
    assert found == {"stage 0": {1: 5e9, 8: 5e9}, "stage 3": {1: 5e9, 8: 40e9}}
    options = {"each": FP32, "reserved": 16e9}
    every = largest_models(80e9, iter([1, 2]), **options)  # worlds that can be read only once
    assert every["stage 0"] == {1: 4e9, 2: 4e9}
    assert every["stage 1"] == {1: 4e9, 2: 64e9 / 12}
    assert list(every) == ["stage 0", "stage 1", "stage 2", "stage 3"]


NOTHING = States(parameters=0, gradients=0, optimizer=0)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: zero_memory(10, 2, 4), "1, 2 and 3, not 4"),
        (lambda: zero_memory(10, 2, -1), "1, 2 and 3, not -1"),
        (lambda: zero_memory(10, 2, True), "1, 2 and 3, not True"),
        (lambda: zero_memory(10, 0, 1), "at least one rank, not 0"),
        (lambda: zero_memory(-1, 2, 1), "0 or more parameters, not -1"),
        (lambda: zero_memory(float("nan"), 2, 1), "0 or more parameters, not nan"),
        (lambda: zero_memory(10, float("nan"), 1), "at least one rank, not nan"),
        (lambda: padded(10, 0), "at least one rank, not 0"),
        (lambda: States(parameters=2, gradients=-2, optimizer=12), "bytes are 0 or more"),
        (lambda: States(parameters=2, gradients=2, optimizer=-1), "bytes are 0 or more"),
        (lambda: States(parameters=-2, gradients=2, optimizer=12), "bytes are 0 or more"),
        (lambda: largest_model(1e9, 2, 1, each=NOTHING), "set no limit"),
    ],
)
def test_nonsense_is_refused(wrong, why):
    with pytest.raises(ValueError, match=why):
        wrong()


def test_a_model_without_parameters_takes_no_bytes():
    assert zero_memory(0, 3, 2) == NOTHING


def test_what_is_done_to_the_kinds_changes_no_states():
    states = States(parameters=1, gradients=2, optimizer=4)
    states.by_kind().clear()
    assert states.total == 7


def test_many_units():
    """In the backward: parameters, gradients, the next unit's buffer, the last unit's buffer."""
    top = peak([10.0] * 5, 2, optimizer=0)
    assert top.name == "backward of unit 1"
    assert top.total == 25 + 3 * 5 + 4 * 10


def test_of_equal_moments_the_first_is_the_peak():
    assert peak([0, 0], 2) == moments([0, 0], 2)[0]


def test_every_moment_by_hand():
    """Units of 9, 30 and 3 bytes on 3 ranks, Adam: the shards are 3 times 42/3 = 42 bytes."""
    assert moments([9, 30, 3], 3) == [
        Moment(name="gather of unit 0", states=42, gathered=9, fetched=9),
        Moment(name="forward of unit 0", states=42, gathered=9, fetched=9),
        Moment(name="gather of unit 1", states=42, gathered=30, fetched=30),
        Moment(name="forward of unit 1", states=42, gathered=30, fetched=30),
        Moment(name="gather of unit 2", states=42, gathered=3, fetched=3),
        Moment(name="forward of unit 2", states=42, gathered=3, fetched=3),
        Moment(name="backward of unit 2", states=42, gathered=3, fetched=30, gradients=3),
        Moment(name="reduce of unit 2", states=42, fetched=30, sending=7),
        Moment(
            name="backward of unit 1", states=43, gathered=30, fetched=9, gradients=30, sending=3
        ),
        Moment(name="reduce of unit 1", states=43, fetched=9, sending=70),
        Moment(name="backward of unit 0", states=53, gathered=9, gradients=9, sending=30),
        Moment(name="reduce of unit 0", states=53, sending=21),
    ]


def test_the_root_stays_gathered_and_its_gradients_wait():
    """Units of 9 and 3 bytes and a root of 6 on 3 ranks: the shards are 18/3 bytes, 3 times."""
    made = moments([9, 3], 3, root=6, tied=True)
    assert made == [
        Moment(name="gather of unit 0", states=18, gathered=15, fetched=9),
        Moment(name="forward of unit 0", states=18, gathered=15, fetched=9),
        Moment(name="gather of unit 1", states=18, gathered=9, fetched=3),
        Moment(name="forward of unit 1", states=18, gathered=9, fetched=3),
        Moment(name="backward of unit 1", states=18, gathered=9, fetched=9, gradients=9),
        Moment(name="reduce of unit 1", states=18, gathered=6, fetched=9, gradients=6, sending=7),
        Moment(name="backward of unit 0", states=19, gathered=15, gradients=15, sending=3),
        Moment(name="reduce of unit 0", states=19, gathered=6, gradients=6, sending=21),
        Moment(name="backward of the root", states=22, gathered=6, gradients=18, sending=9),
        Moment(name="reduce of the root", states=22, sending=14),
    ]
    apart = moments([9, 3], 3, root=6)  # the head's half waits
    late = [m.gradients - a.gradients for m, a in zip(made, apart, strict=True)]
    assert late == [0] * 4 + [3] * 4 + [12, 0]
    assert peak([10.0] * 5, 2, 0, root=4.0).total == peak([10.0] * 5, 2, 0).total + 4 / 2 + 4 + 2


def test_no_unit_or_no_other_rank_is_refused():
    for units, ranks in (([1.0], 1), ([], 2)):
        with pytest.raises(ValueError, match=f"{len(units)} units on {ranks} ranks: name a unit"):
            moments(units, ranks)
