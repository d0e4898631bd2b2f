"""A film that real ranks recorded can be drawn, and ends with the bytes that it began with."""

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.recipe import Recipe
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage3 import Zero3
from helpers.plots.film import begin, bytes_held, film
from helpers.plots.style import MEMORY_COLORS
from helpers.runtime.launch import launch

CONFIG = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)


def record(worker):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = Recipe(owner=Zero3)(CONFIG, 0, mesh)
    batch = random_batch(0, 4, 8, CONFIG.vocab).shard(worker.rank, worker.world_size)
    trainer.step(batch)  # learns the order of the units
    with filming(trainer.owner) as recorded:
        trainer.step(batch)
    count = len(recorded.events)
    trainer.step(batch)
    assert len(recorded.events) == count  # the film has ended
    trainer.close()
    return recorded.events


def nonzero(held):
    return {place: nbytes for place, nbytes in held.items() if nbytes}


def test_a_recorded_step():
    for events in launch(record, 2, device="cpu"):
        assert {event["kind"] for event in events} <= set(MEMORY_COLORS)
        assert {event["state"] for event in events} >= {"gathering", "in use", "sending", "freed"}
        before, after = nonzero(bytes_held(events, begin(events))), nonzero(bytes_held(events))
        assert before == after
        assert film(events).picture()._repr_png_()[0].startswith(b"\x89PNG")
