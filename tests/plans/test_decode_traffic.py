"""The messages of a decoding step, against the formulas of ring collectives."""

import pytest

from helpers.comm.volume import sent
from helpers.plans.decode_traffic import decode_messages, decode_traffic

SIZES = {"layers": 3, "width": 40, "vocab": 33}


@pytest.mark.parametrize("head", ["best", "logits"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_message_is_a_ring(ranks, head):
    for one in decode_messages(**SIZES, ranks=ranks, sequences=5, head=head):
        of_one = sent(one.call, one.payload, ranks, backend="nccl")
        assert one.sent == pytest.approx(one.times * of_one, rel=1e-15)


def test_a_block_makes_two_sums_and_the_embedding_one():
    messages = {one.place: one for one in decode_messages(**SIZES, ranks=4, sequences=2, tokens=7)}
    assert {place: one.times for place, one in messages.items()} == {
        "embedding": 1,
        "blocks": 6,
        "head": 1,
    }
    activations = 2 * 7 * 40 * 4
    assert messages["embedding"].payload == messages["blocks"].payload == activations
    assert messages["head"].payload == 4 * 2 * 16  # of the last token only
    calls = {place: one.call for place, one in messages.items()}
    assert calls == {"embedding": "all_reduce", "blocks": "all_reduce", "head": "all_gather"}


def test_the_logits_are_those_of_each_sequence_s_last_token():
    sizes = {"ranks": 4, "sequences": 5, "tokens": 7, "number_bytes": 2, "head": "logits"}
    assert decode_messages(**SIZES, **sizes)[-1].payload == 5 * 36 * 2  # 33, rounded up


def test_bytes_of_a_token_by_hand():
    """Two ranks send a whole payload per all-reduce and half of an all-gather."""
    assert decode_traffic(**SIZES, ranks=2) == {"embedding": 160, "blocks": 6 * 160, "head": 16}
    logits = decode_traffic(**SIZES, ranks=2, number_bytes=2, head="logits")
    assert logits == {"embedding": 80, "blocks": 6 * 80, "head": 17 * 2}  # 34 logits, half of them


def test_one_rank_sends_nothing():
    assert decode_traffic(**SIZES, ranks=1) == {}


@pytest.mark.parametrize("name", [*SIZES, "ranks", "sequences", "tokens", "number_bytes"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        decode_messages(**{**SIZES, "ranks": 2, name: 0})


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match="head must be one of best, logits, not 'argmax'"):
        decode_messages(**SIZES, ranks=2, head="argmax")
