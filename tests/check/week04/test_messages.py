"""Bytes that a rank sends for a block: the solution passes, each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.week04 import measured, messages
from notebooks.solutions import week04
from tests.check.asked import drawn_anew
from tests.check.told import told


@pytest.fixture
def counted(monkeypatch):
    """Another measurement, which keeps the cases that it was asked for."""
    asked_for = []

    def measure(cases):
        asked_for.append(cases)
        return {one: measured.Measured(week04.message_bytes(*one.arguments()), 0) for one in cases}

    monkeypatch.setattr(messages, "measure", measure)
    return asked_for


def test_the_solution_passes():
    verdict = check.message_bytes(week04.message_bytes)
    assert verdict, verdict


def test_the_stub_is_told_apart_without_a_launch(monkeypatch):
    monkeypatch.setattr(measured, "launch", None)

    def stub(config, sequences, tokens, ranks, way, bytes_per_number):
        raise NotImplementedError

    assert check.message_bytes(stub).status == "not written yet"


def halves(count, ring=True, size=None):
    """`count(config, way)` passes of a ring around a B T D tensor."""

    def solve(config, sequences, tokens, ranks, way, bytes_per_number):
        tensor = sequences * tokens * (size or (lambda c: c.width))(config) * bytes_per_number
        share = (ranks - 1) / ranks if ring else 1
        return count(config, way) * share * tensor

    return solve


def right_count(config, way):
    return 8 + 2 * (way == "sequence, again") + 4 * (config.recompute == "full")


def with_e(change):
    """The solution, with another number of bytes per number."""

    def solve(config, sequences, tokens, ranks, way, bytes_per_number):
        given = (config, sequences, tokens, ranks, way, change(bytes_per_number))
        return week04.message_bytes(*given)

    return solve


def times(factor):
    def solve(*given):
        return week04.message_bytes(*given) * factor(given[0], given[3])

    return solve


def for_4_bytes_alone(*given):
    """An answer for all ranks, and an error for numbers of other sizes."""
    assert given[-1] == 4
    return given[3] * week04.message_bytes(*given)


MESSAGES = [
    (halves(lambda config, way: 4), "often a ring sends each byte"),
    (halves(lambda config, way: 2), "what does the backward of each send"),
    (halves(lambda config, way: 16), "which all-reduces are left"),
    (halves(lambda config, way: right_count(config, way) / 2, ring=False), "It depends on N"),
    (halves(right_count, ring=False), "It depends on N"),
    (halves(right_count, size=lambda config: config.inner), "after the row-parallel layer"),
    (with_e(lambda e: 1), "You counted numbers"),
    (with_e(lambda e: 2), "It is an argument"),
    (with_e(lambda e: 4), "It is an argument"),
    (times(lambda config, n: n), "not those of all ranks"),
    (for_4_bytes_alone, "not those of all ranks"),
    (times(lambda config, n: config.layers), "Count one block"),
    (halves(lambda config, way: 8 + 2 * (way == "sequence, again")), "runs the forward again"),
    (halves(lambda config, way: right_count(config, way) + 4 * (config.recompute == "selective")),
     "leaves the rank"),
    (halves(lambda config, way: 8 + 4 * (config.recompute == "full")), "gathers inputs a second"),
    (halves(lambda config, way: right_count(config, way) + 2 * (way == "sequence, again")),
     "Too many gathers"),
    (halves(lambda config, way: right_count(config, way) + 2 * (way == "sequence, kept")),
     "gathers the inputs twice"),
    (halves(lambda config, way: right_count(config, way) / (1 if way == "tensor" else 2)),
     "for each all-reduce that they replace"),
    (halves(lambda config, way: right_count(config, way) * (1 if way == "tensor" else 2)),
     "for each all-reduce that they replace"),
    (lambda *given: max(week04.message_bytes(*given), 1.0), "nobody to send to"),
    (lambda *given: 12345 * given[-1], "List the messages"),
    (lambda *given: None, "Return one number"),
    (lambda *given: True, "Return one number"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "hint"), MESSAGES)
def test_message_bytes(mistake, hint):
    told(check.message_bytes(mistake), hint)


@pytest.mark.parametrize("by", [1e-6, -1e-6])
def test_how_close_an_answer_must_be(by):
    assert check.message_bytes(times(lambda config, n: 1 + by)).status == "wrong"


def test_a_message_of_a_part_of_the_tokens():
    """Under sequence parallelism, an answer with T/N tokens."""

    def solve(config, sequences, tokens, ranks, way, bytes_per_number):
        share = 1 if way == "tensor" else ranks
        given = (config, sequences, tokens, ranks, way, bytes_per_number)
        return week04.message_bytes(*given) / share

    told(check.message_bytes(solve), "or T/N tokens")


def test_the_cases_differ_in_every_argument():
    """Else an answer that ignores an argument could pass."""
    for name in ("ranks", "way", "bytes_per_number"):
        assert len({getattr(case, name) for case in messages.CASES}) > 1
    assert {case.ranks for case in messages.CASES} == {1, 2, 4}
    assert {case.way for case in messages.CASES} == set(measured.WAYS)
    kinds = {case.config.recompute for case in messages.CASES}
    assert kinds == {"none", "selective", "full"}
    assert any(case.config.inner != 4 * case.config.width for case in messages.CASES)


def test_the_messages_of_a_block_are_four_all_reduces():
    """Shoeybi et al. 2019, section 3: two in the forward, and two in the backward."""
    found = measured.measure(messages.CASES)
    for case, ring in ((messages.CASES[0], 3 / 4), (messages.CASES[1], 1 / 2)):
        assert found[case].sent == 4 * 2 * ring * 3 * 16 * 32 * 4
    assert found[messages.CASES[-1]].sent == 0


def test_grading_measures_what_it_asks_for(counted):
    with drawn_from(7):
        verdict = check.message_bytes(week04.message_bytes)
        assert verdict, verdict
        (cases,) = set(counted)
    assert len({case.sequences for case in cases}) == 1
    assert cases[0].sequences > messages.CASES[0].sequences
    assert len(cases) == len(counted) == len(messages.CASES)
    assert drawn_anew(lambda: measured.asked(messages.CASES))
