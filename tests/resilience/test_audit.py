"""Each mistake in saving is found and named; honest checkpoints are not accused."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import IGNORED, copying_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.offload.delay import Delayed, delayed
from helpers.parallel.precision import EmulatedFp8, Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage3 import Zero3
from helpers.resilience.audit import LATEST, check_checkpoints, differing
from helpers.resilience.lies import LAST, LIES, plant
from helpers.runtime.launch import launch

TINY = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)
FROM, TO = "step_000004", "step_000008"
NOT = f"{TO} is not what 4 updates make of {FROM}"
FOUND = {
    "one step late": f"{NOT}: its parameters are of update 9",
    "copies of the first": f"{TO} has the numbers of {FROM}",
    "tracker ahead": "`latest` names step_000016, which is no whole checkpoint; the newest is "
    "step_000012",
    "cleaned up too early": "no checkpoint is whole: training starts anew",
    "moments of half the tensors zero": f"{TO} has no numbers in "
    "blocks.0.attention_norm.weight.exp_avg and 9 others",
    "ranks of two steps": f"{NOT}: model.embedding.weight and 27 others are still of {FROM}",
    "data from the start": f"{NOT}, but what batches 0 to 3 make: the data began anew",
}


def make():
    return Recipe()(TINY, 0)


def batch_of(k):
    return copying_batch(k, 4, TINY.context, TINY.vocab)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def honest():
    strategy = make()
    for k in range(LAST):
        strategy.step(batch_of(k))
    return strategy.full_state()


@pytest.mark.parametrize("lie", [None, *LIES])
def test_each_lie_is_found_and_honest_runs_are_not_accused(lie, tmp_path, honest):
    [strategy] = made = [make()]
    plant(lie, tmp_path, made.pop, batch_of)
    # Only the checkpoints lie: training itself is undisturbed.
    wrong = differing(strategy.full_state(), honest)
    assert bool(wrong) == (lie in ("one step late", "data from the start"))
    found = check_checkpoints(tmp_path, make, batch_of)
    if lie is None:
        assert found == []
    else:
        assert FOUND[lie] in found
        others = {text for name, text in FOUND.items() if name != lie}
        assert not others & set(found)


@pytest.mark.parametrize(
    ("recipe", "lacks"),
    [
        (Recipe(), ""),
        (Recipe(precision=EmulatedFp8()), EmulatedFp8.unsaved),
        (Recipe(owner=delayed(), precision=Mixed(torch.float64)), Delayed.unsaved),
    ],
    ids=["gradients of zero", "fp8", "delayed"],
)
def test_honest_runs_that_look_odd(recipe, lacks, tmp_path):
    def batches(k):
        batch = batch_of(k)
        return batch if lacks else replace(batch, targets=torch.full_like(batch.targets, IGNORED))

    given = tmp_path, partial(recipe, TINY, 0), batches
    plant(None, *given)
    why = f"the numbers were not compared: no checkpoint has {lacks}"
    assert check_checkpoints(*given) == ([why] if lacks else [])


def test_other_ways_to_lie(tmp_path):
    plant(None, tmp_path, make, batch_of)
    (tmp_path / LATEST).write_text(FROM)
    [found] = check_checkpoints(tmp_path, make, batch_of)
    assert found == f"`latest` names {FROM}, which is older than step_000012"
    (tmp_path / LATEST).unlink()
    (tmp_path / TO).rename(tmp_path / "step_000007")
    [found] = check_checkpoints(tmp_path, make, batch_of)
    assert found == "step_000007 says that it was saved after 8 updates"
    (tmp_path / "step_000007").rename(tmp_path / f"{TO}.writing")  # unfinished: no lie
    assert check_checkpoints(tmp_path, make, batch_of) == []
    strategy = make()
    strategy.step(batch_of(0))
    strategy.save(tmp_path / "step_000099")
    [found] = check_checkpoints(tmp_path, make, batch_of)
    assert found == "step_000099 does not say after how many updates it was saved"
    shutil.rmtree(tmp_path / "step_000099")
    other = [check_checkpoints(tmp_path, make, lambda k: batch_of(k + 50))]
    assert "tensors differ, the first is" in other[0][0]
    assert check_checkpoints(tmp_path / "none", make, batch_of) == [
        "no checkpoint is whole: training starts anew"
    ]


def test_a_name_with_one_digit_more_is_newer(tmp_path):
    strategy = make()
    for updates in (999_999, 1_000_000):
        strategy.save(tmp_path / f"step_{updates:06d}", updates=updates)
        strategy.step(batch_of(updates))
    (tmp_path / LATEST).write_text("step_1000000")
    assert check_checkpoints(tmp_path, make, batch_of) == []


def test_single_checkpoints(tmp_path):
    """At update 0, moments may be zero. NaN is named."""
    strategy = make()
    state, slots = strategy.full_state(), ("exp_avg", "exp_avg_sq", "step")
    zeros = {
        name: {slot: torch.zeros(() if slot == "step" else value.shape) for slot in slots}
        for name, value in state["model"].items()
    }
    strategy.load({**state, "optimizer": zeros})
    strategy.save(tmp_path / "step_000000", updates=0)
    assert check_checkpoints(tmp_path, make, batch_of) == []
    strategy.parameters["norm.weight"].detach()[3] = torch.nan
    strategy.save(tmp_path / "step_000004", updates=4)
    found = check_checkpoints(tmp_path, make, batch_of)
    assert found[0].startswith("step_000004 cannot be loaded: norm.weight has NaN or infinite")
    assert len(found) == 1


def on_ranks(worker, folder):
    def made():
        return Recipe(layout=Layout(dp=2), owner=Zero3)(TINY, 0)

    def own(k):
        return batch_of(k).shard(worker.rank, worker.world_size)

    plant("one step late", Path(folder), made, own)
    return check_checkpoints(Path(folder), made, own)


def test_ranks_check_their_shards_together(tmp_path):
    for found in launch(on_ranks, workers=2, device="cpu", folder=str(tmp_path)):
        assert found[0] == FOUND["one step late"]
