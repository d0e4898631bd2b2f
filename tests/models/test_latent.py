"""Latent attention: its two forms are one function. `test_every_model` has DeepSeek-V2 and V3."""

import pytest
import torch

from helpers.models import latent
from helpers.models.caches.cache import RotaryPart
from helpers.models.caches.preallocated import Growing
from helpers.models.gpt import GPT, GPTConfig, kept_by
from helpers.models.latent import LatentAttention, absorbing_is_cheaper
from helpers.models.settings import Latent
from tests.models import steps
from tests.models.peers import randomised

SHAPE = {"vocab": 31, "context": 16, "width": 24, "layers": 2, "heads": 3, "norm_eps": 1e-6}
WIDTHS = {
    "plain": Latent(kv_rank=10, nope=4, rope=6, value=5),
    "queries compressed": Latent(kv_rank=10, query_rank=7, nope=4, rope=6, value=5),
    "values as wide": Latent(kv_rank=9, nope=4, rope=2, value=6),
}
every_width = pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)


def config_of(widths, **changes):
    return GPTConfig(**SHAPE, mixer="latent", latent=widths, **changes)


def some_tokens(sequences=3, tokens=16, seed=0):
    return steps.some_tokens(GPTConfig(vocab=31), sequences, tokens, seed)


def ours_of(config):
    return randomised(GPT(config, torch.float64)).eval()


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


def test_learned_positions_rotate_nothing():
    config = config_of(WIDTHS["plain"], positions="learned", norm="layer", mlp="gelu", bias=True)
    model = ours_of(config)
    cache = Growing(kept_by(model), 3, torch.float64)
    with torch.no_grad():
        found = torch.cat([model(x, cache=cache) for x in some_tokens().split(5, 1)], 1)
        torch.testing.assert_close(found, model(some_tokens()), rtol=0, atol=1e-12)
