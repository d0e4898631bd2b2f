"""What is written behind training is the state of the call; errors come later, but they come."""

import threading
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state import checkpoint
from helpers.state.background import Background
from helpers.state.seal import newest
from tests.parallel.beside import flat

TINY = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)


class Gate:
    """Holds every writing of this process until it is open."""

    def __init__(self):
        self.open, self.write = threading.Event(), checkpoint.write

    def __enter__(self):
        checkpoint.write = lambda *given: self.open.wait(60) and self.write(*given)
        return self.open

    def __exit__(self, *_):
        self.open.set()
        checkpoint.write = self.write


def bits(state) -> dict:
    everything = flat(state["optimizer"]) | state["model"]
    return {name: torch.as_tensor(value).clone() for name, value in everything.items()}


def differ(one: dict, other: dict) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def trains_on(worker, recipe, folder):
    """Save twice: the writer begins after three more steps, and beside three more steps."""
    trainer, background = recipe(TINY, 0), Background()
    batch = random_batch(0, 4, TINY.context, TINY.vocab)

    def steps():
        for _ in range(3):
            trainer.step(batch.shard(trainer.data_rank, trainer.data_size))

    steps()
    saved, places = [], [5, 6]
    for late in (True, False):
        with Gate() as gate:
            saved.append(bits(trainer.full_state()))
            trainer.save(f"{folder}/{late}", background, places=places)
            places.append(7)
            if not late:
                gate.set()
            steps()
            gate.set()
            background.wait()
    found = []
    for k, late in enumerate((True, False)):
        again = recipe(TINY, 1)
        progress = again.restore(f"{folder}/{late}")
        found.append((progress, differ(bits(again.full_state()), saved[k])))
    found.append(len(differ(*saved)))
    memory = {place: tensor.data_ptr() for place, tensor in background.room.items()}
    trainer.save(f"{folder}/third", background)
    assert memory == {place: tensor.data_ptr() for place, tensor in background.room.items()}
    background.wait()
    trainer.close()
    return found


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(layout=Layout(dp=2), owner=Zero3),  # resharded to rows, by messages of the thread
        Recipe(layout=Layout(dp=2, tp=2)),
    ],
    ids=["single", "ZeRO 3", "tensor"],
)
def test_training_goes_on_and_the_files_have_the_state_of_the_call(recipe, tmp_path):
    ranks = recipe.layout.world_size if recipe.layout else 1
    for first, second, changed in launch(
        trains_on, ranks, device="cpu", recipe=recipe, folder=str(tmp_path)
    ):
        assert first == ({"places": [5, 6]}, [])
        assert second == ({"places": [5, 6, 7]}, [])
        assert changed > 40  # training does change what the files must not see


def two(worker, folder):
    """One Background for two layouts: each checkpoint has the parts of its own strategy."""
    background, found = Background(), []
    for recipe in (Recipe(layout=Layout(dp=2), owner=Zero3), Recipe(layout=Layout(tp=2))):
        trainer = recipe(TINY, 0)
        trainer.save(f"{folder}/{recipe.owner.__name__}", background)
        background.wait()
        again = Recipe(layout=Layout(dp=2))(TINY, 1)
        again.restore(f"{folder}/{recipe.owner.__name__}")
        found.append(differ(again.full_state()["model"], trainer.full_state()["model"]))
        trainer.close()
    return found


def test_a_layout_may_follow_another(tmp_path):
    assert list(launch(two, 2, device="cpu", folder=str(tmp_path))) == [[[], []]] * 2


def fails(worker, folder):
    trainer, background, told = Recipe(layout=Layout(dp=2))(TINY, 0), Background(), []

    def save(name):
        trainer.save(f"{folder}/{name}", background)

    def says(act):
        try:
            act()
        except FileExistsError as error:
            told.append(str(error))

    save("a")
    save("a")
    says(background.wait)
    save("a")
    says(partial(save, "b"))
    says(background.wait)  # each error is told once, and "b" is not being written
    save("b")
    background.wait()
    return told


def test_an_error_comes_at_the_next_call_on_every_rank(tmp_path):
    for told in launch(fails, 2, device="cpu", folder=str(tmp_path)):
        assert len(told) == 2
        assert all("a folder of its own" in text for text in told)
    assert newest(tmp_path) == tmp_path / "b"


def test_a_save_waits_for_the_writing_before_it(tmp_path):
    one, background = Single(TINY, 0), Background()
    background.wait()  # nothing is being written
    with Gate() as gate:
        one.save(tmp_path / "1", background)
        assert not list(tmp_path.iterdir())
        threading.Timer(0.2, gate.set).start()
        one.save(tmp_path / "2", background)
        assert newest(tmp_path) == tmp_path / "1"
        background.wait()
    assert newest(tmp_path) == tmp_path / "2"
