"""The decoder's logits and tokens are the plain model's, for every shape and ragged prompts."""

import shutil
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.inference.decoder import decoder as module
from helpers.inference.decoder import slots
from helpers.models.caches.cache import CacheFull
from helpers.models.config import GPTConfig
from helpers.models.gpt import build


@pytest.fixture(autouse=True, scope="module")
def small_steps():
    """Let the cache widen several times within a small context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "STEP", 4)
        yield


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
FORMS = {"operators": False, "compiled": True}


@pytest.fixture(
    params=[pytest.param(on, marks=[needs_compiler] * on) for on in FORMS.values()],
    ids=FORMS,
    scope="module",
)
def Decoder(request):
    """Make a decoder of either form."""
    return partial(module.Decoder, compiled=request.param)


def some_tokens(sequences, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (sequences, tokens), generator=generator)


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@torch.no_grad()
def plain(model, prompt, new_tokens):
    """Continue greedily, without a cache; and each token's logits."""
    tokens, logits = list(prompt), []
    for _ in range(new_tokens):
        logits.append(model(torch.tensor([tokens]))[0, -1])
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :], logits


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("prompt", [0, 1, 9])
@torch.no_grad()
def test_prefill_and_steps_give_the_models_logits(Decoder, model, sequences, prompt):
    tokens, decoder = some_tokens(sequences, 24), Decoder(model, sequences, 24)
    expected = model(tokens)
    if prompt:
        close(decoder.prefill(tokens[:, :prompt]), expected[:, prompt - 1])
    for place in range(prompt, 24):
        close(decoder.step(tokens[:, place]), expected[:, place])
    assert decoder.lengths == [24] * sequences


@torch.no_grad()
def test_ragged_prompts(Decoder, model):
    rows, counts = some_tokens(4, 24), [5, 1, 8, 3]
    expected, decoder = model(rows), Decoder(model, 4, 20)
    for padding in (0, 7):  # the second prefill starts anew
        x = torch.full((4, 10), padding)
        for row, count in enumerate(counts):
            x[row, :count] = rows[row, :count]
        found = decoder.prefill(x, counts)
        assert decoder.lengths == counts
        close(found, expected[range(4), [count - 1 for count in counts]])
        for more in range(12):
            places = [count + more for count in counts]
            close(decoder.step(rows[range(4), places]), expected[range(4), places])
    with pytest.raises(CacheFull, match="would have 21 tokens, but the decoder was made for 20"):
        decoder.step(rows[:, 0])
    # equal prompts after ragged ones, also padded: nothing of the old mask is left
    close(decoder.prefill(rows[:, :9], [6] * 4), expected[:, 5])
    close(decoder.prefill(rows[:, :6]), expected[:, 5])
    close(decoder.step(rows[:, 6]), expected[:, 6])


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    tied=st.booleans(),
    new_tokens=st.integers(0, 6),
    seed=st.integers(0, 9),
)
def test_generated_tokens_are_the_models(Decoder, counts, heads, tied, new_tokens, seed):
    shape = {"vocab": 19, "context": 15, "heads": heads[0], "kv_heads": heads[1], "tied": tied}
    model = build(GPTConfig(width=heads[0] * 4, hidden=9, **shape), seed, torch.float64)
    rows = some_tokens(len(counts), 9, seed).tolist()
    prompts = [row[:count] for row, count in zip(rows, counts, strict=True)]
    found = Decoder(model, len(counts), 15).generate(prompts, new_tokens)
    assert found == [plain(model, prompt, new_tokens)[0] for prompt in prompts]


def test_float32_is_close(Decoder, llama):
    model = llama.float()
    prompt = some_tokens(1, 4)[0].tolist()
    _, expected = plain(model, prompt, 1)
    decoder = Decoder(model, 1, 6)
    found = decoder.prefill(torch.tensor([prompt]))[0]
    assert found.dtype == torch.float32
    close(found, expected[0], atol=2e-5)


@torch.no_grad()
def test_a_token_that_is_not_finite_spoils_its_own_sequence_only(Decoder, llama):
    llama.embedding.weight[0] = float("nan")  # token 0, which also pads
    decoder = Decoder(llama, 3, 10)
    x = torch.tensor([[3, 4, 0, 0], [5, 6, 7, 8], [0, 1, 2, 0]])
    found = decoder.prefill(x, [2, 4, 3])
    for _ in range(2):
        assert found[:2].isfinite().all()
        assert found[2].isnan().all()
        found = decoder.step(torch.tensor([1, 2, 3]))


