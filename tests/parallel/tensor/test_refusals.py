"""What tensor and sequence parallelism cannot cut, they refuse with a reason."""

import pytest

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

SIZES = {"vocab": 32, "context": 12, "width": 24, "layers": 1}


def step(worker, transform, config, tokens):
    mesh = make_mesh(Layout(tp=worker.world_size))
    trainer = Recipe(transform=transform)(config, 0, mesh)
    return trainer.step(random_batch(0, 2, tokens, config.vocab)).loss.item()


def odd_batch(worker, transform, token, target):
    """A batch with one odd token and one odd target."""
    config = GPTConfig(**SIZES, heads=4)
    batch = random_batch(0, 2, 12, config.vocab)
    batch.tokens[0, 3], batch.targets[1, 7] = token, target
    trainer = Recipe(transform=transform)(config, 0, make_mesh(Layout(tp=worker.world_size)))
    return trainer.step(batch).loss.item()


@pytest.mark.parametrize(
    ("token", "target", "words"),
    [
        (32, 0, "a token is outside the vocabulary of 32"),
        (31, 32, "a target is outside the vocabulary of 32"),
    ],
)
def test_tokens_that_no_rank_has(token, target, words):
    """One process raises an IndexError. On ranks, a sum of zeros would go on in silence."""
    with pytest.raises(WorkerError, match=words):
        launch(odd_batch, 2, device="cpu", transform=tensor_parallel, token=token, target=target)


def test_the_last_token_and_an_ignored_target_are_fine():
    options = {"device": "cpu", "transform": tensor_parallel, "token": 31, "target": -100}
    assert launch(odd_batch, 2, **options)


def test_tokens_that_do_not_divide():
    config = GPTConfig(**SIZES, heads=4)
    with pytest.raises(WorkerError, match=r"11 tokens do not divide over 2 ranks.*tensor parallel"):
        launch(step, 2, device="cpu", transform=sequence_parallel, config=config, tokens=11)
    assert launch(step, 2, device="cpu", transform=tensor_parallel, config=config, tokens=11)
