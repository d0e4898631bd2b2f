"""Attention's arithmetic by hand, rotary positions, and the table of their angles."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from helpers.models.attention import Attention, Core, Rotary, rotary_table, rotate
from helpers.models.caches.cache import Kept, RotaryPart
from helpers.models.gpt import GPTConfig, build
from helpers.models.shape import CHOICES

CONFIG = GPTConfig(vocab=31, context=16, width=24, layers=1, heads=4)
every_attention = pytest.mark.parametrize("kind", CHOICES["attention"])


def random(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def by_hand(q, k, v, sees):
    """One query of one head after the other; `sees(b, h, t)` gives the keys that it may see."""
    (sequences, heads, tokens, d), shared = q.shape, q.shape[1] // k.shape[1]
    y = torch.zeros(sequences, heads, tokens, v.shape[-1], dtype=torch.float64)
    for b in range(sequences):
        for h in range(heads):
            for t in range(tokens):
                keys = sees(b, h, t)
                scores = k[b, h // shared, keys] @ q[b, h, t] / d**0.5
                weights = scores.exp() / scores.exp().sum()
                y[b, h, t] = weights @ v[b, h // shared, keys]
    return y


@every_attention
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize(("tokens", "keys"), [(5, 5), (1, 1), (1, 7), (3, 7), (6, 7)])
def test_the_last_tokens_see_all_before_them(kind, key_heads, tokens, keys):
    q, k = random(2, 4, tokens, 6), random(2, key_heads, keys, 6)
    v = random(2, key_heads, keys, 3)  # latent attention has values of another width
    expected = by_hand(q, k, v, lambda b, h, t: slice(0, keys - tokens + t + 1))
    torch.testing.assert_close(Core(kind)(q, k, v), expected, rtol=0, atol=1e-13)


@every_attention
def test_a_mask_says_which_keys_are_seen(kind):
    q, k, v = random(2, 4, 3, 6), random(2, 2, 7, 6), random(2, 2, 7, 6)
    seen = random(2, 1, 3, 7) > 0
    seen[..., 4] = True  # softmax needs one key at least
    expected = by_hand(q, k, v, lambda b, h, t: seen[b, 0, t])
    torch.testing.assert_close(Core(kind)(q, k, v, seen), expected, rtol=0, atol=1e-13)


def test_large_scores_do_not_overflow():
    q, k, v = 100 * random(1, 2, 4, 8), 100 * random(1, 2, 4, 8), random(1, 2, 4, 8)
    for kind in CHOICES["attention"]:
        assert Core(kind)(q, k, v).isfinite().all()


def test_what_a_block_keeps():
    grouped = replace(CONFIG, kv_heads=2, rotary_base=500.0)
    rotary = RotaryPart(width=6, base=500.0)
    assert Attention.kept(grouped) == Kept(per_token=((2, 6), (2, 6)), rotary=rotary)
    for positions in ("learned", "none"):
        unrotated = replace(CONFIG, positions=positions)
        assert Attention.kept(unrotated) == Kept(per_token=((4, 6), (4, 6)))
    share = replace(CONFIG, rotary_share=1 / 3)  # 2 of a head's 6 numbers
    assert Attention.kept(share).rotary == RotaryPart(width=2, base=10_000.0)


def test_the_fused_kernel_gets_a_mask_only_if_it_needs_one(monkeypatch):
    """With a mask, PyTorch reads T S more numbers, and does not skip the hidden half."""
    calls, plain = [], functional.scaled_dot_product_attention

    def spy(*given, **options):
        calls.append((options["attn_mask"] is not None, options["is_causal"]))
        return plain(*given, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    for tokens, keys in ((5, 5), (1, 7), (3, 7)):
        Core("sdpa")(random(1, 2, tokens, 4), random(1, 2, keys, 4), random(1, 2, keys, 4))
    assert calls == [(False, True), (False, False), (True, False)]


def test_rotation_keeps_the_dtype_of_the_model():
    cos, sin = (table.float() for table in rotary_table(5, 4, 100.0))
    for width in (4, 6):  # a whole head, and a share of it
        x = random(2, 5, 3, width).bfloat16()
        turned = rotate(x, cos, sin)
        assert turned.dtype is torch.bfloat16
        assert torch.equal(turned, rotate(x.float(), cos, sin).bfloat16())


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 23))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rotary_products_depend_on_the_distance_alone(first, second, shift):
    cos, sin = rotary_table(64, 8, 100.0)
    q, k = random(2, 8)

    def at(x, place):
        return rotate(x.expand(1, 64, 1, 8), cos, sin)[0, place, 0]

    here = at(q, first) @ at(k, second)
    there = at(q, first + shift) @ at(k, second + shift)
    torch.testing.assert_close(there, here, rtol=0, atol=1e-13)
    torch.testing.assert_close(at(q, first).norm(), q.norm(), rtol=1e-14, atol=0)


def test_rotary_turns_pairs_by_their_angles():
    cos, sin = rotary_table(5, 4, 100.0)
    x = torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64).expand(1, 5, 1, 4)
    turned = rotate(x, cos, sin)[0, :, 0]
    place = torch.arange(5, dtype=torch.float64)
    # pairs (0, 2) and (1, 3) have the angles place and place/10
    expected = [place.cos(), -2 * (place / 10).sin(), place.sin(), 2 * (place / 10).cos()]
    torch.testing.assert_close(turned, torch.stack(expected, -1), rtol=0, atol=1e-15)


def test_a_share_of_a_head_is_turned():
    cos, sin = rotary_table(5, 4, 100.0)
    x = random(2, 5, 3, 10)
    turned = rotate(x, cos, sin)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert torch.equal(turned[..., :4], rotate(x[..., :4], cos, sin))


def test_angles_are_looked_up_by_place():
    rotary = Rotary(replace(CONFIG, rotary_base=50.0), torch.float64, "cpu")
    for found, table in zip(rotary(4), rotary_table(16, 6, 50.0), strict=True):
        assert torch.equal(found, table[:4])
    places = torch.tensor([[0, 9], [15, 2]])
    for found, table in zip(rotary(places), rotary_table(16, 6, 50.0), strict=True):
        assert torch.equal(found, table[places])
    assert rotary.state_dict() == {}  # a checkpoint does not contain the table


def test_one_table_of_angles_wide_whatever_the_model_is_cast_to():
    config = replace(CONFIG, context=400)
    right = torch.stack(rotary_table(400, config.head_width, config.rotary_base))
    model = build(config, dtype=torch.bfloat16)
    for cast in (model, build(config).bfloat16(), build(config), build(config).to(torch.float16)):
        assert [name for name, _ in cast.named_buffers()] == ["rotary.cos", "rotary.sin"]
        table = torch.stack([cast.rotary.cos, cast.rotary.sin])
        assert table.dtype is torch.float32
        assert torch.equal(table, right.float())
    for cast in (build(config).double(), build(config, dtype=torch.float64)):
        assert torch.equal(torch.stack([cast.rotary.cos, cast.rotary.sin]), right)
