"""Activation memory: the formula beside what autograd saves on ranks, and beside the paper."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.measure.saved import Saved, saved_by
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.plans.activation_memory import block_activations, korthikanti, measured_terms
from helpers.runtime.launch import launch
from helpers.simulate.memory import at
from helpers.simulate.plan import Plan

pytestmark = pytest.mark.usefixtures("kept_ranks")

B, T = 3, 12
SIZES = {"vocab": 32, "context": T, "width": 32, "layers": 1, "heads": 4, "attention": "explicit"}
GPT2 = GPTConfig(**SIZES, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.1)
CONFIGS = {
    "GPT-2": GPT2,
    "bytes": GPTConfig(**SIZES),
    "selective": replace(GPT2, recompute="selective"),
    "full": replace(GPT2, recompute="full"),
}
WAYS = {
    "tensor": (tensor_parallel, {}),
    "sequence, inputs kept": (partial(sequence_parallel, again=False), {"sharded": True}),
    "sequence": (sequence_parallel, {"sharded": True, "again": True}),
}


def activations(worker, transform, config):
    """Bytes that autograd saves in the forward and backward of a batch."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(tp=worker.world_size))
    trainer = Recipe(transform=transform)(config, 0, mesh)
    batch = random_batch(0, B, T, config.vocab)

    def step():
        loss, count = trainer.model.loss(batch)
        (loss / count).backward()

    return memory_of(step, trainer.model).activations


def of_a_block(transform, config, ranks):
    """What the third block adds to two."""
    two, three = (
        launch(
            activations, ranks, device="cpu", transform=transform, config=replace(config, layers=n)
        )
        for n in (2, 3)
    )
    assert len(set(two)) == len(set(three)) == 1  # the same on all ranks
    return three[0] - two[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_with_full_recomputation_a_block_keeps_its_input(ranks, way):
    transform, options = WAYS[way]
    if ranks == 1 and options:
        pytest.skip("one rank has all tokens")
    formula = block_activations(CONFIGS["full"], B, T, bytes_per_number=4, ranks=ranks, **options)
    assert of_a_block(transform, CONFIGS["full"], ranks) == sum(formula.values())


def terms(worker, transform, config):
    """Measured by term, for each block."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(tp=worker.world_size))
    model = Recipe(transform=transform)(config, 0, mesh).model
    saved = saved_by(lambda: model.loss(random_batch(0, B, T, config.vocab)), model)
    return [measured_terms(config, saved, T, block) for block in range(config.layers)]


@pytest.mark.parametrize("config", ["GPT-2", "bytes", "selective"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_term_is_what_autograd_saves_there(way, config, ranks):
    transform, options = WAYS[way]
    config = replace(CONFIGS[config], layers=2)
    formula = block_activations(config, B, T, bytes_per_number=4, ranks=ranks, **options)
    for run in launch(terms, ranks, device="cpu", transform=transform, config=config):
        assert run == [formula, formula]
    if way != "sequence, inputs kept":  # simulated: numbers of 2 bytes, masks of 1
        plan = Plan(layout=Layout(tp=ranks), sequences=B, tokens=T, micro=B, sequence=bool(options))
        half = sum(size if "mask" in term else size / 2 for term, size in formula.items())
        assert at(config, plan, 0)["activations"] == 2 * half


def test_what_has_no_term():
    wide = replace(GPT2, width=48)  # heads of 12, and 12 tokens
    with pytest.raises(ValueError, match="scores look like queries"):
        measured_terms(wide, [], T)
    with pytest.raises(ValueError, match="there are no terms"):
        measured_terms(CONFIGS["full"], [], T)
    odd = Saved(module="blocks.0.extra", shape=(3,), dtype=torch.float32, bytes=12)
    with pytest.raises(ValueError, match=r"blocks\.0\.extra saved \(3,\)"):
        measured_terms(GPT2, [odd], T)
    assert not any(measured_terms(GPT2, [replace(odd, module="blocks.01")], T).values())


# Korthikanti et al. 2022, arXiv:2205.05198, table 2, for s = 2048, b = 1, h = 12288, a = 96
# (GPT-3), t = 8. With 5as/h = 80.
PUBLISHED = {
    "no parallelism": 34 + 80,
    "tensor": 10 + 24 / 8 + 80 / 8,
    "tensor and sequence": 34 / 8 + 80 / 8,
    "tensor, selective": 10 + 24 / 8,
    "tensor and sequence, selective": 34 / 8,
    "full": 2,
}


@pytest.mark.parametrize(("way", "factor"), PUBLISHED.items())
def test_the_paper_s_table(way, factor):
    assert korthikanti(1, 2048, 12_288, 96, 8, way) == pytest.approx(2048 * 12_288 * factor)


def test_without_scores_ours_is_the_paper_s():
    """A GPT-2 block with dropout: 34 B T D, and the norms' statistics, which the paper omits."""
    config = replace(GPT2, recompute="selective")
    ours = block_activations(config, 1, 64)
    statistics = 2 * 2 * 64 * 2
    assert sum(ours.values()) - statistics == korthikanti(1, 64, 32, 4, 1, "tensor, selective")


# Section 5: (s, h, a), then 5as/h, and the percentage that selective recomputation saves.
SAVES = {"GPT-3": ((2048, 12_288, 96), 80, 70), "MT-NLG": ((2048, 20_480, 128), 64, 65)}


@pytest.mark.parametrize(("shape", "scores", "percent"), SAVES.values(), ids=SAVES)
def test_selective_recomputation_saves_most(shape, scores, percent):
    every, kept = (korthikanti(3, *shape, 1, way) for way in ("tensor", "tensor, selective"))
    assert every - kept == scores * 3 * shape[0] * shape[1]
    assert round(100 * (1 - kept / every)) == percent


def test_an_unknown_way():
    with pytest.raises(KeyError):
        korthikanti(1, 1, 1, 1, 1, "magic")
