"""Activations that wait in host memory: the same training, and each saved storage is sent once."""

from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.measure.saved import saved_by
from helpers.models.gpt import GPTConfig
from helpers.parallel.offload.activations import ActivationsOnHost, activations_on_host
from helpers.parallel.offload.disk import on_disk
from helpers.parallel.offload.host import OnHost
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.activation_memory import block_activations
from helpers.plans.schedules import one_f_one_b
from tests.parallel.beside import GPT2, ODD, Case, hold

pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")
AWAY = Recipe(engine=activations_on_host())
HOSTED = replace(AWAY, owner=Zero3, precision=OnHost(Mixed(torch.float64)))
PIPED = Recipe(layout=Layout(pp=2), schedule=one_f_one_b, engine=activations_on_host(Pipeline))
CASES = {
    "one process": Case(AWAY, GPT2, {"dp": 1}, micro_batches=2),
    "recomputed": Case(AWAY, replace(GPT2, recompute="full"), {"dp": 1}),
    "3, all on the host": Case(HOSTED, GPT2, sequences=7, micro_batches=2),
    "3, recomputed": Case(HOSTED, replace(GPT2, recompute="full")),
    "a pipeline, recomputed in part": Case(
        PIPED, replace(ODD, recompute="selective"), micro_batches=2
    ),
}


BY_RANKS = dict(sorted(CASES.items(), key=lambda item: item[1].ranks))


@pytest.mark.parametrize("case", BY_RANKS.values(), ids=BY_RANKS)
def test_it_equals_one_process(ranks, case):
    hold(ranks, case)


B, T = 4, 8
TABLE = {
    how: GPTConfig(vocab=33, context=T, width=12, layers=3, heads=2, recompute=how)
    for how in ("none", "selective", "full")
}


@pytest.mark.parametrize("config", TABLE.values(), ids=TABLE)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_each_saved_storage_is_sent_once_and_brought_back_once(config, micro_batches):
    trained = AWAY(config, 0, micro_batches=micro_batches)
    batch = random_batch(0, B, T, config.vocab)
    saved = [
        one.bytes
        for part in batch.micro(micro_batches)
        for one in saved_by(lambda part=part: trained.model.loss(part)[0], trained.model)
    ]
    trained.step(batch)
    link = trained.engine.activations.link
    assert sum(saved) <= link.to_host <= 1.01 * sum(saved)  # the loss divides by a number
    assert link.to_device <= link.to_host
    assert link.to_device > 0.95 * link.to_host  # a few saved tensors are never used
    assert not trained.engine.activations.sent  # nothing stays


def test_of_a_recomputed_block_its_input_alone_is_sent():
    sent = {}
    for layers in (2, 3):
        config = replace(TABLE["full"], layers=layers)
        trained = AWAY(config, 0)
        trained.step(random_batch(0, B, T, config.vocab))
        sent[layers] = trained.engine.activations.link.to_host
    assert sent[3] - sent[2] == sum(block_activations(config, B, T, bytes_per_number=4).values())


def test_nothing_is_sent_without_a_backward_and_parameters_stay():
    trained = AWAY(ODD, 0)
    trained.evaluate(random_batch(0, B, T, ODD.vocab))
    assert trained.engine.activations.link.to_host == 0
    linear, x = torch.nn.Linear(5, 5), torch.randn(3, 5, requires_grad=True)
    with ActivationsOnHost(linear) as activations:
        linear(x.detach()).sum().backward()  # saves its input, not its weight
        assert activations.link.to_host == 3 * 5 * 4
        linear(x).sum().backward()
    assert activations.link.to_host == 2 * 3 * 5 * 4
    assert torch.allclose(x.grad, linear.weight.detach().sum(0).expand(3, 5))


def test_a_storage_that_is_written_to_is_sent_again():
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    with ActivationsOnHost() as activations:
        base = x.clone()
        loss = (base[0] * base[0]).sum()
        with torch.no_grad():
            base[1] *= 3  # the backward of the second row must see it, the first row's need not
        loss = loss + (base[1] * base[1]).sum()
        loss.backward()
    assert torch.allclose(x.grad, torch.stack([2 * x[0], 2 * 3 * x[1]]).detach())
    assert activations.link.to_host == 2 * x.nbytes


def test_views_of_one_storage_are_sent_together_and_addresses_that_come_again_are_not_mixed_up():
    x = torch.randn(6, 64, dtype=torch.float64, requires_grad=True)
    with ActivationsOnHost() as activations:
        both = x.exp()  # saves its result
        (both[:3].sin().sum() + both.t()[:, 3:].cos().sum()).backward()  # save views of it
        assert activations.link.to_host == both.nbytes
        assert activations.link.to_device == both.nbytes
        expected = both[:3].cos() * both[:3], -both[3:].sin() * both[3:]
        assert torch.allclose(x.grad, torch.cat(expected).detach())
        for k in range(20):  # chains whose links are freed at once
            y = torch.full((1000,), 0.5 + k, dtype=torch.float64, requires_grad=True)
            y.sqrt().sqrt().sqrt().sum().backward()
            assert torch.allclose(y.grad, y.detach() ** -0.875 / 8)


def test_it_is_for_engines_and_their_partials(tmp_path):
    both = Recipe(engine=activations_on_host(), owner=on_disk(folder=tmp_path))(ODD, 0)
    both.step(random_batch(0, B, T, ODD.vocab))
    assert both.engine.activations.link.to_host > 0
    assert both.held()["optimizer", "disk"] > 0
