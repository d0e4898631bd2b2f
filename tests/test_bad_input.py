"""Bad input is refused where it enters, in one plain sentence."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import check
from helpers.comm.mesh import Layout
from helpers.inference.engine.request import Request
from helpers.inference.generate import generate, stream
from helpers.models.gpt import GPTConfig
from helpers.models.initialization import build
from helpers.parallel.libraries.data_parallel import TorchDataParallel
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe, Trainer
from helpers.runtime.cluster import Cluster
from helpers.runtime.joined.job import save_job
from helpers.runtime.launch import launch
from helpers.state.placing import Seat

TINY = GPTConfig(vocab=33, context=12, width=8, layers=1, heads=2)
MODEL, TRAINED = build(TINY), Single(TINY)
TOKENS = "a prompt is a list of tokens, whole numbers such as [72, 105], not "
MICRO = "micro_batches must be a whole number, 1 or more, not "
SEED = "seed must be a whole number, not "
FUNCTION = "give a function of a worker, not a "


def returns(worker):
    return worker.rank


BAD = {
    "a float as token": (partial(generate, MODEL, [[1, 2.7]], 2), TOKENS + "[1, 2.7]"),
    "a float in a tensor": (partial(generate, MODEL, torch.tensor([[1.5]]), 2), TOKENS),
    "a text": (partial(generate, MODEL, ["hi"], 2), TOKENS + "'hi': encode a text first"),
    "a text in a stream": (partial(stream, MODEL, "hi", 2), TOKENS + "'hi': encode a text first"),
    "a request's float": (
        lambda: Request(number=0, prompt=(2.5,), new_tokens=1),
        TOKENS + "(2.5,)",
    ),
    "flat prompts": (
        partial(generate, MODEL, [1, 2], 2),
        TOKENS + "1: several prompts are a list of such lists",
    ),
    "no prompts": (partial(generate, MODEL, None, 2), "prompts is a list of prompts, not None"),
    "half a new token": (
        partial(generate, MODEL, [[1]], 2.5),
        "new_tokens must not be negative, and whole: 2.5",
    ),
    "half a micro-batch": (lambda: Trainer(Recipe(), TINY, micro_batches=1.5), MICRO + "1.5"),
    "half of a schedule's": (
        lambda: Recipe(layout=Layout(pp=2))(TINY, 0, Seat(Layout(pp=2), 0), micro_batches=1.5),
        MICRO + "1.5",
    ),
    "no micro-batch": (
        lambda: Recipe(layout=Layout(dp=1))(TINY, 0, Seat(Layout(dp=1), 0), micro_batches=0),
        MICRO + "0",
    ),
    "a library's micro-batch": (lambda: TorchDataParallel(TINY, 0, None, micro_batches="2"), MICRO),
    "a word as seed": (lambda: Trainer(Recipe(), TINY, "a"), SEED + "'a'"),
    "a library's seed": (lambda: TorchDataParallel(TINY, None, None), SEED + "None"),
    "no recipe": (lambda: Trainer(None, TINY), "recipe must be a Recipe, not None"),
    "a recipe's class": (lambda: Trainer(Recipe, TINY), "recipe must be a Recipe, not <class"),
    "no configuration": (lambda: Trainer(Recipe(), None), "config must have a method `build`, as"),
    "a word as layout": (
        lambda: Recipe(layout="dp"),
        "layout must be a Layout, such as Layout(dp=2)",
    ),
    "a word as owner": (lambda: Recipe(owner="zero3"), "owner must be callable, not 'zero3'"),
    "no batch": (lambda: TRAINED.step(None), "batch must be a Batch or Pictures, not None"),
    "a tensor as batch": (
        lambda: TRAINED.step(torch.ones(2, 2)),
        "batch must be a Batch or Pictures",
    ),
    "nothing to evaluate": (lambda: TRAINED.evaluate(None), "batch must be a Batch or Pictures"),
    "nothing to load": (lambda: TRAINED.load({}), 'a state is {"model": {name: tensor}'),
    "a number as curve": (
        partial(launch, returns, live=3),
        "live is the name of a logged value, such as 'loss', or None, not 3",
    ),
    "yes as workers": (partial(launch, returns, workers=True), "workers must be a positive whole"),
    "yes as ranks": (partial(Cluster, True), "workers must be a positive whole number, not True"),
    "no function to launch": (partial(launch, None), FUNCTION + "NoneType"),
    "no function to save": (partial(save_job, "unused", None), FUNCTION + "NoneType"),
    "an unknown argument": (partial(save_job, "unused", returns, x=1), "returns(worker) cannot be"),
    "a job in no folder": (partial(save_job, None, returns), "folder must be a path, not None"),
    "a job in a file": (
        partial(save_job, __file__, returns),
        f"{__file__} is a file: save the job in a folder of its own",
    ),
    "an unknown check": (
        lambda: check.ring_allreduce,
        "there is no check 'ring_allreduce'; the nearest: ring_all_reduce",
    ),
    "a check of nothing": (
        lambda: check.ring_all_reduce(None),
        "takes your function, not None: check.ring_all_reduce(ring_all_reduce)",
    ),
    "a check of a result": (
        lambda: check.optimal(3.5),
        "check.optimal takes your function, not 3.5",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    act, words = BAD[case]
    with pytest.raises((ValueError, TypeError, AttributeError, OSError), match=re.escape(words)):
        act()
    assert not Path("unused").exists()


def test_whole_numbers_of_other_kinds_are_good_input():
    """A row of a tensor, a tuple, bytes; a number of NumPy."""
    prompts = [torch.tensor([1, 2]), (1, 2), b"\1\2"]
    assert len({tuple(g.tokens) for g in generate(MODEL, prompts, 3)}) == 1
    seed = torch.arange(3).numpy()[2]
    one, two = Single(TINY, seed), Single(TINY, 2)
    assert all(one.parameters[name].equal(p) for name, p in two.parameters.items())
