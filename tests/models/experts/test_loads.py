"""Loads, drops and reads, counted again from what routers return."""

from dataclasses import replace

import pytest
import torch

from helpers.measure.flops import flops_of
from helpers.models.caches.preallocated import Preallocated
from helpers.models.counts import parameters
from helpers.models.experts.loads import loads_of
from helpers.models.experts.reads import decode, expected_distinct
from helpers.models.gpt import GPTConfig, build, kept_by
from helpers.models.published import MODELS, SPARSE
from helpers.models.settings import ExpertSettings, Latent, Mamba2Settings

EXPERTS = ExpertSettings(count=6, chosen=2, hidden=5, after=1, capacity=0.8)
CONFIG = GPTConfig(vocab=31, context=8, width=12, layers=3, heads=3, experts=EXPERTS)


def test_loads_of_a_model_that_runs():
    model, x = build(CONFIG, 0), torch.randint(31, (5, 8))
    with loads_of(model) as loads:
        model(x)
        model(x[:3])
    model(x)  # no longer recorded
    assert [len(own) for own in loads.routings] == [2, 2]
    for layer, own in enumerate(loads.routings):
        for expert in range(6):
            found = sum(int((r.chosen == expert).sum()) for r in own)
            assert loads.tokens[layer, expert] == found
        kept = torch.cat([r.kept.flatten() for r in own])
        assert 0 < loads.dropped[layer] == pytest.approx(1 - kept.double().mean().item())
        sets = [
            len(set(r.chosen[2 * b : 2 * b + 2, t].flatten().tolist()))
            for r in own
            for b in range(len(r.chosen) // 2)
            for t in range(8)
        ]
        assert loads.distinct(2)[layer] == pytest.approx(sum(sets) / len(sets))
    assert loads.tokens.sum(1).tolist() == [8 * 8 * 2] * 2
    assert loads.distinct(1).tolist() == [2, 2]
    with pytest.raises(ValueError, match="no forward had 6 sequences"):
        loads.distinct(6)
    with loads_of(model.eval()) as loads:
        model(x)
    assert loads.dropped.tolist() == [0, 0]
    with pytest.raises(ValueError, match="the model has no experts"), loads_of(model.head):
        pass


def test_distinct_experts_of_a_batch():
    assert expected_distinct(8, 2, 1) == 2
    assert expected_distinct(8, 8, 3) == 8
    scores = torch.rand(4000, 16, 12, generator=torch.Generator().manual_seed(0))
    chosen = scores.topk(3).indices  # batches of 16 tokens, uniform
    read = torch.zeros(4000, 12).scatter_(1, chosen.flatten(1), 1).sum(1).mean()
    assert expected_distinct(12, 3, 16) == pytest.approx(read.item(), rel=2e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_step_reads_each_weight_once_and_the_chosen_experts(tied, positions):
    config = replace(CONFIG, tied=tied, positions=positions)
    one = decode(config, 3, 7, distinct=4.5, dtype=torch.float32)
    tables = ("embedding", "positions") if not tied else ("positions",)
    weights = sum(
        p.numel() * (4.5 / 6 if ".experts." in name else 1)
        for name, p in config.build(device="meta").named_parameters()
        if not name.startswith(tables)
    )
    rows = 3 * 12 * (2 if positions == "learned" else 1)
    assert one.weights == pytest.approx(4 * (weights + rows))
    assert one.cache == 3 * 7 * 3 * 2 * 12 * 4
    assert one.intensity == one.flops / one.bytes


LATENTS = [
    {"mixer": "latent", "latent": Latent(kv_rank=c, nope=n, rope=4, value=n)}
    for c, n in ((3, 5), (9, 1))  # the step reads the latents; it makes all keys and values again
]
STATES = [{"mixer": "mamba"}, {"mixer": "mamba2", "mamba2": Mamba2Settings(head=8)}]


@pytest.mark.parametrize("tokens", [2, 8])
@pytest.mark.parametrize("changes", [{}, *LATENTS, *STATES])
def test_a_step_has_the_flops_of_a_real_one(changes, tokens):
    config = replace(CONFIG, **changes)
    model, x = build(config, 0).eval(), torch.randint(31, (5, tokens))
    with torch.no_grad():
        cache = Preallocated(kept_by(model), 5, tokens)
        model(x[:, 1:], cache=cache)
        real = flops_of(lambda: model(x[:, :1], cache=cache))
    assert decode(config, 5, tokens).flops == real.forward


def test_one_token_reads_the_active_parameters():
    for name, model in SPARSE.items():
        c = model.config
        table = parameters(c).embedding - c.width  # one row of it
        step = decode(c, 1, 1)
        assert step.weights == pytest.approx(2 * (parameters(c).active - table)), name
    dense = MODELS["Llama 2 7B"].config
    assert decode(dense, 1, 1).weights == pytest.approx(
        2 * (parameters(dense).total - parameters(dense).embedding + dense.width)
    )
