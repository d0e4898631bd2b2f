"""Token for token what transformers generates; and whatever happens to one request, no other."""

import math

import pytest
import torch

from helpers.inference.generate import Generated, check_prompt, generate, stream
from helpers.inference.sampling import NotANumber, Sampling, choose
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.gpt import kept_by
from tests.models.peers import copy_of, lifted

PROMPTS = [[3, 7, 1, 1, 12], [5], [2, 9, 9, 0, 4, 18, 6, 6, 3], [8, 8]]
WARM = Sampling(temperature=1.0, top_k=12, top_p=0.95)


def by_transformers(model, prompts, new_tokens, stop=()):
    """Their tokens after left-padded prompts; what follows a stop token is cut off."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with lifted(next(model.parameters()).dtype):
        found = copy_of(model).generate(
            ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=list(stop) or None,
        )
    rows = found[:, longest:].tolist()
    ends = [next((n + 1 for n, t in enumerate(row) if t in stop), new_tokens) for row in rows]
    return [row[:end] for row, end in zip(rows, ends, strict=True)]


@torch.no_grad()
def without_cache(model, prompt, new_tokens):
    """Greedy tokens, each from the whole sequence anew, and the smallest margin."""
    sequence, margin = list(prompt), math.inf
    for _ in range(new_tokens):
        logits = model(torch.tensor([sequence]))[0, -1]
        best = logits.sort(descending=True).values
        margin = min(margin, float(best[0] - best[1]))
        sequence.append(int(logits.argmax()))
    return sequence[len(prompt) :], margin


def assert_same(found, expected):
    """In another batch a logit may differ in its last bits, and the margin with it."""
    for one, other in zip(found, expected, strict=True):
        assert (one.prompt, one.tokens, one.reason) == (other.prompt, other.tokens, other.reason)
        assert one.margin == pytest.approx(other.margin, abs=1e-12)


def test_greedy_tokens_are_those_of_transformers(model):
    expected = by_transformers(model, PROMPTS, 14)
    found = generate(model, PROMPTS, 14)
    assert [one.tokens for one in found] == expected
    assert [one.prompt for one in found] == PROMPTS
    assert {one.reason for one in found} == {"length"}
    # equal by arithmetic, not by luck: no token was chosen by a gap of the size of rounding
    assert min(one.margin for one in found) > 1e-9
    for one in found:
        tokens, margin = without_cache(model, one.prompt, 14)
        assert one.tokens == tokens
        assert one.margin == pytest.approx(margin, abs=1e-12)


def test_stop_tokens_end_a_request_as_in_transformers(model):
    free = [one.tokens for one in generate(model, PROMPTS, 12)]
    stop = (free[0][2], free[1][5])
    found = generate(model, PROMPTS, 12, stop=stop)
    assert [one.tokens for one in found] == by_transformers(model, PROMPTS, 12, stop)
    for one in found:
        assert (one.reason == "stop") == (one.tokens[-1] in stop)
        assert not set(one.tokens[:-1]) & set(stop)
    assert found[0].reason == "stop"


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("chunk", [None, 1, 2, 4, 100])
def test_any_chunk_and_any_cache_gives_the_same_tokens(llama, chunk, sampling):
    expected = generate(llama, PROMPTS, 8, sampling=sampling)
    kept = kept_by(llama)
    for cache in (None, Growing(kept, 4, torch.float64), Preallocated(kept, 4, 20, torch.float64)):
        found = generate(llama, PROMPTS, 8, sampling=sampling, chunk=chunk, cache=cache)
        assert [(one.tokens, one.reason) for one in found] == [
            (one.tokens, one.reason) for one in expected
        ]


def test_a_chunk_is_the_most_that_is_read_at_once(llama):
    read = []
    handle = llama.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    for chunk, expected in ((None, [9, 1]), (4, [4, 4, 1, 1]), (2, [2, 2, 2, 2, 1, 1])):
        read.clear()
        generate(llama, PROMPTS[2:3], 2, chunk=chunk)
        assert read == expected
    read.clear()
    generate(llama, PROMPTS, 3, chunk=4)  # short prompts need not wait for long ones
    assert read == [4, 4, 1, 1, 1]
    handle.remove()


@torch.no_grad()
def test_a_sampled_token_is_chosen_by_its_place_in_the_sequence(llama):
    [one] = generate(llama, PROMPTS[:1], 5, sampling=WARM, seeds=[13])
    sequence = list(PROMPTS[0])
    for token in one.tokens:
        logits = llama(torch.tensor([sequence]))[:, -1]
        assert choose(logits, WARM, [13], [len(sequence)]).tolist() == [token]
        sequence.append(token)


@torch.no_grad()
def test_a_cache_may_hold_a_part_of_each_prompt(llama):
    cache = Growing(kept_by(llama), 4, torch.float64)
    counts = [3, 0, 8, 1]
    x = torch.tensor([(p + [0] * 8)[:8] for p in PROMPTS])
    llama(x, cache=cache, counts=counts)
    read = []
    handle = llama.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    found = generate(llama, PROMPTS, 5, cache=cache)
    handle.remove()
    assert read == [2, 1, 1, 1, 1]  # 5 - 3 tokens were left at most
    assert [one.tokens for one in found] == [one.tokens for one in generate(llama, PROMPTS, 5)]


def test_a_paged_cache_may_share_the_beginnings_of_prompts(llama):
    paged = Paged(kept_by(llama), 20, 4, torch.float64, share_prefixes=True)
    first = paged.sequence(PROMPTS[2])
    [alone] = generate(llama, PROMPTS[2:3], 5, cache=PagedBatch(paged, [first]))
    paged.register(first, alone.prompt + alone.tokens)
    prompts = [alone.prompt, alone.prompt[:8] + [1], PROMPTS[0]]
    sequences = [paged.sequence(prompt) for prompt in prompts]
    assert [one.length for one in sequences] == [8, 8, 0]
    found = generate(llama, prompts, 5, cache=PagedBatch(paged, sequences))
    assert_same(found, generate(llama, prompts, 5))


def test_out_of_blocks_ends_the_longest_request_and_no_other(llama):
    paged = Paged(kept_by(llama), 5, 4, torch.float64)
    cache = PagedBatch(paged, [paged.sequence() for _ in range(2)])
    found = generate(llama, [PROMPTS[2], PROMPTS[0]], [9, 4], cache=cache)
    full = generate(llama, [PROMPTS[2], PROMPTS[0]], [9, 4])
    assert found[0].tokens == full[0].tokens[:4]
    assert found[0].reason.startswith("error: ")
    assert "block" in found[0].reason
    assert_same(found[1:], full[1:])


def test_a_cache_that_does_not_fit_the_prompts(llama):
    with pytest.raises(ValueError, match="4 prompts, but the cache is of 3 sequences"):
        generate(llama, PROMPTS, 5, cache=Growing(kept_by(llama), 3, torch.float64))
    for many, has in ((1, 5), (5, 9)):
        cache = Growing(kept_by(llama), 4, torch.float64)
        generate(llama, PROMPTS, many, cache=cache)
        with pytest.raises(ValueError, match=f"has {has} tokens of prompt 0, which has 5: at lea"):
            generate(llama, PROMPTS, 5, cache=cache)


def test_sampled_tokens_depend_on_the_seed_and_not_on_the_batch(llama):
    seeds = [11, 5, 2**40, 5]
    samplings = [WARM, Sampling(temperature=2.0), Sampling(), WARM]
    together = generate(llama, PROMPTS, 10, sampling=samplings, seeds=seeds)
    for number, one in enumerate(together):
        [alone] = generate(
            llama,
            PROMPTS[number : number + 1],
            10,
            sampling=samplings[number],
            seeds=[seeds[number]],
        )
        assert alone.tokens == one.tokens
        streamed = stream(
            llama, PROMPTS[number], 10, sampling=samplings[number], seed=seeds[number]
        )
        assert list(streamed) == one.tokens
    runs = {
        tuple(generate(llama, [[5]], 10, sampling=WARM, seeds=[seed])[0].tokens)
        for seed in range(8)
    }
    assert len(runs) == 8
    default = generate(llama, PROMPTS, 10, sampling=WARM)
    numbered = generate(llama, PROMPTS, 10, sampling=WARM, seeds=range(4))
    assert default == numbered


def test_each_request_has_its_own_length(llama):
    full = [one.tokens for one in generate(llama, PROMPTS, 9)]
    found = generate(llama, PROMPTS, [9, 0, 1, 4])
    assert [one.tokens for one in found] == [full[0], [], full[2][:1], full[3][:4]]
    assert {one.reason for one in found} == {"length"}
    assert found[1].margin == math.inf
    assert generate(llama, [], 5) == []
    assert [one.tokens for one in generate(llama, PROMPTS, 0)] == [[]] * 4


@torch.no_grad()
def test_the_context_ends_a_request(llama):
    """The last token is predicted from a full context; it is not read."""
    long = (PROMPTS[2] * 3)[:24]
    found = generate(llama, [long, long[:20], [1]], 9)
    assert [(len(one.tokens), one.reason) for one in found] == [
        (1, "context"),
        (5, "context"),
        (9, "length"),
    ]
    for one in found:
        assert one.tokens == without_cache(llama, one.prompt, len(one.tokens))[0]
    [exact] = generate(llama, [long[:20]], 5)
    assert (len(exact.tokens), exact.reason) == (5, "length")


def test_a_prompt_that_cannot_be_read_has_its_answer_and_the_others_go_on(llama):
    good = [one.tokens for one in generate(llama, PROMPTS, 6)]
    prompts = [[], PROMPTS[0], [1] * 25, PROMPTS[1], [4, 19], PROMPTS[2], [-1], PROMPTS[3]]
    found = generate(llama, prompts, 6)
    assert [one.tokens for one in found] == [[], good[0], [], good[1], [], good[2], [], good[3]]
    reasons = [one.reason for one in found]
    assert reasons[1::2] == ["length"] * 4
    assert reasons[0].startswith("error: the prompt is empty: give one token at least")
    assert reasons[2] == ("error: the prompt has 25 tokens, but the context allows 24: shorten it")
    assert reasons[4] == (
        "error: token 19 at place 1 of the prompt does not exist: the model's tokens are 0 to 18"
    )
    assert "token -1 at place 0" in reasons[6]
    assert [check_prompt(p, llama.config) for p in ([0], [18] * 24)] == ["", ""]
    assert generate(llama, [[], []], 6)[1].tokens == []


def test_logits_of_nan_end_their_request_and_no_other(make_model):
    model = make_model(tied=False, vocab=97)
    good = generate(model, PROMPTS, 8)
    seen = {token for one in (good[0], good[2]) for token in one.prompt + one.tokens}
    late = next(t for t in good[1].tokens[1:-1] if t not in {*seen, good[1].tokens[0]})
    with torch.no_grad():
        model.embedding.weight[late] = math.nan
    found = generate(model, PROMPTS, 8)
    assert_same(found[0::2], good[0::2])
    at = good[1].tokens.index(late) + 1
    assert found[1].tokens == good[1].tokens[:at]
    assert found[1].reason == f"error: {NotANumber.text}"
    with pytest.raises(RuntimeError, match="the logits of the next token are NaN or infinite"):
        list(stream(model, PROMPTS[1], 8))
    [bad, fine] = generate(model, [[late], PROMPTS[0]], 8)
    assert (bad.tokens, bad.margin) == ([], math.inf)
    assert_same([fine], good[:1])
    assert [one.tokens for one in generate(model, [[late], [late, 1]], 3)] == [[], []]


def test_a_full_cache_ends_the_longest_request_and_no_other(llama):
    full = generate(llama, PROMPTS, 8)
    cache = Preallocated(kept_by(llama), 4, 10, torch.float64)
    found = generate(llama, PROMPTS, 8, cache=cache)
    assert_same(found[1::2], full[1::2])
    for number in (0, 2):
        more = 10 - len(PROMPTS[number]) + 1  # the last token is chosen, and cannot be read
        assert found[number].tokens == full[number].tokens[:more]
        assert found[number].reason.startswith("error: a sequence would have 11 tokens")


def test_a_cache_too_small_for_a_prompt_ends_that_request_and_no_other(llama):
    """Nothing is read yet: the longest is the one whose next piece ends last."""
    full = generate(llama, PROMPTS, 3)
    cache = Preallocated(kept_by(llama), 4, 4, torch.float64)
    found = generate(llama, PROMPTS, 3, cache=cache)
    assert [one.tokens for one in found] == [[], full[1].tokens, [], full[3].tokens]
    for number, length in ((0, 5), (2, 9)):
        assert found[number].reason.startswith(f"error: a sequence would have {length} tokens")


def test_a_vocabulary_of_one_token(make_model):
    """No second logit: no gap between the two largest."""
    [one] = generate(make_model(vocab=1), [[0, 0]], 3)
    assert (one.tokens, one.reason, one.margin) == ([0, 0, 0], "length", math.inf)


def test_a_stream_computes_a_token_when_it_is_asked_for_one(llama):
    passes = []
    handle = llama.register_forward_pre_hook(lambda *_: passes.append(1))
    tokens = stream(llama, PROMPTS[0], 9)
    assert passes == []
    first = [next(tokens), next(tokens)]
    assert len(passes) == 2
    tokens.close()
    handle.remove()
    assert first == generate(llama, PROMPTS, 2)[0].tokens
    stop = first[1]
    assert list(stream(llama, PROMPTS[0], 9, stop=[stop], chunk=2)) == first
    with pytest.raises(ValueError, match="the prompt is empty"):
        stream(llama, [], 9)
    small = Preallocated(kept_by(llama), 1, 6, torch.float64)
    with pytest.raises(RuntimeError, match="the cache was made for 6"):
        list(stream(llama, PROMPTS[0], 9, cache=small))


def test_dropout_is_off_and_the_mode_is_as_before(make_model):
    model = make_model(dropout=0.5)
    expected = generate(model, PROMPTS, 5)
    model.train()
    assert generate(model, PROMPTS, 5) == expected
    assert model.training
    assert model.blocks["0"].training
    model.eval()
    generate(model, PROMPTS, 1)
    assert not model.training


def test_the_cache_has_exactly_the_slots_that_are_read(llama, monkeypatch):
    made = []
    monkeypatch.setattr(
        "helpers.inference.reading.Preallocated",
        lambda kept, many, capacity, *place: (
            made.append((many, capacity, *place)) or Preallocated(kept, many, capacity, *place)
        ),
    )
    generate(llama, PROMPTS, 4)
    generate(llama, PROMPTS, [1, 9, 1, 1])
    generate(llama, PROMPTS, 100)
    place = torch.float64, torch.device("cpu")  # the model's
    assert made == [(4, 12, *place), (4, 9, *place), (4, 24, *place)]


def test_results_hold_no_gradient_and_plain_numbers(llama):
    [one] = generate(llama, [torch.tensor([3, 7])], 3)
    assert one.prompt == [3, 7]
    assert list(stream(llama, torch.tensor([3, 7]), 3)) == one.tokens
    assert list(stream(llama, b"\3\7", 3)) == one.tokens
    assert all(type(token) is int for token in one.tokens)
    assert type(one.margin) is float
    assert isinstance(one, Generated)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"new_tokens": -1}, "new_tokens must not be negative"),
        ({"new_tokens": [1, 2]}, "4 prompts, but 2 new_tokens: give one for each"),
        ({"seeds": [1]}, "4 prompts, but 1 seeds"),
        ({"sampling": [WARM] * 5}, "4 prompts, but 5 samplings"),
        ({"chunk": 0}, "chunk must be at least 1, or None, not 0"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be(llama, options, message):
    with pytest.raises(ValueError, match=message):
        generate(llama, PROMPTS, **{"new_tokens": 3, **options})
