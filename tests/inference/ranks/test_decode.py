"""Decoding on ranks, token for token beside one process without a cache; its bytes; its faults."""

import os
import signal
from collections import Counter
from dataclasses import replace

import pytest

from helpers.inference.ranks.cost import SilentTransport
from helpers.inference.ranks.decode import Decoded, decode, load_split
from helpers.models.gpt import GPTConfig
from helpers.plans.decode_traffic import decode_messages
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from tests.inference.conftest import alone, noisy

LLAMA = GPTConfig(vocab=33, context=40, width=24, layers=2, heads=4, tied=False)
GPT2 = replace(LLAMA, norm="layer", positions="learned", mlp="gelu", bias=True, tied=True)
GROUPED = replace(LLAMA, width=32, heads=8, kv_heads=4)
SHARED = replace(LLAMA, width=32, heads=8, kv_heads=2, attention="explicit")
CONFIGS = {"Llama": LLAMA, "GPT-2": GPT2, "grouped": GROUPED, "ranks share a key head": SHARED}
PROMPTS = [[4, 8, 15, 16, 23], [31], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0, 32]]


@pytest.fixture(scope="module", params=[2, 4])
def cluster(request):
    with Cluster(request.param, device="cpu") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pair():
    with Cluster(2, device="cpu") as cluster:
        yield cluster


def load(cluster, model, **options):
    return cluster.run(load_split, config=model.config, weights=model.state_dict(), **options)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_token_for_token_as_one_process(cluster, config):
    model = noisy(config, 1)
    load(cluster, model)
    expected = [alone(model, prompt, 12) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    for prompts in (PROMPTS, PROMPTS[2:3], [PROMPTS[0]] * 2):  # ragged, single, equally long
        for run in cluster.run(decode, prompts=prompts, new_tokens=12):
            assert run.tokens == [expected[PROMPTS.index(prompt)] for prompt in prompts]
            assert len(run.seconds) == 12


def test_stop_tokens_end_their_sequence_alone(pair):
    model = noisy(LLAMA, 1)
    load(pair, model)
    whole = [alone(model, prompt, 20) for prompt in PROMPTS]
    stop = {whole[0][3], whole[2][0]}
    expected = [alone(model, prompt, 20, stop) for prompt in PROMPTS]
    assert len({len(tokens) for tokens in expected}) > 1
    for run in pair.run(decode, prompts=PROMPTS, new_tokens=20, stop=stop):
        assert run.tokens == expected
        assert len(run.seconds) == max(map(len, expected))


@pytest.mark.parametrize("head", ["best", "logits"])
def test_bytes_are_those_of_the_formula(cluster, head):
    model, ranks = noisy(LLAMA, 1), cluster.workers
    load(cluster, model, head=head)
    sizes = {"layers": 2, "width": 24, "vocab": 33, "number_bytes": 8, "head": head}
    for run in cluster.run(decode, prompts=PROMPTS, new_tokens=3, count=True):
        assert len(run.traffic) == 3
        for log, tokens in zip(run.traffic, (11, 1, 1), strict=True):
            messages = decode_messages(**sizes, ranks=ranks, sequences=4, tokens=tokens)
            found = Counter((e.call, e.payload) for e in log.entries)
            expected = Counter()
            for one in messages:
                expected[one.call, one.payload] += one.times
            assert found == expected
            assert log.wire == pytest.approx(sum(one.sent for one in messages), rel=1e-15)


def test_each_rank_keeps_its_share_of_the_cache(cluster):
    config = GROUPED
    load(cluster, noisy(config, 1))
    runs = cluster.run(decode, prompts=PROMPTS, new_tokens=5)
    whole = 2 * 2 * 4 * 4 * 4 * (11 + 5) * 8  # k and v, blocks, sequences, heads, d, slots, bytes
    assert [run.cache_bytes for run in runs] == [whole // cluster.workers] * cluster.workers


def test_bytes_of_the_parameters_are_reported(pair):
    model = noisy(LLAMA, 1)
    found = load(pair, model)
    whole = sum(p.nbytes for p in model.parameters())
    assert whole / 2 < found[0] < 0.6 * whole


def test_without_messages_no_rank_waits(pair):
    """The results mean nothing; the shapes and the number of steps are the same."""
    load(pair, noisy(LLAMA, 1), transport=SilentTransport)
    for run in pair.run(decode, prompts=PROMPTS, new_tokens=4, count=True):
        assert [len(tokens) for tokens in run.tokens] == [4] * 4
        assert not any(log.entries for log in run.traffic)
    only_one = pair.run(
        lambda worker: decode(worker, prompts=PROMPTS, new_tokens=2) if worker.rank else None
    )
    assert len(only_one[1].seconds) == 2


def test_the_last_place_of_the_context_is_used(pair):
    model = noisy(LLAMA, 1)
    load(pair, model)
    prompt = [token % 33 for token in range(30)]
    found = pair.run(decode, prompts=[prompt], new_tokens=11)[0].tokens
    assert found == [alone(model, prompt, 11)]
    nothing = pair.run(decode, prompts=[], new_tokens=11)
    assert [(run.tokens, run.seconds, run.cache_bytes) for run in nothing] == [([], [], 0)] * 2


@pytest.mark.parametrize(
    ("prompts", "new_tokens", "said"),
    [
        ([[1], []], 3, "prompt 1 is empty"),
        ([[1], [2, 33]], 3, "prompt 1 has a token outside the vocabulary of 33"),
        ([[-1]], 3, "prompt 0 has a token outside"),
        ([[1] * 30], 12, "prompt 0 has 30 tokens, and 12 more do not fit into the context of 40"),
        ([[1]], -1, "new_tokens must be at least 0, not -1"),
    ],
)
def test_requests_that_cannot_be(pair, prompts, new_tokens, said):
    load(pair, noisy(LLAMA, 1))
    with pytest.raises(WorkerError, match=said) as caught:
        pair.run(decode, prompts=prompts, new_tokens=new_tokens)
    assert "failed the same way" in str(caught.value)


def test_a_rank_killed_while_decoding_is_named_and_the_next_call_works(pair):
    def killed(worker, **request):
        if worker.rank == 1:
            split, steps = worker.state.split, iter(range(10))
            following = split.next_tokens

            def next_tokens(*args):
                if next(steps) == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                return following(*args)

            split.next_tokens = next_tokens
        return decode(worker, **request)

    model, request = noisy(LLAMA, 1), {"prompts": PROMPTS, "new_tokens": 9}
    load(pair, model)
    with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL") as caught:
        pair.run(killed, **request)
    assert caught.value.rank == 1
    assert "contents of worker.state are lost" in str(caught.value)
    with pytest.raises(WorkerError, match="these ranks have no model: call `load_split`"):
        pair.run(decode, **request)
    load(pair, model)
    assert pair.run(decode, **request)[0].tokens == [alone(model, p, 9) for p in PROMPTS]


def test_the_time_of_a_token_leaves_out_the_prompt():
    assert Decoded([], seconds=[9.0, 1.0, 3.0, 2.0]).seconds_per_token == 2.0
    assert Decoded([], seconds=[9.0]).seconds_per_token != 9.0
