"""Which runs of a script the check asks for, and what it compares, without a script."""

import json
from pathlib import Path

import pytest

from helpers.check.submission import judge, project
from helpers.check.submission.job import Result
from helpers.check.verdict import NotRight

HELD = {"parameters": 80, "gradients": 80, "optimizer": 160}


def losses(*steps):
    return {step: 5 - 0.25 * step for step in range(*steps)}


def held(stage, ranks=2):
    """What each rank holds: half of what its stage shards."""
    halves = judge.SHARDED[stage]
    own = {kind: size // 2 if kind in halves else size for kind, size in HELD.items()}
    return dict.fromkeys(range(ranks), own)


ONE = Result(losses=losses(12), held=held(0, 1))


class Runs:
    """Runs whose results are known: it notes what it is asked for."""

    def __init__(self, folder, *results):
        self.folder, self.results, self.asked = folder, list(results), []

    def __call__(self, what, ranks, stage, **more):
        self.asked.append((what, ranks, stage, more))
        return self.results.pop(0)


def test_all_runs_in_order(tmp_path, monkeypatch):
    """One process, another text, four stages; then those that are killed."""
    other = Result(losses={step: loss + 1 for step, loss in losses(3).items()})
    stages = [Result(losses=losses(3 if s else 12), held=held(s), saved=[3]) for s in range(4)]
    where = Runs(tmp_path, ONE, other, *stages)
    where.other = tmp_path / "other"
    resumed = []
    monkeypatch.setattr(project, "judge_resuming", lambda *given: resumed.append(given))
    project.judge_all(where)
    assert where.asked == [
        ("one process", 1, 0, {}),
        ("another text", 1, 0, {"steps": 3, "data": tmp_path / "other"}),
        *(("curve and memory", 2, s, {"steps": 3 if s else 12}) for s in range(4)),
    ]
    assert resumed == [(where, ONE)]


def test_what_is_wrong_in_one_process_is_told_first(tmp_path):
    wrong = Result(losses=losses(12), held={0: {"parameters": 3}})
    with pytest.raises(NotRight, match="the ranks printed the bytes"):
        project.judge_all(Runs(tmp_path, wrong))
    with pytest.raises(NotRight, match="the steps 0 to 10, not 0 to 11"):
        project.judge_all(Runs(tmp_path, Result(losses=losses(11))))
    constant = Result(losses=dict.fromkeys(range(12), 5.0), held=held(0, 1))
    with pytest.raises(NotRight, match="the losses do not fall"):
        project.judge_all(Runs(tmp_path, constant))
    where = Runs(tmp_path, ONE, Result(losses=losses(2)))
    where.other = None
    with pytest.raises(NotRight, match="the steps 0 to 1, not 0 to 2"):
        project.judge_all(where)
    where = Runs(tmp_path, ONE, Result(losses=losses(3)))
    where.other = None
    with pytest.raises(NotRight, match="exactly the same losses"):
        project.judge_all(where)


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        (0, {"losses": losses(11)}, "the steps 0 to 10"),
        (0, {"losses": losses(12) | {11: 3.0}}, "step 11: the loss is 3.0"),
        (1, {"losses": losses(3) | {2: 3.0}}, "step 2: the loss is 3.0.* on 2 ranks"),
        (2, {"held": held(1)}, "a rank of 2 holds 80 bytes of gradients"),
        (3, {"held": held(2)}, "a rank of 2 holds 80 bytes of parameters"),
        (3, {"losses": losses(12)}, "the steps 0 to 11, not 0 to 2"),
        (3, {"saved": []}, r"reported the checkpoints \[\], not \[3\]"),
    ],
)
def test_every_stage_is_judged(tmp_path, stage, change, words):
    right = [{"losses": losses(3 if s else 12), "held": held(s), "saved": [3]} for s in range(4)]
    right[stage] |= change
    where = Runs(tmp_path, *(Result(**one) for one in right))
    with pytest.raises(NotRight, match=words):
        project.judge_stages(where, ONE)
    assert len(where.asked) == stage + 1


KILLED = Result(losses=losses(7), saved=[4], code=1)
TORN = Result(losses=losses(4, 8), code=1)  # killed while it saves 8 steps
LAST = Result(losses=losses(4, 12), saved=[8, 12])


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "kept" / "step-4").mkdir(parents=True)
    (tmp_path / "kept" / "step-4" / "large").write_bytes(bytes(100_001))
    (tmp_path / "kept" / "small").write_bytes(bytes(9))
    return tmp_path


def test_a_run_is_killed_then_torn_then_ended(kept):
    where = Runs(kept, KILLED, TORN, LAST)
    project.judge_resuming(where, ONE)
    assert where.asked == [
        ("a rank is killed in a step", 2, 3, {"keep": "kept", "kill_at_step": 6}),
        ("restarted, and killed in a save", 2, 3, {"keep": "kept", "file_bytes": 50_000}),
        ("restarted again", 2, 3, {"keep": "kept"}),
    ]


def test_a_log_may_grow_while_a_checkpoint_is_torn(kept):
    (kept / "kept" / "step-4" / "large").write_bytes(bytes(40_000))
    where = Runs(kept, KILLED, TORN, LAST)
    project.judge_resuming(where, ONE)
    assert where.asked[1][3]["file_bytes"] == 32_768


