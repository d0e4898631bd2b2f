"""Messages as data: bytes by hand, by the papers, and by the formulas of `comm.volume`.

tests/training/test_messages.py lays the messages of whole steps beside the ledger.
"""

import math

import pytest

from helpers.comm.volume import path, sent
from helpers.plans.decode_traffic import (
    HEADER_BYTES,
    decode_messages,
    decode_traffic,
    handover_bytes,
)
from helpers.plans.messages import ROUNDS, Message, ring_factor, together, wire
from helpers.plans.sequence_traffic import halo_bytes, ring_attention_bytes, scan_bytes
from helpers.plans.step_messages import StepPlan
from helpers.plans.zero_traffic import (
    WAYS,
    buckets,
    parallel_traffic,
    zero_messages,
    zero_traffic,
)

DECODE = {"layers": 3, "width": 40, "vocab": 33}
# Rajbhandari et al. 2020, arXiv:1910.02054, section 7: numbers per parameter and step.
PUBLISHED = {0: 2, 1: 2, 2: 2, 3: 3}


@pytest.mark.parametrize("call", [*ROUNDS, "send"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_message_is_that_of_a_ring(call, ranks):
    one = Message(axis="dp", call=call, payload=840, times=5, ranks=ranks)
    assert one.sent == pytest.approx(5 * sent(call, 840, ranks, backend="nccl"), rel=1e-15)
    assert one.steps == 5 * path(call, 840, ranks, backend="nccl")[0]


def test_sums_of_messages():
    of = {"axis": "dp", "call": "all_gather", "payload": 12, "ranks": 4}
    one = Message(**of, what="a")
    other, alone = Message(**of | {"axis": "tp"}, times=3), Message(**of | {"ranks": 1})
    assert wire([one, other, one]) == {"dp": 18, "tp": 27}
    assert wire([one, other], "what") == {"a": 9, "": 27}
    empty = [Message(**of | {"payload": 0}), Message(**of, times=0), alone]
    assert together([one, other, *empty, one]) == [Message(**of, what="a", times=2), other]
    assert ring_factor("all_reduce", math.inf) == 2
    with pytest.raises(ValueError, match="'gather' is none of all_reduce"):
        Message(**of | {"call": "gather"})
    with pytest.raises(ValueError, match="rows of 2 pipeline ranks"):
        StepPlan(sizes={"pp": 2}, width=1, sequences=1, tokens=1, stages=[[]], rows=[{}])


@pytest.mark.parametrize(("stage", "times"), PUBLISHED.items())
@pytest.mark.parametrize("world", [1, 2, 3, 64])
def test_zero_s_published_volume(stage, times, world):
    numbers = sum(zero_traffic(1e6, world, stage).values()) / 2
    assert numbers == pytest.approx(times * 1e6 * (world - 1) / world)


@pytest.mark.parametrize(
    ("stage", "options", "expected"),
    [
        (0, {}, {"all_reduce": 2 * 2}),
        (0, {"gradient_bytes": 4, "parameter_bytes": 1, "micro_batches": 5}, {"all_reduce": 2 * 4}),
        (1, {"gradient_bytes": 4, "micro_batches": 5}, {"reduce_scatter": 4, "all_gather": 2}),
        (2, {"gradient_bytes": 4, "micro_batches": 5}, {"reduce_scatter": 20, "all_gather": 2}),
        (3, {"gradient_bytes": 4, "micro_batches": 5}, {"reduce_scatter": 20, "all_gather": 20}),
        (3, {"reshard": False, "micro_batches": 2}, {"reduce_scatter": 4, "all_gather": 4}),
        (3, {"kept": True, "micro_batches": 2}, {"reduce_scatter": 4, "all_gather": 2}),
    ],
)
def test_zero_by_hand(stage, options, expected):
    """Of 1200 numbers on 4 ranks, a ring passes on 900."""
    assert zero_traffic(1200, 4, stage, **options) == {c: 900 * n for c, n in expected.items()}


@pytest.mark.parametrize(
    ("world", "stage", "micro_batches", "why"),
    [
        (2, 4, 1, "1, 2 and 3, not 4"),
        (0, 1, 1, "at least one rank, not 0"),
        (2, 2, 0, "at least one micro-batch, not 0"),
    ],
)
def test_nonsense_is_refused(world, stage, micro_batches, why):
    with pytest.raises(ValueError, match=why):
        zero_messages([1], world, stage, micro_batches=micro_batches)


def test_a_bucket_closes_with_the_tensor_that_fills_it():
    assert buckets([3, 3, 1, 5, 9, 2], 2, cap=12, first=6) == [3, 9, 9, 2]
    assert buckets([3, 3], 2) == [6]
    assert buckets([], 2) == []


def test_decoding_by_hand():
    """Two ranks send a whole payload per all-reduce and half of an all-gather."""
    assert decode_traffic(**DECODE, ranks=2) == {"embedding": 160, "blocks": 6 * 160, "head": 16}
    logits = decode_traffic(**DECODE, ranks=2, number_bytes=2, head="logits")
    assert logits == {"embedding": 80, "blocks": 6 * 80, "head": 17 * 2}  # 34 logits, half of them
    assert decode_traffic(**DECODE, ranks=1) == {}
    found = decode_messages(**DECODE, ranks=4, sequences=2, tokens=7)
    assert [(one.what, one.call, one.times, one.payload) for one in found] == [
        ("embedding", "all_reduce", 1, 2 * 7 * 40 * 4),
        ("blocks", "all_reduce", 6, 2 * 7 * 40 * 4),
        ("head", "all_gather", 1, 4 * 2 * 16),  # of the last token only
    ]
    sizes = {"ranks": 4, "sequences": 5, "tokens": 7, "number_bytes": 2, "head": "logits"}
    assert decode_messages(**DECODE, **sizes)[-1].payload == 5 * 36 * 2  # 33, rounded up


@pytest.mark.parametrize("name", [*DECODE, "ranks", "sequences", "tokens", "number_bytes", "head"])
def test_decoding_of_nothing_is_refused(name):
    why = "best, logits, not 0" if name == "head" else f"{name} must be at least 1, not 0"
    with pytest.raises(ValueError, match=why):
        decode_messages(**{**DECODE, "ranks": 2, name: 0})


def test_ways_to_train_by_hand():
    work = {"params": 1000, "layers": 2, "width": 5, "tokens": 7, "micro_batches": 3}
    found = parallel_traffic(**work, world=4)
    assert found == dict(zip(WAYS, (13_500, 8 * 2 * 7 * 5 * 3 / 4 * 2, 2 * 7 * 5 * 2), strict=True))
    wide = parallel_traffic(**work, world=4, number_bytes=6)
    assert wide == {way: 3 * nbytes for way, nbytes in found.items()}
    assert set(parallel_traffic(**work, world=1).values()) == {0}


@pytest.mark.parametrize(
    ("ranks", "messages"),
    [(1, [0]), (2, [1, 0]), (3, [2, 1, 0]), (4, [2, 2, 1, 0]), (5, [3, 2, 2, 1, 0])],
)
def test_a_scan_sends_a_pair_for_each_distance(ranks, messages):
    places = [{"decay": 3, "state": 5, "ranks": ranks, "rank": r} for r in range(ranks)]
    found = [scan_bytes(**place, sequences=2, number_bytes=8) for place in places]
    assert found == [count * 2 * (3 + 5) * 8 for count in messages]
    assert max(messages) == math.ceil(math.log2(ranks))
    assert [scan_bytes(**place) for place in places] == [count * 32 for count in messages]


def test_a_cut_sequence_by_hand():
    sizes = {"tokens": 3, "channels": 7, "ranks": 3, "sequences": 2}
    assert [halo_bytes(rank=r, **sizes) for r in range(3)] == [168, 168, 0]
    assert halo_bytes(rank=0, **{**sizes, "ranks": 1}) == 0
    assert halo_bytes(rank=1, tokens=3, channels=7, ranks=3, number_bytes=2) == 42
    found = ring_attention_bytes(length=1200, kept=10, ranks=4, sequences=2, number_bytes=2)
    part = 2 * 300 * 10 * 2
    assert found == {"forward": 3 * part, "backward": 2 * 3 * part}
    assert ring_attention_bytes(length=1200, kept=10, ranks=3)["forward"] == 2 * 400 * 10 * 4
    assert ring_attention_bytes(length=1200, kept=10, ranks=1) == {"forward": 0, "backward": 0}
    with pytest.raises(ValueError, match="no rank 4 among 4"):
        scan_bytes(decay=1, state=1, ranks=4, rank=4)
    with pytest.raises(ValueError, match="no rank -1"):
        halo_bytes(tokens=1, channels=1, ranks=2, rank=-1)
    with pytest.raises(ValueError, match="no rank 0 among 0"):
        ring_attention_bytes(length=1, kept=1, ranks=0)


SIZES = {"layers": 3, "key_heads": 2, "head_width": 8, "block_size": 16, "number_bytes": 4}


@pytest.mark.parametrize(("tokens", "slots"), [(1, 16), (16, 16), (17, 32), (1000, 1008)])
def test_whole_blocks_of_keys_and_values(tokens, slots):
    assert handover_bytes(tokens=tokens, **SIZES) == 32 + slots * (2 * 3 * 2 * 8) * 4
    assert HEADER_BYTES == 32


def test_llama_2_7b_in_16_bits():
    """512 KiB for each token: 2 · 32 layers · 4096 numbers · 2 bytes."""
    sizes = {"layers": 32, "key_heads": 32, "head_width": 128, "number_bytes": 2, "block_size": 1}
    assert handover_bytes(tokens=10, **sizes) - HEADER_BYTES == 10 * 512 * 1024


@pytest.mark.parametrize("name", ["tokens", *SIZES])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        handover_bytes(**{"tokens": 5, **SIZES, name: 0})
