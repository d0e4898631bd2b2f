"""The messages of a step, counted by the ledger, beside Megatron's formulas."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")

B, T, D = 2, 12, 32
CONFIG = GPTConfig(vocab=64, context=T, width=D, layers=2, heads=4)
NUMBER = 4  # bytes of a float32


def calls(worker, transform, config):
    """The entries of one batch's forward and backward, without the trainer's own sums."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(tp=worker.world_size))
    trainer = Recipe(transform=transform)(config, 0, mesh)
    batch = random_batch(0, B, config.context, config.vocab)
    with ledger() as forward:
        loss, count = trainer.model.loss(batch)
    with ledger() as backward:
        (loss / count).backward()
    return {"forward": forward.entries, "backward": backward.entries}


def of_a_block(transform, ranks=2, **changes):
    """What one more block adds: {phase: {call: (messages, payload in numbers)}}, and its wire."""
    less, more = (
        launch(
            calls,
            ranks,
            device="cpu",
            transform=transform,
            config=replace(CONFIG, layers=layers, **changes),
        )[0]
        for layers in (1, 2)
    )
    found, wire = {}, 0.0
    for phase in ("forward", "backward"):
        added = Counter(e.call for e in more[phase]) - Counter(e.call for e in less[phase])
        sizes = {e.payload // NUMBER for e in more[phase] if e.call in added and e.payload > 1000}
        assert sizes == {B * T * D}
        found[phase] = dict(added)
        wire += sum(e.wire for e in more[phase]) - sum(e.wire for e in less[phase])
    return found, wire


ALL_REDUCE = 2 * B * T * D * NUMBER  # bytes on the wire, times (N - 1) / N


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel_makes_two_all_reduces_each_way(ranks, overlap):
    """Shoeybi et al. 2019, section 3: of B T D numbers each."""
    found, wire = of_a_block(partial(tensor_parallel, overlap=overlap), ranks)
    assert found == {"forward": {"all_reduce": 2}, "backward": {"all_reduce": 2}}
    assert wire == 4 * ALL_REDUCE * (ranks - 1) / ranks


@pytest.mark.parametrize(
    ("options", "gathers", "share"),
    [
        ({"again": True}, 4, 1.25),
        ({"again": False}, 2, 1.0),
        ({"again": False, "overlap": False}, 2, 1.0),
    ],
)
def test_sequence_parallel_sends_as_much_unless_it_gathers_again(options, gathers, share):
    """Korthikanti et al. 2022, on sequence parallelism: the bytes of tensor parallelism."""
    found, wire = of_a_block(partial(sequence_parallel, **options))
    assert found["forward"] == {"all_gather": 2, "all_to_all": 2}  # gloo: all-to-all and a sum
    assert found["backward"] == {"all_gather": gathers, "all_to_all": 2}
    assert wire == share * 4 * ALL_REDUCE / 2


def test_chunks_send_the_same_bytes_in_more_messages():
    totals = {}
    for chunks in (1, 3):  # of 6 tokens on a rank
        transform = partial(sequence_parallel, chunks=chunks)
        run = launch(calls, 2, device="cpu", transform=transform, config=CONFIG)[0]
        entries = [e for phase in run.values() for e in phase if e.payload > 1000]
        totals[chunks] = len(entries), sum(e.wire for e in entries)
    blocks, rest = 10 * CONFIG.layers, 5  # of the embedding 2, of the head 3
    assert totals[1] == (blocks + rest, totals[3][1])
    assert totals[3][0] > 2 * totals[1][0]


def test_full_recomputation_sends_the_forward_again():
    found, _ = of_a_block(tensor_parallel, recompute="full")
    # two of the backward, and two of the forward that runs again
    assert found["backward"] == {"all_reduce": 4}
    assert of_a_block(tensor_parallel, recompute="selective")[0]["backward"] == {"all_reduce": 2}


def test_tokens_that_do_not_divide_are_refused():
    case = {"transform": sequence_parallel, "config": replace(CONFIG, context=11)}
    with pytest.raises(WorkerError, match=r"11 tokens do not divide over 2 ranks.*tensor parallel"):
        launch(calls, 2, device="cpu", **case)


def test_the_logits_are_never_gathered():
    """The loss needs two messages of B T numbers and one of twice as many, whatever V is."""
    runs = [
        launch(
            calls, 2, device="cpu", transform=tensor_parallel, config=replace(CONFIG, vocab=vocab)
        )[0]
        for vocab in (64, 640)
    ]
    payloads = [[e.payload for phase in run.values() for e in phase] for run in runs]
    assert payloads[0] == payloads[1]
    forward = [e.payload // NUMBER for e in runs[0]["forward"]]
    assert forward[-2:] == [B * T, 2 * B * T]
