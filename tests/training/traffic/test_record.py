"""Each message of a step has its layer, its phase and its bytes, under any strategy.

One launch on two ranks records every strategy, one after the other. P is a layer's bytes of
parameters; two ranks divide every parameter of this model evenly, so nothing is padded.
"""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.data_parallel import TorchDataParallel
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules.plain import one_f_one_b
from helpers.plans.zero_traffic import parallel_traffic
from helpers.runtime.launch import launch
from helpers.training.traffic.record import layers_of, record, watching
from tests.parallel.beside import frozen

CONFIG = GPTConfig(vocab=34, context=8, width=12, layers=3, heads=2, hidden=24, tied=False)
LAYERS = ["embedding", "blocks.0", "blocks.1", "blocks.2", "norm", "head"]
TOKENS = 8 * CONFIG.context  # of the global batch


DATA = {
    "stage 1": Recipe(owner=Zero1),
    "stage 2": Recipe(owner=Zero2),
    "frozen": Recipe(transform=frozen("embedding", "blocks.1"), owner=Zero2),
    "stage 3": Recipe(owner=Zero3),
    "two micro-batches": partial(Recipe(owner=Zero3), micro_batches=2),
    "bf16": Recipe(owner=Zero3, precision=Mixed()),
    "FSDP2": FullyShard,
    "DDP": partial(TorchDataParallel, bucket_cap_mb=0.008),
}
MODEL = {
    "tensor": Recipe(layout=Layout(tp=2)),
    "pipeline": Recipe(layout=Layout(pp=2), schedule=one_f_one_b),
}
pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")


def recorded(worker, data, model, config):
    """strategy -> (its messages, the wire of the same step by the ledger alone)."""
    torch.set_num_threads(1)
    found, mesh = {}, make_mesh(Layout(dp=2))
    for name, make in (data | model).items():
        options = {"micro_batches": 2} if name == "pipeline" else {}
        strategy = make(config, 0, mesh if name in data else None, **options)
        batch = random_batch(0, 8, config.context, config.vocab)
        part = batch.shard(strategy.data_rank, strategy.data_size)
        messages = record(strategy, part)
        with ledger() as log:
            strategy.step(part)
        found[name] = messages, log.wire
        worker.log(strategy=len(found))  # a sign of life on a busy machine
        strategy.close()
    return found


@pytest.fixture(scope="module")
def runs():
    return launch(recorded, 2, device="cpu", data=DATA, model=MODEL, config=CONFIG)


@pytest.fixture(scope="module")
def size():
    """P of each layer in float32."""
    found = dict.fromkeys(LAYERS, 0)
    for name, p in CONFIG.build(device="meta").named_parameters():
        found[next(layer for layer in LAYERS if name.startswith(f"{layer}."))] += 4 * p.numel()
    return found


def sent(messages, phase, kind):
    """Bytes that the rank sends of each layer, and nothing of a layer that it does not send."""
    found = {}
    for message in messages:
        if (message.phase, message.kind) == (phase, kind):
            for layer, nbytes in message.sent().items():
                found[layer] = found.get(layer, 0) + nbytes
    return found


def times(size, factor, layers=LAYERS):
    return {layer: factor * size[layer] for layer in layers}


def near(found, expected):
    return found == pytest.approx(expected, rel=1e-9)


def test_the_layers_are_the_units_in_their_order():
    assert layers_of(CONFIG) == LAYERS


@pytest.mark.parametrize("name", [*DATA, *MODEL])
def test_no_byte_is_lost(runs, name):
    for run in runs:
        messages, wire = run[name]
        assert sum(message.wire for message in messages) == wire
        assert [message.order for message in messages] == list(range(len(messages)))
        for message in messages:
            if message.layers:
                assert sum(message.layers.values()) == pytest.approx(message.payload)


@pytest.mark.parametrize(
    ("name", "passes", "share"),
    [("stage 3", 1, 1 / 2), ("two micro-batches", 2, 1 / 2), ("bf16", 1, 1 / 4)],
)
def test_stage_3_gathers_twice_and_reduces_once(runs, size, name, passes, share):
    for run in runs:
        messages, _ = run[name]
        for phase, kind in [("forward", "parameters"), ("backward", "parameters")]:
            assert near(sent(messages, phase, kind), times(size, passes * share))
        assert near(sent(messages, "backward", "gradients"), times(size, passes * share))
        assert {m.kind for m in messages if m.phase == "update"} == {"other"}


