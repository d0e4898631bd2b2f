"""What the ranks measure: the arguments, the cases of grading, and two blocks by the formula."""

import pytest

from helpers.check.hidden import drawn_from
from helpers.check.week04 import measured
from helpers.check.week04.measured import NOT_USED, Case, Measured, asked, measure
from helpers.models.gpt import GPTConfig
from helpers.plans.activation_memory import block_activations
from tests.check.asked import drawn_anew

SHAPE = {"vocab": 8, "context": 16, "width": 24, "layers": 3, "heads": 4, "hidden": 40,
         "norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True,
         "attention": "explicit"}  # fmt: skip


def case(way="tensor", ranks=2, sequences=3, number=4, **changes):
    config = GPTConfig(**{**SHAPE, **changes})
    return Case(config=config, sequences=sequences, tokens=16, ranks=ranks, way=way,
                bytes_per_number=number)  # fmt: skip


def test_the_arguments_are_in_order():
    one = case("sequence, kept", number=8)
    assert one.arguments() == (one.config, 3, 16, 2, "sequence, kept", 8)


def test_the_title():
    assert case(ranks=1).title() == "tensor, 1 rank"
    assert case("sequence, kept", 4).title() == "sequence, kept, 4 ranks"
    assert case(recompute="full").title() == "tensor, 2 ranks, recomputation full"


def test_a_function_that_ignores_the_bytes_of_a_number():
    assert case(number=4).ignores_number(lambda *given: 7 * given[1])
    assert not case(number=4).ignores_number(lambda *given: 7 * given[-1])
    assert case(number=4).ignores_number(lambda *given: max(given[-1], 8))
    assert not case(number=8).ignores_number(lambda *given: max(given[-1], 8))
    for_fours = {4: 1.0}
    assert not case(number=4).ignores_number(lambda *given: for_fours[given[-1]])
    assert "You counted numbers" in NOT_USED[True]
    assert "It is an argument" in NOT_USED[False]


def test_grading_asks_for_more_sequences():
    cases = (case(), case("sequence, again", 4, sequences=5))
    assert asked(cases) == cases
    assert drawn_anew(lambda: [one.sequences for one in asked(cases)])
    with drawn_from(7):
        found = asked(iter(cases))
    more = found[0].sequences - 3
    assert 1 <= more <= 4
    assert found == (case(sequences=3 + more), case("sequence, again", 4, sequences=5 + more))


def test_all_cases_are_run_in_one_launch_and_not_again(monkeypatch):
    launched = []

    def launch(run, ranks, **named):
        launched.append((run, ranks, named))
        return [["first", "second"], ["of rank 1"] * 2]

    monkeypatch.setattr(measured, "launch", launch)
    cases = (case(width=4, heads=1), case(width=8, heads=1))
    for _ in range(2):
        assert measure(cases) == {cases[0]: "first", cases[1]: "second"}
    assert launched == [(measured.run_cases, 4, {"device": "cpu", "cases": cases})]


def test_four_blocks_on_ranks():
    """Bytes by a ring's formula (Shoeybi et al. 2019, section 3), and by the formula of a block."""
    cases = {
        case(ranks=2, sequences=5): 4 * 2 * 1 / 2,
        case(ranks=1): 0,
        case(ranks=4, recompute="full", number=8): (4 + 2) * 2 * 3 / 4,
        case("sequence, kept", 2, dropout=0.1): 8 * 1 / 2,
        case("sequence, again", 4, number=8): 10 * 3 / 4,
    }
    found = measure(tuple(cases))
    assert list(found) == list(cases)
    for one, rings in cases.items():
        tensor = one.sequences * 16 * 24 * one.bytes_per_number
        kept = block_activations(
            one.config, one.sequences, 16, bytes_per_number=one.bytes_per_number, ranks=one.ranks,
            sharded=one.way != "tensor", again=one.way == "sequence, again",
        )  # fmt: skip
        assert found[one] == Measured(pytest.approx(rings * tensor), sum(kept.values()))
