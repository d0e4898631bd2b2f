"""Tensor and sequence parallelism beside one process: loss, gradients, parameters, a load.

Tolerance: 1e-12 absolute in float64; the sums over ranks add in another order.
"""

from dataclasses import dataclass, fields, replace
from functools import partial

import pytest

from helpers.comm.direct import DirectTransport
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")
SIZES = {"vocab": 33, "context": 12, "width": 24, "layers": 2}  # 33: no number of ranks divides it
BYTES = GPTConfig(**SIZES, heads=4)
GPT2 = GPTConfig(
    **SIZES, heads=4, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2
)
GROUPED = GPTConfig(**SIZES, heads=12, kv_heads=4, hidden=50, tied=False, dropout=0.1)
CONFIGS = {"rotary, SwiGLU, tied": BYTES, "GPT-2 with dropout": GPT2, "grouped queries": GROUPED}
TRANSFORMS = {
    "tensor": tensor_parallel,
    "tensor, plain": partial(tensor_parallel, overlap=False),
    "sequence": sequence_parallel,
    "sequence, inputs kept": partial(sequence_parallel, again=False),
    "sequence, chunks": partial(sequence_parallel, chunks=4),  # of 6 tokens
    "sequence, inputs kept, chunks": partial(sequence_parallel, again=False, chunks=2),
    "sequence, plain": partial(sequence_parallel, overlap=False),
}


def twin(transform, ranks, config, **changes):
    options = {"layout": {"tp": ranks}, "steps": 3, "device": "cpu", "sequences": 5, **changes}
    owner = {"owner": options.pop("owner")} if "owner" in options else {}
    workers = options.pop("workers", ranks)
    return compare(Recipe(transform=transform, **owner), workers=workers, config=config, **options)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_two_ranks_equal_one_process(transform, config):
    comparison = twin(transform, 2, config, micro_batches=2)
    assert comparison, comparison
    assert comparison.lossy == ""


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("transform", ["tensor", "sequence"])
def test_more_ranks_equal_one_process(transform, ranks):
    """Three ranks share four key heads nowhere; twelve heads and 12 tokens divide by 3 and 4."""
    config = GROUPED if ranks == 4 else replace(GROUPED, kv_heads=None)
    comparison = twin(TRANSFORMS[transform], ranks, config)
    assert comparison, comparison


@pytest.mark.parametrize("transform", ["tensor", "sequence"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_ranks_that_share_a_key_head_sum_its_gradient(transform, key_heads):
    comparison = twin(
        TRANSFORMS[transform], 4, replace(GROUPED, width=32, heads=8, kv_heads=key_heads)
    )
    assert comparison, comparison


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_recomputation_changes_nothing(transform, recompute):
    comparison = twin(transform, 2, replace(GPT2, recompute=recompute, attention="explicit"))
    assert comparison, comparison


@pytest.mark.parametrize("replica", [NaiveDDP, BucketedDDP, None], ids=["naive", "bucketed", "DDP"])
@pytest.mark.parametrize("transform", ["tensor", "sequence"])
def test_with_data_parallel(transform, replica):
    """Three sequences for two replicas: one has more data than the other."""
    owner = partial(Replicated, replica=replica) if replica else Replicated
    comparison = twin(
        TRANSFORMS[transform],
        2,
        GPT2,
        workers=4,
        layout={"dp": 2, "tp": 2},
        owner=owner,
        sequences=3,
    )
    assert comparison, comparison


@pytest.mark.parametrize("transform", ["tensor", "sequence"])
def test_a_replica_without_data(transform):
    comparison = twin(
        TRANSFORMS[transform], 2, GPT2, workers=4, layout={"dp": 2, "tp": 2}, owner=Replicated,
        sequences=1,
    )  # fmt: skip
    assert comparison, comparison


@pytest.mark.parametrize("transform", ["tensor", "sequence"])
def test_a_batch_without_a_single_target(transform):
    def batches(k):
        batch = random_batch(k, 2, 12, 33)
        return replace(batch, targets=batch.targets.fill_(-100)) if k == 1 else batch

    comparison = twin(TRANSFORMS[transform], 2, BYTES, batches=batches)
    assert comparison, comparison


@pytest.mark.parametrize(
    ("transform", "transport"),
    [
        ("tensor", SharedTransport),
        ("sequence", SharedTransport),
        ("sequence, chunks", DirectTransport),
    ],
)
def test_other_transports(transform, transport):
    way = partial(TRANSFORMS[transform], transport=transport)
    comparison = twin(way, 3, replace(GROUPED, kv_heads=None), micro_batches=2)
    assert comparison, comparison


@pytest.mark.parametrize("transform", ["tensor", "sequence"])
def test_a_vocabulary_with_fewer_tokens_than_ranks(transform):
    """Some ranks have no row at all."""
    comparison = twin(TRANSFORMS[transform], 4, replace(BYTES, vocab=3))
    assert comparison, comparison


@dataclass(frozen=True, kw_only=True)
class Frozen(GPTConfig):
    """Some cut matrices, a whole bias and the norms are not trained."""

    def build(self, *args, **options):
        model = super().build(*args, **options)
        for name, parameter in model.named_parameters():
            frozen = ("norm", "query", "attention.out", "mlp.up.weight", "embedding")
            parameter.requires_grad_(not any(part in name for part in frozen))
        return model


@pytest.mark.parametrize("transform", ["tensor", "sequence", "sequence, plain"])
def test_what_is_frozen_stays_frozen(transform):
    frozen = Frozen(**{one.name: getattr(GPT2, one.name) for one in fields(GPT2)})
    comparison = twin(TRANSFORMS[transform], 2, frozen)
    assert comparison, comparison
    full = twin(TRANSFORMS[transform], 2, GPT2, steps=1)
    optimizer = [one.ranks[0].memory.optimizer for one in (comparison, full)]
    assert optimizer[0] < optimizer[1]


def test_without_the_axis_nothing_changes():
    assert compare(Recipe(transform=tensor_parallel), workers=2, steps=2, device="cpu")
    assert twin(sequence_parallel, 1, BYTES)
