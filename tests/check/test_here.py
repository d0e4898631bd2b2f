"""What happens to a function that is checked in this process."""

import sys
from types import SimpleNamespace

import pytest
import torch

from helpers.check import elsewhere
from helpers.check.exercise import Exercise

CASES = [("first", (1, [2])), ("second", (2, [3]))]


def examine(fn, cases=CASES):
    verdict = Exercise(name="add", right=right, cases=cases, last="Count again.")(fn)
    assert verdict.exercise == "add"
    return verdict


def right(number, numbers):
    return number + numbers.pop()


def stub(number, numbers):
    raise NotImplementedError


def wrong_at_second(number, numbers):
    return 3


def divides(number):
    return number / 0


def fails(number, numbers):
    return divides(number)


def deep(number, numbers):
    return deeper(number, numbers)


def deeper(number, numbers):
    return deep(number + 1, numbers) if number < 20 else divides(number)


def endless(number, numbers):
    return endless(number, numbers)


def interrupted(number, numbers):
    raise KeyboardInterrupt


def leaves(number, numbers):
    sys.exit(3)


def never_ends(number, numbers):
    while True:
        pass


def too_few():
    return 3


def test_right_and_stub():
    assert examine(right), examine(right)
    assert not examine(right).finding
    assert examine(stub).status == "not written yet"


def test_a_function_gets_copies():
    def writes(number, numbers):
        numbers.append(7)
        return number + numbers.pop(0)

    assert examine(writes)
    assert examine(writes)
    assert CASES == [("first", (1, [2])), ("second", (2, [3]))]


def test_what_the_kernel_has_set_does_not_count():
    def sees(number, numbers):
        seen.add((torch.get_default_dtype(), torch.is_grad_enabled(), float(torch.rand(()) < 2)))
        return right(number, numbers)

    seen, state = set(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert examine(sees)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen == {(torch.float32, True, 1.0)}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_answer_names_its_case():
    verdict = examine(wrong_at_second)
    assert (verdict.status, verdict.finding, verdict.hint) == (
        "wrong",
        "second: returned 3; it is 5",
        "Count again.",
    )


def test_an_exception_shows_the_student_s_lines_alone():
    verdict = examine(fails)
    assert verdict.status == "wrong"
    assert "first: your function raised ZeroDivisionError: division by zero" in verdict.finding
    assert "in fails\n    return divides(number)" in verdict.finding
    assert "in divides\n    return number / 0" in verdict.finding
    assert "exercise.py" not in verdict.finding.replace("test_here.py", "")


def test_a_recursion_without_end_is_short():
    verdict = examine(endless)
    assert verdict.status == "wrong"
    assert "RecursionError" in verdict.finding
    assert len(verdict.finding.splitlines()) < 30


def test_of_many_frames_the_last_are_shown():
    finding = examine(deep).finding
    assert "in divides\n    return number / 0" in finding
    assert finding.count("in deep") == 7


def test_other_arguments():
    assert "TypeError: too_few() takes 0" in examine(too_few).finding


def test_an_interrupt_is_the_student_s_own():
    with pytest.raises(KeyboardInterrupt):
        examine(interrupted)


def test_a_function_that_exits_does_not_end_the_kernel():
    verdict = examine(leaves)
    assert verdict.status == "wrong"
    assert "first: your function raised SystemExit: 3" in verdict.finding


@pytest.mark.timeout(60)
def test_a_function_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(elsewhere, "SECONDS", 0.3)
    verdict = examine(never_ends)
    assert verdict.status == "wrong"
    assert verdict.finding == "first: your function has not returned after 0 s"
    assert "loop" in verdict.hint


def test_a_complex_number_is_refused():
    verdict = examine(lambda *_: 3 + 0j)
    assert (verdict.status, verdict.finding) == ("wrong", "first: returned a complex number")


class Other:
    """A place that only answers."""

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def call(self, fn, arguments):
        self.calls.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "status", "finding"),
    [
        ({"returned": 4}, "wrong", "first: returned 4; it is 3"),
        (elsewhere.Failed("it used 1 GB"), "wrong", "first: it used 1 GB"),
        (NotImplementedError(), "not written yet", ""),
    ],
)
def test_another_place_is_asked_and_its_failures_are_findings(answer, status, finding):
    """Those of ranks: see test_ranks.py."""
    with elsewhere.at(place := Other(answer)):
        verdict = examine(right)
    assert (verdict.status, verdict.finding) == (status, finding)
    assert place.calls[0] == (1, [2])


def test_lines_of_a_cell_have_the_cell_s_name(monkeypatch):
    """A notebook's cell is a file with a name that changes with each run."""
    names = {__file__: ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    finding = examine(fails).finding
    assert finding.count("  Cell In[3], line ") == 2
    assert "test_here" not in finding
