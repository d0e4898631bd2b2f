"""Latent attention agrees with transformers' DeepSeek-V2 and V3; its two forms are one function."""

from dataclasses import replace

import pytest
import torch

from helpers.measure.memory import SavedTensors
from helpers.models import latent
from helpers.models.caches.kept import RotaryPart
from helpers.models.caches.preallocated import Growing
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT, kept_by, loss_sum
from helpers.models.latent import LatentAttention, absorbing_is_cheaper
from helpers.models.latent_config import Latent

from .deepseek import CACHES_LATENTS, REASON, deepseek_of, from_deepseek, in_float64

SHAPE = {"vocab": 31, "context": 16, "width": 24, "layers": 2, "heads": 3, "norm_eps": 1e-6}
WIDTHS = {
    "plain": Latent(kv_rank=10, nope=4, rope=6, value=5),
    "queries compressed": Latent(kv_rank=10, query_rank=7, nope=4, rope=6, value=5),
    "values as wide": Latent(kv_rank=9, nope=4, rope=2, value=6),
}
every_width = pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
every_attention = pytest.mark.parametrize("attention", ["sdpa", "explicit"])


def config_of(widths, **changes):
    return GPTConfig(**SHAPE, mixer="latent", latent=widths, **changes)


def some_tokens(sequences=3, tokens=16, seed=0):
    return torch.randint(31, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def randomised(model):
    """Make every parameter random, of size 1/4. Biases and scales too, so that tests see them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            parameter.copy_(noise + (parameter.dim() == 1))
    return model


def ours_of(config):
    return randomised(GPT(config, torch.float64)).eval()


# transformers


@pytest.fixture(params=[2, 3], ids=["V2", "V3"])
def version(request):
    return request.param


def both(config, version, monkeypatch):
    theirs = in_float64(randomised(deepseek_of(config, version)), config, version, monkeypatch)
    ours = GPT(config, torch.float64).eval()
    ours.load_state_dict(from_deepseek(theirs.state_dict(), config))  # strict
    return theirs, ours


@every_width
@every_attention
@torch.no_grad()
def test_logits_are_those_of_transformers(version, widths, attention, monkeypatch):
    theirs, ours = both(config_of(widths, attention=attention), version, monkeypatch)
    found, expected = ours(some_tokens()), theirs(some_tokens()).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_transformers(version, monkeypatch):
    theirs, ours = both(config_of(WIDTHS["queries compressed"]), version, monkeypatch)
    tokens, targets = some_tokens(), some_tokens(seed=1)
    loss_sum(theirs(tokens).logits, targets)[0].backward()
    loss_sum(ours(tokens), targets)[0].backward()
    theirs = {name: p.grad for name, p in theirs.named_parameters(remove_duplicate=False)}
    expected = from_deepseek(theirs, ours.config)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-11)


@pytest.mark.skipif(not CACHES_LATENTS, reason=REASON)
@torch.no_grad()
def test_greedy_tokens_and_the_cache_are_those_of_transformers(version, monkeypatch):
    theirs, ours = both(config_of(WIDTHS["queries compressed"]), version, monkeypatch)
    prompt, cache = some_tokens(2, 5), Growing(kept_by(ours), 2, torch.float64)
    done = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=11,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
    )
    x, tokens = prompt, prompt
    while tokens.shape[1] < 16:
        x = ours(x, cache=cache)[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, x], 1)
    assert torch.equal(tokens, done.sequences)
    layers = done.past_key_values.layers
    assert cache.bytes == sum(t.nbytes for one in layers for t in (one.keys, one.values))
    latents = cache.blocks[1].rows[0]
    torch.testing.assert_close(latents, layers[1].keys, rtol=0, atol=1e-12)


# our own properties


def module_and_inputs(widths, sequences, tokens, keys):
    config = config_of(widths)
    module = randomised(LatentAttention(config, dtype=torch.float64))
    generator = torch.Generator().manual_seed(1)
    draw = {"generator": generator, "dtype": torch.float64}
    q = torch.randn(sequences, 3, tokens, widths.nope + widths.rope, **draw)
    kept = [
        torch.randn(sequences, 1, keys, width, **draw) for width in (widths.kv_rank, widths.rope)
    ]
    return module, q, *kept


@every_width
@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (1, 7), (2, 5), (3, 3), (4, 9)])
@torch.no_grad()
def test_absorbed_is_expanded(widths, tokens, keys):
    module, q, rows, shared = module_and_inputs(widths, 2, tokens, keys)
    found = module.absorbed(q, rows, shared, None)
    expected = module.core(q, *module.expand(rows, shared))
    assert found.shape == (2, 3, tokens, widths.value)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    seen = torch.rand(2, 1, tokens, keys, generator=torch.Generator().manual_seed(2)) < 0.5
    seen[..., 0] = True
    found = module.absorbed(q, rows, shared, seen)
    expected = module.core(q, *module.expand(rows, shared), seen)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@every_width
@pytest.mark.parametrize("absorb", [True, False])
@torch.no_grad()
def test_either_form_with_a_cache_gives_the_logits_without(widths, absorb, monkeypatch):
    monkeypatch.setattr(latent, "absorbing_is_cheaper", lambda *_: absorb)
    model = ours_of(config_of(widths, bias=True))
    tokens, found = some_tokens(2, 9), []
    cache = Growing(kept_by(model), 2, torch.float64)
    for part in tokens.split([4, 1, 3, 1], 1):
        found.append(model(part, cache=cache))
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("absorb", [True, False])
@torch.no_grad()
def test_either_form_sees_only_what_the_mask_allows(absorb, monkeypatch):
    asked = []
    monkeypatch.setattr(
        latent, "absorbing_is_cheaper", lambda *given: (asked.append(given), absorb)[1]
    )
    widths = WIDTHS["plain"]
    module, q, rows, shared = module_and_inputs(widths, 2, 3, 5)
    seen = torch.tensor([[1, 0, 0, 1, 0], [1, 1, 0, 0, 1]], dtype=torch.bool)[:, None, None]
    found = module.cheaper(q, rows, shared, seen)
    assert asked == [(widths, 3, 5)]  # queries, keys
    for row in range(2):  # leave out what is not seen; every query sees the rest
        mine = seen[row, 0, 0]
        for query in range(3):
            one = q[row : row + 1, :, query : query + 1]
            some = [t[row : row + 1, :, mine] for t in (rows, shared)]
            expected = module.core(one, *module.expand(*some))
            torch.testing.assert_close(found[row, :, query], expected[0, :, 0], rtol=0, atol=1e-12)


def test_the_form_that_needs_fewer_flops():
    v2 = Latent(kv_rank=512, nope=128, rope=64, value=128)
    assert absorbing_is_cheaper(v2, 1, 4096)
    assert not absorbing_is_cheaper(v2, 4096, 4096)
    # T = 170 queries of S = 170: 512 256 T + T² 1,088 against 512 256 T + T² 320
    assert not absorbing_is_cheaper(v2, 170, 170)
    # S c (n + v) + T S (n + r + v) against T c (n + v) + T S (2 c + r), by hand
    tiny = Latent(kv_rank=2, nope=1, rope=2, value=1)
    assert not absorbing_is_cheaper(tiny, 1, 2)  # 8 + 8 against 4 + 12: no gain
    assert absorbing_is_cheaper(tiny, 1, 3)  # 12 + 12 against 4 + 18
    assert not absorbing_is_cheaper(tiny, 2, 3)  # 12 + 24 against 8 + 36


@torch.no_grad()
def test_each_form_is_taken_where_it_is_cheaper(monkeypatch):
    model, taken = ours_of(config_of(WIDTHS["plain"])), []
    for name in ("absorbed", "expand"):
        plain = getattr(LatentAttention, name)
        monkeypatch.setattr(
            LatentAttention, name, lambda *a, f=plain, n=name: (taken.append(n), f(*a))[1]
        )
    cache = Growing(kept_by(model), 1, torch.float64)
    model(some_tokens(1, 8), cache=cache)
    assert taken == ["expand"] * 2
    model(some_tokens(1, 1), cache=cache)
    assert taken[2:] == ["absorbed"] * 2


@every_width
def test_what_is_kept(widths):
    kept = LatentAttention.kept(config_of(widths))
    assert kept.per_token == ((1, widths.kv_rank), (1, widths.rope))
    assert kept.bytes_per_token(torch.bfloat16) == 2 * (widths.kv_rank + widths.rope)
    # the second tensor is rotated, and of a query the part behind the first `nope` numbers
    rotary = RotaryPart(tensor=1, key=0, query=widths.nope, width=widths.rope, base=10_000.0)
    assert kept.rotary == rotary
    assert LatentAttention.kept(config_of(widths, rotary_base=50.0)).rotary.base == 50
    for positions in ("learned", "none"):
        assert LatentAttention.kept(config_of(widths, positions=positions)).rotary is None


@every_attention
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_gradient_and_saves_less(attention, recompute):
    config = config_of(WIDTHS["queries compressed"], attention=attention, bias=True)
    gradients, kept = [], []
    for one in (config, replace(config, recompute=recompute)):
        model, saved = randomised(GPT(one, torch.float64)).train(), SavedTensors(dict)
        with saved:
            loss_sum(model(some_tokens()), some_tokens(seed=1))[0].backward()
        kept.append(saved.peak)
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert kept[1] < kept[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-13)


def test_learned_positions_rotate_nothing():
    config = config_of(WIDTHS["plain"], positions="learned", norm="layer", mlp="gelu", bias=True)
    model = ours_of(config)
    cache = Growing(kept_by(model), 3, torch.float64)
    with torch.no_grad():
        found = torch.cat([model(x, cache=cache) for x in some_tokens().split(5, 1)], 1)
        torch.testing.assert_close(found, model(some_tokens()), rtol=0, atol=1e-12)
