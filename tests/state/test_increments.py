"""Only what has changed is written; each folder is whole by itself, whatever is cleaned up."""

import shutil
from pathlib import Path

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state import checkpoint, seal
from helpers.state.all_parts import AllParts
from helpers.state.background import Background
from helpers.state.increments import Increments
from helpers.state.part import Part

ROW = torch.arange(4.0).view(4, 1)
TINY = GPTConfig(vocab=16, context=8, width=64, layers=2, heads=2)


def only_norms(*given):
    placed = plain(*given)
    for name, p in placed.model.named_parameters():
        p.requires_grad_("norm" in name)
    return placed


def written(folder: Path) -> int:
    """The bytes of a folder's own files: those that no other folder names."""
    return sum(f.stat().st_size for f in folder.iterdir() if f.stat().st_nlink == 1)


def saves(worker, folder, background):
    """Four checkpoints of two ranks, of which only the last two are kept. Returns their bytes."""
    recipe = Recipe(transform=only_norms, layout=Layout(dp=2), owner=Zero3)
    trainer, increments, folder = recipe(TINY, 0), Increments(), Path(folder)
    how = {"background": Background(increments)} if background else {"increments": increments}
    batch, sizes, states = random_batch(0, 4, TINY.context, TINY.vocab), [], []
    for k in range(4):
        trainer.step(batch.shard(worker.rank, 2))
        trainer.save(folder / f"step_{k}", **how, updates=k)
        if background:
            how["background"].wait()
        sizes.append(written(folder / f"step_{k}"))
        states.append(trainer.full_state())
        torch.distributed.barrier()
    if worker.rank == 0:
        seal.prune(folder, keep=2)
    torch.distributed.barrier()
    trainer.close()
    return sizes, states


@pytest.mark.parametrize("background", [False, True])
def test_what_is_frozen_is_written_once(tmp_path, background):
    sizes, states = launch(saves, 2, device="cpu", folder=str(tmp_path), background=background)[0]
    assert sizes[0] > 400_000
    assert max(sizes[1:]) < 0.2 * sizes[0]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step_2", "step_3"]
    for k in (2, 3):
        path = tmp_path / f"step_{k}"
        seal.verify(path)
        again = Single(TINY, 1)
        assert again.restore(path) == {"updates": k}
        for name, value in again.full_state()["model"].items():
            assert torch.equal(value, states[k]["model"][name]), name


def damage(step: Path):
    [file] = step.glob("*.distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("trouble", "anew"),
    [
        (lambda step: None, False),
        (damage, True),
        (lambda step: next(step.glob("*.distcp")).unlink(), True),
        (lambda step: (step / seal.SEAL).unlink(), True),
        (shutil.rmtree, True),
    ],
    ids=["none", "a changed byte", "no file", "no seal", "no folder"],
)
def test_an_older_file_that_is_not_as_it_was_is_not_linked(tmp_path, trouble, anew):
    trainer, increments = Recipe(transform=only_norms)(TINY, 0), Increments()
    old, new = (tmp_path / step / "state" for step in "01")  # folders of one name
    trainer.save(old, increments=increments)
    size = written(old)
    trouble(old)
    trainer.step(random_batch(0, 4, TINY.context, TINY.vocab))
    trainer.save(new, increments=increments)
    seal.verify(new)
    assert (written(new) > 0.9 * size) == anew
    assert Single(TINY, 1).restore(new) == {}


@pytest.mark.parametrize("other", [ROW.view(torch.int32), ROW.view(1, 4)], ids=["dtype", "shape"])
def test_the_same_bytes_may_be_another_tensor(tmp_path, other):
    increments = Increments()
    for name, value in (("old", ROW), ("new", other)):
        parts = AllParts([{"w": Part(name="w", shape=tuple(value.shape), holders=(0,))}])
        checkpoint.save(tmp_path / name, None, parts, {"w": value}, increments=increments)
    found = torch.zeros_like(other)
    checkpoint.load(tmp_path / "new", None, parts, {"w": found})
    assert torch.equal(found, other)


def test_a_save_that_fails_does_not_count(tmp_path, monkeypatch):
    """What it has written is removed, so the next save must not link it."""
    trainer, increments = Recipe(transform=only_norms)(TINY, 0), Increments()
    trainer.save(tmp_path / "step_0", increments=increments)
    trainer.step(random_batch(0, 4, TINY.context, TINY.vocab))

    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(seal, "finish", full)
        with pytest.raises(OSError, match="no space left"):
            trainer.save(tmp_path / "step_1", increments=increments)
    trainer.save(tmp_path / "step_1", increments=increments)
    seal.verify(tmp_path / "step_1")
    with pytest.raises(ValueError, match="of its own"):  # they would not be used
        trainer.save(tmp_path / "step_2", Background(), increments)
    right, again = trainer.full_state()["model"], Single(TINY, 1)
    again.restore(tmp_path / "step_1")
    assert all(torch.equal(v, right[n]) for n, v in again.full_state()["model"].items())
