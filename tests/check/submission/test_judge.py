"""What the judge says about lines that a script could print, without running one."""

import json

import pytest

from helpers.check.submission import judge
from helpers.check.submission.job import Result, read
from helpers.check.verdict import NotRight

HELD = {"parameters": 8, "gradients": 8, "optimizer": 16}
TWIN = Result(losses={0: 5.0, 1: 4.0, 2: 3.0}, held={0: HELD})


def printed(tmp_path, *lines, code=0, errors="", notes=()) -> Result:
    """The result of a run that printed these lines."""
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (tmp_path / "out").write_text("\n".join(text))
    (tmp_path / "err").write_text(errors)
    for rank, note in enumerate(notes):
        (tmp_path / f"notes-{rank}").write_text(json.dumps({"wrote": note}))
    return read(tmp_path, code, hung=False)


def step(number, loss=5.0):
    return {"step": number, "loss": loss}


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        ([], "printed no loss"),
        ([{"step": 0, "loss": "5.0"}], "printed no loss"),
        ([step(0), step(0), step(1)], "printed step 0 twice"),
        ([step(0)], "printed the steps 0, not 0 to 1"),
        ([step(0), step(1), step(2)], "printed the steps 0 to 2, not 0 to 1"),
        ([step(2), step(0)], "printed the steps 0, 2, not 0 to 1"),
        ([step(3), step(2)], "printed the steps 2 to 3, not 0 to 1"),
        ([step(0), step(1), step(1)], "printed step 1 twice"),
    ],
)
def test_steps(tmp_path, lines, finding):
    judge.judge_end(printed(tmp_path, step(1), step(0)), range(2))
    with pytest.raises(NotRight, match=finding):
        judge.judge_end(printed(tmp_path, *lines), range(2))


def test_a_file_has_one_writer(tmp_path):
    lines = step(0), step(1)
    judge.judge_end(printed(tmp_path, *lines, notes=["a", "b"]), range(2))
    with pytest.raises(NotRight, match="ranks 0, 1 all wrote a, in the folder"):
        judge.judge_end(printed(tmp_path, *lines, notes=["a", "a"]), range(2))


def test_the_losses_fall():
    judge.judge_learns(Result(losses=dict(enumerate([5.1, 5.2, 5.0, 5.1, 4.9, 4.8]))))
    nan = float("nan")
    for losses in (
        [5.0, 5.0, 4.0, 4.0, 4.0, nan],
        [5.0] * 6,
        [5.0, 5.1, 4.0, 4.0, 4.9, 5.0],
        [4.0, 4.1, 4.2, 4.3, 5.0, 5.1],
    ):
        with pytest.raises(NotRight, match=r"first 2 steps, .* in the last 2"):
            judge.judge_learns(Result(losses=dict(enumerate(losses))))


def test_another_text_gives_another_curve():
    judge.judge_reads_data(TWIN, Result(losses={0: 5.0, 1: 4.5}))
    with pytest.raises(NotRight, match="exactly the same losses"):
        judge.judge_reads_data(TWIN, Result(losses={0: 5.0, 1: 4.0}))


def test_a_hang_shows_where_each_rank_waits():
    """The calls down to the script's own, not those below that started the script."""
    stack = 'Stack (most recent call first):\n  File "a.py", line {} in f\n  File "<frozen runpy>",'
    found = Result(hung=True, errors="\n".join(["noise", stack.format(1), stack.format(2)]))
    with pytest.raises(NotRight) as error:
        judge.judge_end(found, range(2))
    both = '  File "a.py", line 1 in f\n\n  File "a.py", line 2 in f'
    assert error.value.finding == f"the ranks printed nothing more, and did not end\n{both}"
    with pytest.raises(NotRight, match="noise"):
        judge.judge_end(Result(hung=True, errors="noise"), range(2))


def test_a_text_of_many_lines_is_cut():
    noise = "[W1] socket.cpp:697 refused\n\n   \n"
    errors = "".join(f"line {number}\n{noise}" for number in range(20))
    assert judge.tail(Result(errors=errors)).split("\n") == [f"line {n}" for n in range(8, 20)]
    stack = "Stack (most recent call first):\n" + "".join(f"call {n}\n" for n in range(20))
    assert judge.stacks(Result(errors=stack)).split("\n") == [f"call {n}" for n in range(12)]