def test_stage_3_gathers_one_layer_ahead(runs):
    for run in runs:
        found = {"forward": {}, "backward": {}}
        for message in run["stage 3"][0]:
            if message.kind == "parameters":
                (layer,) = message.layers
                found[message.phase][layer] = message.during
        for order, moments in ((LAYERS, found["forward"]), (LAYERS[::-1], found["backward"])):
            assert list(moments) == order
            assert list(moments.values()) == [order[0], *order[:-1]]


@pytest.mark.parametrize(
    ("name", "trained"),
    [("stage 1", LAYERS), ("stage 2", LAYERS), ("frozen", [LAYERS[1], *LAYERS[3:]])],
)
def test_stages_1_and_2_gather_the_updated_parameters(runs, size, name, trained):
    for run in runs:
        messages, _ = run[name]
        assert near(sent(messages, "backward", "gradients"), times(size, 1 / 2, trained))
        assert near(sent(messages, "update", "parameters"), times(size, 1 / 2, trained))
        assert not sent(messages, "forward", "parameters")
        assert not sent(messages, "backward", "parameters")
        for message in messages:  # each layer's gradients leave while its own backward runs
            if message.kind == "gradients":
                assert [message.during] == list(message.layers)


def test_fsdp2_keeps_its_root_and_gathers_blocks_when_they_run(runs, size):
    blocks = ["blocks.0", "blocks.1", "blocks.2"]
    for run in runs:
        messages, _ = run["FSDP2"]
        assert near(sent(messages, "forward", "parameters"), times(size, 1 / 2))
        assert near(sent(messages, "backward", "parameters"), times(size, 1 / 2, blocks))
        # gloo's own reduce-scatter sends the bytes of an all-reduce
        assert near(sent(messages, "backward", "gradients"), times(size, 1))
        forward = [m for m in messages if (m.phase, m.kind) == ("forward", "parameters")]
        assert [(set(m.layers), m.during) for m in forward] == [
            ({"embedding", "norm", "head"}, ""),
            *(({block}, block) for block in blocks),
        ]
        backward = [m for m in messages if (m.phase, m.kind) == ("backward", "gradients")]
        assert [set(m.layers) for m in backward] == [
            *({block} for block in reversed(blocks)),
            {"embedding", "norm", "head"},
        ]


def test_ddp_sends_buckets_of_several_layers(runs, size):
    for run in runs:
        messages, _ = run["DDP"]
        assert near(sent(messages, "backward", "gradients"), times(size, 1))
        buckets = [m for m in messages if m.kind == "gradients"]
        assert len(buckets) > 1
        assert all(m.call == "all_reduce" for m in buckets)
        assert any(len(m.layers) > 1 for m in buckets)


def test_model_parallelism_sends_what_the_formula_says(runs):
    formula = parallel_traffic(params=0, layers=3, width=12, tokens=TOKENS, world=2, number_bytes=4)
    for run in runs:
        messages, _ = run["tensor"]
        assert not [m for m in messages if m.kind in ("parameters", "gradients")]
        blocks = {}
        for phase in ("forward", "backward"):
            for layer, nbytes in sent(messages, phase, "activations").items():
                if layer.startswith("blocks"):
                    blocks[phase] = blocks.get(phase, 0) + nbytes
        half = formula["tensor parallel"] / 2
        assert blocks == {"forward": half, "backward": half}
    ends = [
        sum(m.wire for m in run["pipeline"][0] if m.call == "send" and m.payload > 64)
        for run in runs
    ]
    assert sum(ends) == formula["pipeline parallel"]  # an inner stage sends what both ends send


@pytest.mark.parametrize("failing", [False, True])
def test_no_hook_stays_behind(failing):
    """One model, or the stages of a pipeline; the step may fail."""
    stages = [torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2)]
    for model in (stages[0], stages):
        strategy = SimpleNamespace(model=model, world_size=2)

        def step(strategy=strategy):
            with watching(strategy, {}):
                assert len(stages[0]._forward_hooks) == 1
                if failing:
                    raise KeyError

        with pytest.raises(KeyError) if failing else nullcontext():
            step()
        for module in (part for stage in stages for part in stage.modules()):
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
