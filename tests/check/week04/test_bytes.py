"""Bytes of a block: the solutions pass, each mistake gets its own hint."""

import math
from dataclasses import replace

import pytest

from helpers import check
from helpers.check.week04 import activations, measured, messages
from helpers.plans.activation_memory import block_activations, korthikanti
from notebooks.solutions import week04
from tests.check.asked import drawn_anew

NAMES = ["message_bytes", "activation_bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(getattr(week04, name))
    assert verdict, verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_is_told_apart_without_a_launch(name, monkeypatch):
    monkeypatch.setattr(measured, "launch", None)

    def stub(config, sequences, tokens, ranks, way, bytes_per_number):
        raise NotImplementedError

    assert getattr(check, name)(stub).status == "not written yet"


def told(verdict, hint):
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


# --------------------------------------------------------------------- message_bytes


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


def times(name, factor):
    def solve(config, sequences, tokens, ranks, way, bytes_per_number):
        given = (config, sequences, tokens, ranks, way, bytes_per_number)
        return getattr(week04, name)(*given) * factor(config, ranks)

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
    (times("message_bytes", lambda config, n: n), "not those of all ranks"),
    (for_4_bytes_alone, "not those of all ranks"),
    (times("message_bytes", lambda config, n: config.layers), "Count one block"),
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


@pytest.mark.parametrize(("name", "off"), [("message_bytes", 1e-6), ("activation_bytes", 0.02)])
def test_how_close_an_answer_must_be(name, off):
    for sign in (1, -1):
        answer = times(name, lambda config, n: 1 + sign * off)  # noqa: B023
        assert getattr(check, name)(answer).status == "wrong"


def test_a_message_of_a_part_of_the_tokens():
    """Under sequence parallelism, an answer with T/N tokens."""

    def solve(config, sequences, tokens, ranks, way, bytes_per_number):
        share = 1 if way == "tensor" else ranks
        given = (config, sequences, tokens, ranks, way, bytes_per_number)
        return week04.message_bytes(*given) / share

    told(check.message_bytes(solve), "or T/N tokens")


# ------------------------------------------------------------------ activation_bytes


def terms(change):
    """The formula, with its terms changed by `change(terms, config, ranks, way, e)`."""

    def solve(config, sequences, tokens, ranks, way, e):
        case = measured.Case(
            config=config, sequences=sequences, tokens=tokens, ranks=ranks, way=way,
            bytes_per_number=e,
        )  # fmt: skip
        found = activations.terms_of(case)
        return sum(change(dict(found), config, ranks, way, e).values())

    return solve


def scaled(name, factor):
    def change(found, config, ranks, way, e):
        if name in found:
            found[name] *= factor(config, ranks, e)
        return found

    return terms(change)


def another(**changes):
    """The formula for other arguments."""

    def solve(config, sequences, tokens, ranks, way, e):
        given = {"sharded": way != "tensor", "again": way == "sequence, again", "ranks": ranks}
        given |= {"bytes_per_number": e} | {k: v for k, v in changes.items() if k != "recompute"}
        if "recompute" in changes and config.recompute == changes["recompute"]:
            config = replace(config, recompute="none")
        return sum(block_activations(config, sequences, tokens, **given).values())

    return solve


def by_the_paper(config, sequences, tokens, ranks, way, e):
    """34 s b h + 5 a s² b: 2 bytes a number, dropout also on the scores."""
    given = "tensor" if way == "tensor" else "tensor and sequence"
    return korthikanti(sequences, tokens, config.width, config.heads, ranks, given)


def zero(config, ranks, e):
    return 0


def is_full(given):
    return given[0].recompute == "full"


def full(value):
    """Right, but for full recomputation."""

    def solve(*given):
        return value(*given) if is_full(given) else week04.activation_bytes(*given)

    return solve


def selective_without_inputs(*given):
    """Right, but with selective recomputation queries, keys and values are not kept."""
    config, sequences, tokens, ranks, _, e = given
    kept = 3 * e * sequences * tokens * config.width / ranks
    return week04.activation_bytes(*given) - kept * (config.recompute == "selective")


def block_input(config, sequences, tokens, ranks, way, e):
    return sequences * tokens * config.width * e


ACTIVATIONS = [
    *((scaled(name, zero), hint) for name, hint in activations.LEFT_OUT.items()),
    (scaled("dropout masks", zero), "masks of the dropout are missing"),
    (scaled("scores", lambda c, n, e: n), "The heads are cut"),
    (scaled("inside the MLP", lambda c, n, e: n), "The MLP is cut inside"),
    (scaled("queries, keys, values", lambda c, n, e: n), "with them queries, keys and values"),
    (scaled("scores", lambda c, n, e: 2), "before the softmax"),
    (scaled("scores", lambda c, n, e: 2 + 1 / e), "dropout on the scores"),
    (scaled("scores", lambda c, n, e: c.heads), "How many scores does each head have"),
    (scaled("scores", lambda c, n, e: 1 / c.heads), "Each head has its own scores"),
    (scaled("scores", lambda c, n, e: 1 / 3), "Each sequence has its own scores"),
    (scaled("inside the MLP", lambda c, n, e: 0.5), "F numbers each"),
    (scaled("inside the MLP", lambda c, n, e: 4 * c.width / c.inner), "need not be 4 D"),
    (scaled("dropout masks", lambda c, n, e: e), "one byte for each number"),
    (scaled("dropout masks", lambda c, n, e: 0.5), "How many dropouts"),
    (scaled("inputs of the layers", lambda c, n, e: 3), "share one input. How often"),
    (another(bytes_per_number=1), "You counted numbers"),
    (another(bytes_per_number=2), "It is an argument"),
    (another(bytes_per_number=4), "It is an argument"),
    (another(ranks=1), "Which tensors does a rank have only in part"),
    (another(sharded=True, again=True), "You divide all of it by N"),
    (another(sharded=True), "on every rank: what do norms and dropout keep"),
    (another(sharded=False), "with sequence parallelism?"),
    (another(recompute="selective"), "Which large tensor of the core"),
    (selective_without_inputs, "The core of attention runs again in the backward"),
    (another(recompute="full"), "From which tensor does it start"),
    (full(lambda *given: block_input(*given[:5], 2)), "How many bytes does each number have"),
    (full(lambda *given: block_input(*given) / given[3]), "How much of this input"),
    (full(block_input), "How much of this input"),
    (times("activation_bytes", lambda c, n: c.layers), "not all layers"),
    (times("activation_bytes", lambda c, n: n), "not those of all ranks"),
    (by_the_paper, "It is an argument"),
    (lambda *given: 12345 * given[-1], "Go through the block"),
    (lambda *given: None, "Return one number"),
]


@pytest.mark.parametrize(("mistake", "hint"), ACTIVATIONS)
def test_activation_bytes(mistake, hint):
    told(check.activation_bytes(mistake), hint)


def all_alike(way):
    """Every gathered input is kept, or none, whatever was asked for."""

    def solve(config, sequences, tokens, ranks, given, e):
        used = way if given != "tensor" else given
        return week04.activation_bytes(config, sequences, tokens, ranks, used, e)

    return solve


@pytest.mark.parametrize(
    ("way", "hint"),
    [("sequence, again", "are kept here"), ("sequence, kept", "are not kept here")],
)
def test_gathered_inputs(way, hint):
    told(check.activation_bytes(all_alike(way)), hint)


# ----------------------------------------------------------------------- the reference


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(
    ("way", "row"),
    [("tensor", "tensor, selective"), ("sequence, again", "tensor and sequence, selective")],
)
def test_the_solution_without_scores_is_the_paper_s_table(way, row, ranks):
    """Korthikanti et al. 2022, table 2: s b h (10 + 24/t) and s b h 34/t, 2 bytes a number."""
    config = replace(activations.CASES[0].config, dropout=0.1, recompute="selective")
    found = week04.activation_bytes(config, 3, 64, ranks, way, 2)
    assert found == pytest.approx(korthikanti(3, 64, config.width, config.heads, ranks, row))


@pytest.mark.parametrize("cases", [messages.CASES, activations.CASES])
def test_the_cases_differ_in_every_argument(cases):
    """Else an answer that ignores an argument could pass."""
    for name in ("ranks", "way", "bytes_per_number"):
        assert len({getattr(case, name) for case in cases}) > 1
    assert {case.ranks for case in cases} == {1, 2, 4}
    assert {case.way for case in cases} == set(measured.WAYS)
    assert {case.config.recompute for case in cases} == {"none", "selective", "full"}
    assert any(case.config.inner != 4 * case.config.width for case in cases)
    assert len({case.config.dropout for case in activations.CASES}) == 2


def test_what_may_be_left_out_is_less_than_the_tolerance_and_no_other_term_is():
    for case in activations.CASES:
        found = activations.terms_of(case)
        whole = sum(found.values())
        assert whole == measured.measure(activations.CASES)[case].kept
        assert math.isclose(week04.activation_bytes(*case.arguments()), whole, rel_tol=0.013)
        for name, size in found.items():
            if size and name != "causal mask":
                assert size / whole > 1.25 * activations.CLOSE, (case.title(), name)


def test_the_messages_of_a_block_are_four_all_reduces():
    """Shoeybi et al. 2019, section 3: two in the forward, and two in the backward."""
    found = measured.measure(messages.CASES)
    for case, ring in ((messages.CASES[0], 3 / 4), (messages.CASES[1], 1 / 2)):
        assert found[case].sent == 4 * 2 * ring * 3 * 16 * 32 * 4
    assert found[messages.CASES[-1]].sent == 0


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: measured.asked(messages.CASES))
    assert drawn_anew(lambda: measured.asked(activations.CASES))