def test_a_failed_run_shows_its_error(tmp_path):
    errors = "Traceback\nValueError: no\nE11 torch/distributed/elastic/multiprocessing/api.py:9] x"
    with pytest.raises(NotRight) as error:
        judge.judge_end(printed(tmp_path, code=1, errors=errors), range(2))
    assert "exit code 1" in error.value.finding
    assert "ValueError: no" in error.value.finding
    assert "elastic" not in error.value.finding
    with pytest.raises(NotRight, match="exit code -9"):
        judge.judge_end(printed(tmp_path, step(0), step(1), code=-9), range(2))


def test_a_stub_is_no_failure(tmp_path):
    with pytest.raises(judge.NotWritten):
        judge.judge_end(printed(tmp_path, code=1, errors="[rank0]: NotImplementedError\nE1"), ())
    with pytest.raises(NotRight, match="exit code 1"):
        judge.judge_end(printed(tmp_path, code=1, errors="NotImplementedError: no such op"), ())


@pytest.mark.parametrize(
    ("held", "stage", "right"),
    [
        ({0: HELD, 1: HELD}, 0, True),
        ({0: HELD, 1: HELD}, 1, False),
        ({0: HELD | {"optimizer": 9}, 1: HELD | {"optimizer": 7}}, 1, True),
        ({0: HELD | {"optimizer": 8}, 1: HELD}, 1, False),
        ({0: HELD | {"optimizer": 8}, 1: HELD | {"optimizer": 8}}, 2, False),
        ({0: HELD | {"optimizer": 8, "gradients": 4}} | {1: {**HELD, "optimizer": 8}}, 2, False),
        ({rank: {"parameters": 8, "gradients": 4, "optimizer": 8} for rank in (0, 1)}, 2, True),
        ({rank: {"parameters": 8, "gradients": 4, "optimizer": 8} for rank in (0, 1)}, 3, False),
        ({rank: {"parameters": 4, "gradients": 4, "optimizer": 8} for rank in (0, 1)}, 3, True),
        ({0: HELD | {"optimizer": 13}, 1: HELD | {"optimizer": 3}}, 1, "13 bytes .* holds 16"),
        ({0: HELD | {"optimizer": 4}, 1: HELD | {"optimizer": 12}}, 1, True),
        ({0: HELD, 1: HELD, 2: HELD}, 0, False),
        ({0: {"gradients": 8, "optimizer": 16}, 1: HELD}, 0, False),
        ({}, 0, False),
        ({0: HELD}, 0, False),
        ({0: HELD, 1: {"parameters": 8}}, 0, False),
    ],
)
def test_bytes(held, stage, right):
    found = Result(losses=TWIN.losses, held=held)
    if right is True:
        judge.judge_bytes(found, TWIN, stage, 2)
    else:
        with pytest.raises(NotRight, match=right or "bytes"):
            judge.judge_bytes(found, TWIN, stage, 2)


def test_a_loss_that_rounds_differently_is_right():
    judge.judge_curve(Result(losses={0: 5.0, 1: 4.0 + 5e-10}), TWIN, 2)
    with pytest.raises(NotRight, match="step 1"):
        judge.judge_curve(Result(losses={0: 5.0, 1: 4.0 + 3e-9}), TWIN, 2)
    for losses, words, hint in (
        ({1: 4.5, 0: 5.5}, "step 0: the loss is 5.500000000 on 3 ranks, and 5.0000", "Before the"),
        ({2: 3.5, 1: 4.5}, "step 1: the loss is 4.500000000 on 3 ranks, and 4.0000", "averaged"),
    ):
        with pytest.raises(NotRight, match=words) as error:
            judge.judge_curve(Result(losses=losses), TWIN, 3)
        assert hint in error.value.hint
    with pytest.raises(NotRight, match=r"step 1: the loss is 4\.000001"):
        judge.judge_curve(Result(losses={0: 5.0, 1: 4.000001}), TWIN, 2)
    with pytest.raises(NotRight, match="step 1: the loss is nan"):
        judge.judge_curve(Result(losses={0: 5.0, 1: float("nan")}), TWIN, 2)


