"""Stage 3 beside tensor and pipeline parallelism; tests/training/traffic measures the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plans.parallel_traffic import WAYS, parallel_traffic, tokens_of_equal_traffic
from helpers.plans.zero_traffic import zero_traffic

GPT3 = {"params": 174.6e9, "layers": 96, "width": 12_288}  # Narayanan et al. 2021, table 2


def test_by_hand():
    found = parallel_traffic(params=1000, layers=2, width=5, tokens=7, world=4, micro_batches=3)
    assert tuple(found) == WAYS
    assert found["stage 3"] == 3 * 3 * 1000 * 3 / 4 * 2
    assert found["tensor parallel"] == 8 * 2 * 7 * 5 * 3 / 4 * 2
    assert found["pipeline parallel"] == 2 * 7 * 5 * 2
    assert found["stage 3"] == sum(zero_traffic(1000, 4, 3, micro_batches=3).values())
    wide = parallel_traffic(
        params=1000, layers=2, width=5, tokens=7, world=4, micro_batches=3, number_bytes=6
    )
    assert wide == {way: 3 * sent for way, sent in found.items()}


def test_one_gpu_sends_nothing():
    assert set(parallel_traffic(**GPT3, tokens=2048, world=1).values()) == {0}


@given(
    st.floats(1e3, 1e12), st.integers(1, 200), st.integers(1, 20_000), st.integers(1, 9),
    st.integers(2, 4096),
)  # fmt: skip
def test_stage_3_sends_less_from_some_batch_on(params, layers, width, m, world):
    model = {"params": params, "layers": layers, "width": width, "micro_batches": m}
    equal = tokens_of_equal_traffic(**model)
    for factor, less in ((0.5, False), (2, True)):
        found = parallel_traffic(**model, tokens=factor * equal, world=world)
        assert (found["stage 3"] < found["tensor parallel"]) == less
    found = parallel_traffic(**model, tokens=equal, world=world)
    assert found["stage 3"] == pytest.approx(found["tensor parallel"])


def test_the_equal_batch_is_four_and_a_half_widths_of_tokens():
    """P is about 12 L D², so G is about 4.5 m D."""
    assert tokens_of_equal_traffic(**GPT3) == pytest.approx(4.5 * GPT3["width"], rel=0.02)


@pytest.mark.parametrize("wrong", [{"world": 0}, {"micro_batches": 0}])
def test_refusals(wrong):
    with pytest.raises(ValueError, match="at least one"):
        parallel_traffic(**{**GPT3, "tokens": 1, "world": 2, **wrong})