@torch.no_grad()
def test_a_token_that_is_not_finite_can_be_forgotten(Decoder, llama):
    llama.embedding.weight[0] = float("nan")
    rows, decoder = some_tokens(1, 9).clamp(min=1), Decoder(llama, 1, 9)
    decoder.prefill(rows[:, :3])
    for _ in range(2):
        assert decoder.step(torch.tensor([0])).isnan().all()
    decoder.rewind(2)
    close(decoder.step(rows[:, 3]), llama(rows[:, :4])[:, -1])
    decoder.step(torch.tensor([0]))
    close(decoder.prefill(rows[:, :5]), llama(rows[:, :5])[:, -1])
    close(decoder.step(rows[:, 5]), llama(rows[:, :6])[:, -1])


@torch.no_grad()
def test_forgotten_tokens_are_as_never_read(Decoder, llama):
    rows, decoder = some_tokens(2, 14), Decoder(llama, 2, 14)
    expected = llama(rows)
    for counts in ([6, 6], [4, 6]):
        decoder.prefill(rows[:, :6], counts)
        for token in (1, 2, 3):
            decoder.step(torch.tensor([token, token]))
        decoder.rewind(4)
        lengths = [count - 1 for count in counts]
        assert decoder.lengths == lengths
        close(decoder.step(rows[range(2), lengths]), expected[range(2), lengths])
    for tokens in (5, -1):
        with pytest.raises(ValueError, match=f"cannot forget {tokens} tokens: the shortest .* 4"):
            decoder.rewind(tokens)
    decoder.rewind(4)
    assert decoder.lengths == [0, 2]


def test_results_stay_when_the_decoder_goes_on(Decoder, llama):
    decoder = Decoder(llama, 2, 8)
    first = decoder.prefill(some_tokens(2, 3))
    second = decoder.step(torch.tensor([1, 2]))
    kept = [first.clone(), second.clone()]
    decoder.step(torch.tensor([3, 4]))
    assert torch.equal(first, kept[0])
    assert torch.equal(second, kept[1])


def test_what_it_refuses(Decoder, llama):
    with pytest.raises(ValueError, match="sequences must be at least 1, not 0"):
        Decoder(llama, 0, 8)
    for capacity in (0, 25):
        with pytest.raises(ValueError, match=f"from 1 to the context of 24, not {capacity}"):
            Decoder(llama, 1, capacity)
    decoder = Decoder(llama, 2, 8)
    for wrong in (some_tokens(3, 4), some_tokens(1, 4), some_tokens(1, 4)[0]):
        with pytest.raises(ValueError, match=r"the decoder is of 2 sequences; pass \(2, T\)"):
            decoder.prefill(wrong)
    with pytest.raises(ValueError, match="3 counts, but the decoder is of 2"):
        decoder.prefill(some_tokens(2, 4), [1, 2, 3])
    for count in (0, 5):
        with pytest.raises(ValueError, match=f"prompt 1 has a count of {count}, .* 1 to 4 tokens"):
            decoder.prefill(some_tokens(2, 4), [2, count])
    with pytest.raises(CacheFull, match="would have 9 tokens, but the decoder was made for 8"):
        decoder.prefill(some_tokens(2, 9))
    with pytest.raises(ValueError, match="pass one for each of the 2 sequences"):
        decoder.step(torch.tensor([[1], [2]]))


def test_generate_refuses_before_it_starts(Decoder, llama):
    decoder = Decoder(llama, 2, 8)
    before = decoder.prefill(some_tokens(2, 3))
    with pytest.raises(ValueError, match="new_tokens must be at least 0, not -1"):
        decoder.generate([[1], [2]], -1)
    with pytest.raises(ValueError, match="prompt 1 has a count of 0"):
        decoder.generate([[1], []], 2)
    with pytest.raises(ValueError, match="the decoder is of 2 sequences"):
        decoder.generate([], 2)
    with pytest.raises(CacheFull, match="would have 9 tokens"):
        decoder.generate([[1, 2, 3], [4]], 7)
    assert decoder.lengths == [3, 3]
    assert torch.equal(decoder.prefill(some_tokens(2, 3)), before)
    # the last new token needs no slot
    assert [len(one) for one in decoder.generate([[1, 2, 3], [4]], 6)] == [6, 6]
    assert decoder.lengths == [8, 6]


def test_bytes_are_those_of_weights_and_cache(model):
    config = model.config
    one = 2 * 3 * config.key_heads * 11 * config.head_width * 8
    decoder = module.Decoder(model, 3, 11)
    assert decoder.bytes == decoder.weights.bytes + (config.layers + 1) * one
