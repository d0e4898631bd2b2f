"""PyTorch's pipelines behind the protocol train like one process, and like ours.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import IGNORED, random_batch
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.libraries.pipelining import KINDS, TheirEngine, TorchPipelining
from helpers.runtime.failure import WorkerError
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")

CONFIG = GPTConfig(vocab=33, context=12, width=24, layers=4, heads=4)


class Untouched(TorchPipelining):
    """At the end, its stages still have PyTorch's own linear modules: a fair peer of ours."""

    def close(self):
        assert not any("forward" in vars(module) for module in self.model.modules())
        super().close()


def twin(config=CONFIG, **changes):
    options = {"workers": 2, "layout": {"pp": 2}, "steps": 2, "seed": 3, "device": "cpu", **changes}
    return compare(Untouched, config=config, micro_batches=4, **options)


def one_without_targets(k):
    batch = random_batch(k, 8, CONFIG.context, CONFIG.vocab, ignored=0.1)
    return replace(batch, targets=torch.full_like(batch.targets, IGNORED)) if k == 1 else batch


@pytest.mark.parametrize("schedule", KINDS)
def test_the_same_as_one_process(schedule):
    comparison = twin(schedule=schedule, batches=one_without_targets)
    assert comparison, comparison


def test_what_it_cannot_train():
    with pytest.raises(ValueError, match="needs a mesh with the axis pp alone"):
        TorchPipelining(CONFIG, 0, SimpleNamespace(layout=Layout(pp=2, dp=2)))
    with pytest.raises(ValueError, match="has no dropout"):
        TorchPipelining(replace(CONFIG, dropout=0.1), 0, SimpleNamespace(layout=Layout(pp=2)))
    for rate in ("loss_rate", "z_rate", "bias_rate"):
        balanced = replace(CONFIG, experts=ExpertSettings(count=4, **{rate: 0.1}))
        with pytest.raises(ValueError, match=f"use .*{rate}=0"):
            TorchPipelining(balanced, 0, SimpleNamespace(layout=Layout(pp=2)))
    with pytest.raises(WorkerError, match=r"micro-batches of one size, not \[1, 2\]"):
        twin(sequences=6)
    nothing = random_batch(0, 1, 12, 33).shard(1, 2)
    with pytest.raises(ValueError, match=r"of one size, not \[0\]: choose a batch that 3 micro"):
        TheirEngine.step(SimpleNamespace(), 3 * [nothing], None, None)