def test_checkpoints_are_reported_and_there():
    judge.judge_saved(Result(saved=[4, 8]), [4, 8], [100])
    for saved in ([4], [4, 4, 8], [8, 4]):
        with pytest.raises(NotRight, match=r"not \[4, 8\]"):
            judge.judge_saved(Result(saved=saved), [4, 8], [100])
    with pytest.raises(NotRight, match="the folder is empty"):
        judge.judge_saved(Result(saved=[4]), [4], [])


def test_killed_runs():
    with pytest.raises(NotRight, match="neither went on nor ended"):
        judge.judge_killed(Result(hung=True), TWIN, 0, 2)
    judge.judge_killed(Result(losses={0: 5.0, 1: 4.0}), TWIN, 0, 2)
    with pytest.raises(NotRight, match="the next run begins at step 1"):
        judge.judge_killed(Result(losses={1: 4.0, 2: 3.0}), TWIN, 0, 2)
    with pytest.raises(NotRight, match=r"step 1: the loss is 4.5.* on 3 ranks"):
        judge.judge_killed(Result(losses={0: 5.0, 1: 4.5}), TWIN, 0, 3)
    with pytest.raises(NotRight, match="yet the script ended well"):
        judge.judge_died(Result(code=0))
    judge.judge_died(Result(code=1))
    with pytest.raises(NotRight, match="does not start again\nValueError: no"):
        judge.judge_first(Result(code=1, errors="ValueError: no\n"), 4)
    with pytest.raises(NotRight, match="is of 1 steps; the next run begins from the start"):
        judge.judge_first(Result(losses={0: 5.0}), 1)
    judge.judge_died(Result(code=-9))


@pytest.mark.parametrize(
    ("twin", "losses", "hint"),
    [
        (TWIN, {1: 4.0, 2: 3.1}, "The first step agrees"),
        (TWIN, {2: 4.9}, "a loss of untrained parameters"),
        (TWIN, {2: 3.2}, "but the batch is another"),
        (Result(losses={0: 5.0, 1: 4.9, 2: 4.8}), {2: 4.9}, "and the data start again"),
        (Result(losses={0: 5.0, 1: 4.9, 2: 4.5}), {2: 4.9}, "a loss of untrained parameters"),
    ],
)
def test_a_restart_that_differs(twin, losses, hint):
    with pytest.raises(NotRight) as error:
        judge.judge_resumed(Result(losses=losses), twin, 2)
    assert hint in error.value.hint
    found = next(step for step in losses if losses[step] != twin.losses[step])
    said = f"the loss of step {found} is {losses[found]:.9f}; without a stop it is"
    restart = f"after the restart, {said} {twin.losses[found]:.9f}"
    assert error.value.finding == restart
    judge.judge_resumed(Result(losses={1: 4.0, 2: 3.0}), TWIN, 2)


def test_steps_that_the_twin_has_not_printed_are_no_wrong_losses():
    judge.judge_resumed(Result(losses={1: 4.0, 2: 3.0, 3: 9.0}), TWIN, 2)
    with pytest.raises(NotRight, match="the steps 1 to 3, not 1 to 2"):
        judge.judge_torn(Result(losses={1: 4.0, 2: 3.0, 3: 9.0}), TWIN, 1, 2)


def test_the_last_lines_of_the_error_are_shown():
    """Of a run that fails, that hangs, and that does not start again."""
    errors = "ValueError: no such file"
    for wrong in (
        lambda: judge.judge_end(Result(code=3, errors=errors), range(2)),
        lambda: judge.judge_end(Result(hung=True, errors=errors), range(2)),
        lambda: judge.judge_killed(Result(hung=True, errors=errors), TWIN, 0, 2),
        lambda: judge.judge_first(Result(errors=errors), 4),
    ):
        with pytest.raises(NotRight) as error:
            wrong()
        assert error.value.finding.splitlines()[1:] == [errors]