def test_a_checkpoint_of_a_later_step_may_be_torn(kept):
    """The first save of the second run was whole; so the third run continues there."""
    later = Result(losses=losses(4, 12), saved=[8], code=1)
    project.judge_resuming(Runs(kept, KILLED, later, Result(losses=losses(8, 12), saved=[12])), ONE)
    with pytest.raises(NotRight, match="checkpoint is of 8 steps; the next run begins at step 4"):
        project.judge_resuming(Runs(kept, KILLED, later, LAST), ONE)


@pytest.mark.parametrize(
    ("number", "change", "words"),
    [
        (0, {"losses": losses(2, 7)}, "the next run begins at step 2"),
        (0, {"losses": losses(7) | {3: 9.0}}, "step 3: the loss is 9.* on 2 ranks"),
        (0, {"hung": True}, "neither went on nor ended"),
        (1, {"hung": True}, "neither went on nor ended"),
        (0, {"saved": []}, r"reported the checkpoints \[\], not \[4\]"),
        (1, {"losses": losses(5, 8)}, "checkpoint is of 4 steps; the next run begins at step 5"),
        (1, {"losses": losses(4, 8) | {4: 3.0}}, "after the restart, the loss of step 4"),
        (1, {"code": 0}, "yet the script ended well"),
        (2, {"losses": losses(5, 12)}, "killed while it wrote a checkpoint.*begins at step 5"),
        (2, {"losses": losses(4, 11)}, "killed while it wrote.*the steps 4 to 10, not 4 to 11"),
        (2, {"losses": losses(4, 16)}, "killed while it wrote.*the steps 4 to 15, not 4 to 11"),
        (2, {"saved": [12]}, r"reported the checkpoints \[12\], not \[8, 12\]"),
    ],
)
def test_every_run_of_a_restart_is_judged(kept, number, change, words):
    right = [vars(one).copy() for one in (KILLED, TORN, LAST)]
    right[number] |= change
    where = Runs(kept, *(Result(**one) for one in right))
    with pytest.raises(NotRight, match=words):
        project.judge_resuming(where, ONE)
    assert len(where.asked) == number + 1


def test_no_file_in_the_folder_is_no_checkpoint(tmp_path):
    (tmp_path / "kept" / "empty").mkdir(parents=True)
    with pytest.raises(NotRight, match="the folder is empty"):
        project.judge_resuming(Runs(tmp_path, KILLED), ONE)


def test_how_a_run_is_started(tmp_path, capsys):
    """The second run, in the folder of the first, with another text and an order to kill."""
    given = []

    def start(arguments, ranks, **streams):
        given.append((json.loads(arguments[0]), arguments[1:], ranks))
        raise StopIteration

    where = project.Where(Path("/x/mine.py"), tmp_path, start, 5.0)
    for options in ({}, {"steps": 3, "keep": "kept", "data": where.other, "kill_at_step": 6}):
        with pytest.raises(StopIteration):
            where("a run", 2 - (not options), 3, **options)
    first, second = given
    assert first[1:] == (
        ["/x/mine.py", "--stage=3", "--steps=12", "--save-every=4", f"--folder={tmp_path}/run-1",
         f"--data={tmp_path}/text-1", "--dtype=float64"],
        1,
    )  # fmt: skip
    assert second[1][2:] == [
        "--steps=3", "--save-every=4", f"--folder={tmp_path}/kept", f"--data={tmp_path}/text-2",
        "--dtype=float64",
    ]  # fmt: skip
    assert second[2] == 2
    orders = [(one["watch"], one["kill_at_step"], one["file_bytes"]) for one, *_ in given]
    assert orders == [(f"{tmp_path}/run-1", None, None), (f"{tmp_path}/kept", 6, None)]
    assert (tmp_path / "kept").is_dir()
    assert capsys.readouterr().out.splitlines() == [
        "run 1 of 9: a run (1 rank, --stage 3)", "run 2 of 9: a run (2 ranks, --stage 3)",
    ]  # fmt: skip
    assert where.now == "a run (2 ranks, --stage 3)"
    assert where.run.keywords["patience"] == 5.0


def test_a_script_that_is_not_there():
    verdict = project.project(None)
    assert (verdict.exercise, verdict.status) == ("project", "not written yet")
    for path, name in ((Path(__file__).with_name("none.py"), "none.py"), (Path("/"), "")):
        verdict = project.project(path)
        assert (verdict.exercise, verdict.status) == ("project", "wrong")
        assert (verdict.finding, verdict.hint) == (f"there is no file {name}", "Check the path.")


def test_the_verdict_names_the_run(monkeypatch):
    def start(*_, **__):
        raise NotRight("too large", "Why?")

    script = Path(__file__)
    verdict = project.project(script, start=start)
    assert (verdict.exercise, verdict.status, verdict.hint) == ("project", "wrong", "Why?")
    assert verdict.finding == "one process (1 rank, --stage 0): too large"
    monkeypatch.setattr(project, "judge_all", lambda where: None)
    verdict = project.project(script, start=start)
    assert (verdict.exercise, verdict.status, verdict.finding) == ("project", "passed", "")
