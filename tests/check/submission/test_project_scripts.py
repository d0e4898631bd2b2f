"""The check of the project: it passes both scripts of the course, and tells wrong ones apart.

A wrong script is the script in plain PyTorch with one mistake. Most ranks here are forks of a
process that has imported torch: see `warm`.
"""

from pathlib import Path

import pytest

from helpers import check
from helpers.check.submission import project
from helpers.check.verdict import NotRight
from tests.check.submission.warm import Warm

PATIENCE = 120.0
SCRIPTS = Path(__file__).parents[3] / "notebooks" / "project"
PLAIN = SCRIPTS / "distributed_plain_torch.py"


@pytest.fixture(scope="module")
def warm():
    with Warm() as server:
        yield server.start


@pytest.fixture(scope="module")
def one(warm, tmp_path_factory):
    """The plain script on one rank."""
    folder = tmp_path_factory.mktemp("one")
    where = project.Where(wrong(folder), folder, warm, PATIENCE)
    return where("one process", 1, 0)


SIZES = "WARM_UP = 64, 16, 64, 2, 4, 3e-3, 20", "WARM_UP = 16, 4, 32, 1, 2, 3e-3, 20"
CONFIG = (
    "GPTConfig(context=64, width=64, layers=2, heads=4), 16",
    "GPTConfig(context=16, width=32, layers=1, heads=2), 4",
)


def changed(tmp_path, script, *changes) -> Path:
    """A script with some lines replaced; a smaller model is one of the changes."""
    source = (SCRIPTS / script).read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    file = tmp_path / "script.py"
    file.write_text(source)
    return file


def wrong(tmp_path, *changes) -> Path:
    """The plain script with a mistake."""
    return changed(tmp_path, PLAIN.name, SIZES, *changes)


ALONE = ("model = DistributedDataParallel(model, gradient_as_bucket_view=True)", "pass")
SAVE = PLAIN.read_text().split("def save(")[1].split('"""\n')[1].split("\n\n\ndef")[0]
ONE_FILE = """
    torch.save(state_of(model, optimizer), folder / "state.pt")
    if dist.get_rank() == 0:
        say(saved=step)"""


@pytest.mark.parametrize(
    ("changes", "finding", "hint"),
    [
        pytest.param([ALONE], "step 1: the loss is", "averaged over", id="gradients not averaged"),
        pytest.param(
            [("dist.all_reduce(sums)", "pass")],
            "step 0: the loss is",
            "loss summed over",
            id="the loss of one rank",
        ),
        pytest.param(
            [(SAVE, ONE_FILE)],
            "ranks 0, 1 all wrote state.pt",
            "Which rank writes",
            id="every rank writes the checkpoint",
        ),
        pytest.param(
            [("distribute(model, options.stage)", "distribute(model, 0)")],
            "bytes of optimizer; one process holds",
            "Does the script use --stage",
            id="the stage is ignored",
        ),
        pytest.param(
            [("done == options.steps or ", "")],
            "reported the checkpoints [], not [3]",
            "one after the last step",
            id="the last step is not saved",
        ),
        pytest.param(
            [("import argparse", "import argparse\nimport no_such_module")],
            "No module named 'no_such_module'",
            "Run it yourself",
            id="an error",
        ),
        pytest.param(
            [("        dist.all_reduce(sums)", "        time.sleep(99)")],
            "printed nothing more",
            "waits for a message",
            id="a hang",
        ),
    ],
)
def test_a_wrong_training_is_told_apart(tmp_path, warm, one, changes, finding, hint):
    patience = 1.5 if "sleep" in changes[0][1] else PATIENCE
    where = project.Where(wrong(tmp_path, *changes), tmp_path, warm, patience)
    with pytest.raises(NotRight) as error:
        project.judge_stages(where, one)
    assert finding in error.value.finding
    # of a hang, the calls of each rank down to the script's own
    assert finding != "printed nothing more" or error.value.finding.count("in <module>") == 2
    assert hint in error.value.hint


LOAD = "dcp.load(state_of(model, optimizer), checkpoint_id=whole[-1])  # in place"
LOAD_MODEL = """state = {f"model.{n}": p.detach() for n, p in model.named_parameters()}
    dcp.load(state, checkpoint_id=whole[-1])"""


@pytest.mark.parametrize(
    ("changes", "finding", "hint"),
    [
        pytest.param(
            [(LOAD, LOAD_MODEL)],
            "the loss of step 5",
            "the optimizer's state",
            id="the optimizer is not restored",
        ),
        pytest.param(
            [("*batch(text, k, rank", "*batch(text, k - first, rank")],
            "the loss of step 4",
            "and the data start again",
            id="the data restart",
        ),
        pytest.param(
            [(LOAD, "")],
            "the loss of step 4",
            "Are the saved parameters loaded",
            id="nothing is loaded",
        ),
        pytest.param(
            [("    if not whole:", "    if True:")],
            "the next run begins from the start",
            "continues with the step after",
            id="it starts over",
        ),
        pytest.param(
            [(SAVE, SAVE.replace('folder / "part"', 'folder / f"step-{step:08}"', 1)
              .replace('        part.rename(folder / f"step-{step:08}")\n', ""))],
            "was killed while it wrote a checkpoint",
            "rename it when it is whole",
            id="a torn checkpoint counts",
        ),
    ],
)  # fmt: skip
def test_a_wrong_restart_is_told_apart(tmp_path, warm, one, changes, finding, hint):
    where = project.Where(wrong(tmp_path, *changes), tmp_path, warm, PATIENCE)
    with pytest.raises(NotRight) as error:
        project.judge_resuming(where, one)
    assert finding in error.value.finding
    assert hint in error.value.hint


HARD_CODED = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
for step in range(parser.parse_known_args()[0].steps):
    print(json.dumps({"step": step, "loss": 5.5 - 0.1 * step}))
print(json.dumps({"rank": 0, "bytes": {"parameters": 8, "gradients": 8, "optimizer": 16}}))
"""


def test_a_curve_that_is_only_printed_is_told_apart(tmp_path, warm):
    script = tmp_path / "script.py"
    script.write_text(HARD_CODED)
    verdict = check.project(script, start=warm)
    assert verdict.status == "wrong"
    assert verdict.exercise == "project"
    start = "another text (1 rank, --stage 0): two different files"
    assert verdict.finding.startswith(start)
    assert "exactly the same losses" in verdict.finding
    assert "Where do they come from" in verdict.hint


def test_a_script_that_is_not_written_yet(tmp_path, warm):
    script = tmp_path / "script.py"
    script.write_text("raise NotImplementedError\n")
    assert check.project(script, start=warm).status == "not written yet"


@pytest.mark.parametrize(
    ("name", "smaller"), [("distributed.py", CONFIG), ("distributed_plain_torch.py", SIZES)]
)
def test_the_scripts_of_the_course_pass(tmp_path, warm, name, smaller, capsys):
    verdict = check.project(changed(tmp_path, name, smaller), start=warm)
    assert verdict, verdict
    assert capsys.readouterr().out.count("\n") == 9
