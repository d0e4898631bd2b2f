"""PipeDream beside its formula on one process, and beside plain SGD."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig, build
from helpers.models.settings import ExpertSettings
from helpers.parallel.pipeline import pipedream as module
from helpers.parallel.pipeline.pipedream import pipedream
from helpers.parallel.pipeline.split import layer_costs, split
from helpers.runtime.launch import launch
from tests.parallel.threads import Link, Ranks

CONFIG = GPTConfig(vocab=17, context=8, width=16, layers=4, heads=2, tied=False)
LR, COUNT = 0.5, 9


def batches(lengths=(8,)):
    return [random_batch(k, 2, lengths[k % len(lengths)], CONFIG.vocab) for k in range(COUNT)]


def on_ranks(worker, config, given):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(pp=worker.world_size))
    return pipedream(mesh, config, given, lr=LR, dtype=torch.float64)


def stale(stages):
    """Narayanan et al. 2019, section 3.3: stage s of n lacks the last n - 1 - s updates.

    On one process, with every version of the weights at hand.
    """
    model = build(CONFIG, dtype=torch.float64)
    first, blocks, last = layer_costs(CONFIG)
    shares = split(blocks, stages, first=first, last=last)

    def stage_of(name):
        if name.startswith("embedding"):
            return 0
        if not name.startswith("blocks"):
            return stages - 1
        return next(s for s, share in enumerate(shares) if int(name.split(".")[1]) in share)

    versions, losses = [{n: p.detach() for n, p in model.named_parameters()}], []
    for k, batch in enumerate(batches()):
        used = {
            name: versions[max(k - (stages - 1 - stage_of(name)), 0)][name].clone().requires_grad_()
            for name in versions[0]
        }
        logits = functional_call(model, used, (batch.tokens,))
        total, count = model.criterion(logits, batch.targets)
        losses.append((total / count).item())
        gradients = torch.autograd.grad(total / count, list(used.values()))
        newest = versions[-1]
        versions.append({n: newest[n] - LR * g for n, g in zip(used, gradients, strict=True)})
    return losses, versions[-1]


def test_each_stage_lags_as_the_paper_says():
    stages = 4
    runs = launch(on_ranks, stages, device="cpu", config=CONFIG, given=batches())
    losses, weights = stale(stages)
    assert runs[-1]["losses"] == pytest.approx(losses, abs=1e-12)
    found = {name: w for run in runs for name, w in run["weights"].items()}
    assert found.keys() == weights.keys()
    for name, w in found.items():
        torch.testing.assert_close(w, weights[name], rtol=0, atol=1e-12)
    for stage, run in enumerate(runs):
        lag = stages - 1 - stage
        assert run["staleness"] == [min(k, lag) for k in range(COUNT)]
        assert run["versions"] == lag + 1
        assert run["bytes"] == (lag + 1) * run["one_version"]
        assert run["one_version"] == 8 * sum(w.numel() for w in run["weights"].values())


def test_staleness_shows_in_the_loss():
    assert max(abs(a - b) for a, b in zip(stale(1)[0], stale(4)[0], strict=True)) > 1e-3


def test_what_it_cannot_train():
    for change, given, why in [
        ({"tied": True}, batches(), "use a config with tied=False"),
        ({}, batches(lengths=(8, 5)), "batches of one shape"),
        ({"experts": ExpertSettings(count=2, z_rate=0.1)}, batches(), "no experts' l"),
    ]:
        with pytest.raises(ValueError, match=why):
            pipedream(None, replace(CONFIG, **change), given, lr=LR)


class Mesh:
    """Ranks of a pipeline that are threads."""

    def __init__(self, ranks, rank):
        self.layout, self.rank, self.link = Layout(pp=ranks.size), rank, Link(ranks, rank)

    def size(self, axis):
        return self.layout.size(axis)


def on_threads(monkeypatch, ranks, *arguments, **options):
    together = Ranks(ranks)
    monkeypatch.setattr(module, "between_neighbours", lambda mesh, axis: {"pp": mesh.link}[axis])
    return together.run(lambda rank: pipedream(Mesh(together, rank), *arguments, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_stage_is_plain_sgd(monkeypatch, dtype):
    """With dropout by step and number, another seed, and a batch without a single target."""
    config = replace(CONFIG, dropout=0.3)
    given = [
        replace(batch, step=k + 2, numbers=torch.tensor([7, 4]))
        for k, batch in enumerate(batches()[:3])
    ]
    given[1].targets.fill_(-100)
    [run] = on_threads(monkeypatch, 1, config, given, lr=LR, seed=3, dtype=dtype)
    model, losses = build(config, seed=3, dtype=dtype), []
    for batch in given:
        total, count = model.loss(batch)
        loss = total / max(count, 1)
        losses.append(loss.item())
        for p, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            p.data -= LR * gradient
    assert run["losses"] == pytest.approx(losses, rel=1e-6)
    assert losses[1] == 0
    for name, p in model.named_parameters():
        assert run["weights"][name].dtype == dtype
        torch.testing.assert_close(run["weights"][name], p.detach())
