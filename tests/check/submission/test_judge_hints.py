"""Whatever the judge finds wrong in a script comes with a hint of its own."""

import pytest

from helpers.check.oracle import HANG_HINT, NotRight
from helpers.check.submission import judge
from helpers.check.submission.job import Result

HELD = {"parameters": 8, "gradients": 8, "optimizer": 16}
TWIN = Result(losses={0: 5.0, 1: 4.0, 2: 3.0}, held={0: HELD})
RIGHT = {"losses": {0: 5.0, 1: 4.0}}


def end(**change):
    return lambda: judge.judge_end(Result(**(RIGHT | change)), range(2))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (end(writers={"a": {0, 1}}), "Which rank writes, or which name does each rank's own file"),
        (end(hung=True), HANG_HINT),
        (end(code=1), "Run it yourself: torchrun --standalone --nproc-per-node 2 SCRIPT"),
        (end(losses={}), 'Rank 0 prints a line of JSON for each step: {"step": 0, "loss": 5.57}.'),
        (end(twice=0), "One rank prints the losses, after the loss was summed over all ranks."),
        (end(losses={0: 5.0}), "Steps count from 0 to --steps - 1, whatever --save-every"),
        (lambda: judge.judge_reads_data(TWIN, Result(**RIGHT)), "not those of a training on the"),
        (
            lambda: judge.judge_bytes(Result(), TWIN, 0, 1),
            'each rank prints {"rank": 0, "bytes": {"parameters": …',
        ),
        (
            lambda: judge.judge_bytes(Result(held={0: HELD, 1: HELD}), TWIN, 3, 2),
            "Stage 3 divides optimizer, gradients, parameters over the ranks.",
        ),
        (
            lambda: judge.judge_killed(Result(hung=True), TWIN, 0, 2),
            "Does the script start processes of its own?",
        ),
        (lambda: judge.judge_died(Result()), "must fail, or nobody notices. Who writes it?"),
        (lambda: judge.judge_first(Result(), 4), "Read its error above."),
        (
            lambda: judge.judge_first(Result(**RIGHT), 1),
            "A run continues with the step after the last checkpoint in --folder that is whole",
        ),
        (lambda: judge.judge_saved(Result(), [4], [9]), 'one rank prints {"saved": N}: N steps'),
        (lambda: judge.judge_saved(Result(saved=[4]), [4], []), "are files in --folder."),
        (
            lambda: judge.judge_torn(Result(**RIGHT), TWIN, 1, 2),
            "rename it when it is whole: a rename happens, or does not. A run continues with",
        ),
    ],
)
def test_a_hint_for_each_mistake(wrong, hint):
    with pytest.raises(NotRight) as error:
        wrong()
    assert hint in error.value.hint


def test_the_last_lines_of_the_error_are_shown():
    """Of a run that fails, that hangs, and that does not start again."""
    errors = "ValueError: no such file"
    for wrong in (
        end(code=3, errors=errors),
        end(hung=True, errors=errors),
        lambda: judge.judge_killed(Result(hung=True, errors=errors), TWIN, 0, 2),
        lambda: judge.judge_first(Result(errors=errors), 4),
    ):
        with pytest.raises(NotRight) as error:
            wrong()
        assert error.value.finding.splitlines()[1:] == [errors]
