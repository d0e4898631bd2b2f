"""Python's debugger in a rank: where it begins, what it shows; `test_debug` has a whole session."""

import threading

import pytest
import torch

from helpers.runtime.local.rank import debugger as module
from helpers.runtime.local.rank.debugger import Debugger
from helpers.runtime.stacks import HERE


def run(function):
    """Stands for the function that starts the student's."""
    return function()


@pytest.fixture(autouse=True)
def starts_here(monkeypatch):
    before = torch._tensor_str.PRINT_OPTS.threshold, torch._tensor_str.PRINT_OPTS.edgeitems
    monkeypatch.setattr(module, "BEGIN", __file__)
    yield
    torch.set_printoptions(threshold=before[0], edgeitems=before[1])


def failed():
    def broken():
        secret = 42
        raise ValueError(secret)

    try:
        run(broken)
    except ValueError as error:
        return Debugger(error.__traceback__)


def test_only_the_student_s_frames_are_there():
    """Neither what started the function, nor this package's own frames inside it."""
    debugger = failed()
    assert [frame.f_code.co_name for frame, _ in debugger.stack] == ["broken"]
    log = {}
    exec(compile("def log(then): then()", f"{HERE}/worker.py", "exec"), log)

    def train():
        log["log"](lambda: 1 / 0)

    try:
        run(train)
    except ZeroDivisionError as error:
        debugger = Debugger(error.__traceback__)
    assert [frame.f_code.co_name for frame, _ in debugger.stack] == ["train", "<lambda>"]


def test_a_rank_that_waits_is_entered_where_it_called_the_library():
    """All the library's frames are passed over, not only the innermost."""
    found = []

    def look():
        found.append(Debugger(None).answer("p place"))
        release.set()

    release = threading.Event()

    def train():
        place = "my line"
        threading.Thread(target=look).start()
        release.wait(20)  # two frames of the standard library
        return place

    run(train)
    assert found == ["'my line'\n"]


def test_no_command_makes_the_rank_go_on():
    debugger = failed()
    words = "continue c cont n next s step unt until r return j jump run restart"
    for command in words.split():
        said = debugger.answer(command)
        assert said == (
            "This rank has stopped for good: look around, it cannot go on. "
            f"A variable? p {command}\n"
        )
    assert "cannot go on" in debugger.answer("interact")
    assert "cannot go on" in debugger.answer("debug f()")
    assert debugger.answer("p secret") == "42\n"


def test_answers_have_a_limit_and_errors_are_answers():
    debugger = failed()
    text = debugger.answer("p 'x' * 100_000")
    assert len(text) == module.LONGEST + len(" …\n")
    assert text.startswith("'xxx")
    assert text.endswith("x …\n")
    assert "ZeroDivisionError" in debugger.answer("p 1 / 0")
    assert "SyntaxError" in debugger.answer("pp 1 +")
    assert debugger.answer("None") == ""
    assert debugger.answer("secret") == debugger.answer("pp secret") == "42\n"
    assert debugger.answer("p secret ;; p secret + 1") == "42\n43\n"
