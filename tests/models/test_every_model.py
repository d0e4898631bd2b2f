"""Every kind of model agrees with transformers', and has the properties of a language model.

Llama, Mixtral, GPT-2, DeepSeek-V2 and V3, Mamba, Mamba-2 and Bamba: in every dtype, and in any
split with a cache.
"""

from dataclasses import replace

import pytest
import torch

from helpers.models.bamba import bamba
from helpers.models.caches.preallocated import Growing
from helpers.models.gpt import GPT, GPTConfig, build, kept_by, loss_sum
from helpers.models.settings import ExpertSettings, Latent, Mamba2Settings, MambaSettings
from helpers.models.shape import CHOICES
from tests.models.peers import CACHES_LATENTS, lifted, pair, randomised, renamed
from tests.models.steps import bytes_saved, some_tokens

EXACT = {"rtol": 0, "atol": 1e-12}
# Relative to the norm of all logits, in float32: theirs and ours are equally far from the logits in
# float64, about 1e-6 with rotary angles (theirs are in float32 too): they add in another order.
NEAR = {torch.float64: 1e-13, torch.float32: 2e-6}

SHAPE = {"vocab": 31, "context": 16, "width": 24, "layers": 2, "heads": 4}
LLAMA = GPTConfig(**SHAPE)
GPT2 = GPTConfig(**SHAPE, norm="layer", positions="learned", mlp="gelu", bias=True)
WIDTHS = Latent(kv_rank=10, query_rank=7, nope=4, rope=6, value=5)
DEEPSEEK = replace(LLAMA, heads=3, norm_eps=1e-6, mixer="latent", latent=WIDTHS)
V3 = {"score": "sigmoid", "bias_rate": 0.001, "scale": 2.5, "shared": 2, "after": 1}
EXPERTS = ExpertSettings(count=8, chosen=4, hidden=7, groups=4, limit=2, **V3)
DEEPSEEK3 = replace(DEEPSEEK, experts=EXPERTS)
BARE = {"context": 37, "positions": "none", "mlp": "none"}
MAMBA = replace(LLAMA, **BARE, mixer="mamba", mamba=MambaSettings(state=5))
SIZES = Mamba2Settings(state=6, head=8, chunk=16)
MAMBA2 = replace(LLAMA, **BARE, mixer="mamba2", mamba2=SIZES)
HYBRID = {"vocab": 31, "context": 37, "width": 32, "hidden": 24, "heads": 4, "kv_heads": 2}
BAMBA = bamba(3, [1], **HYBRID, mamba2=SIZES)
ONES = Mamba2Settings(state=1, head=2, expand=1, groups=6, convolution=2)
GROUPS = Mamba2Settings(state=6, head=8, groups=3, chunk=5)

KINDS = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "deepseek": DEEPSEEK,
    "deepseek, experts": DEEPSEEK3,
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "bamba": BAMBA,
}
PEERS = KINDS | {
    "llama, grouped, untied": replace(LLAMA, kv_heads=2, tied=False),
    "llama, one key": replace(LLAMA, kv_heads=1),
    "llama, explicit": replace(LLAMA, kv_heads=2, attention="explicit"),
    "llama, blockwise": replace(LLAMA, kv_heads=2, attention="blockwise"),
    "mixtral": replace(LLAMA, kv_heads=2, experts=ExpertSettings(count=5)),
    "gpt2, explicit, untied": replace(GPT2, attention="explicit", tied=False),
    "deepseek, queries as they are": replace(DEEPSEEK, latent=replace(WIDTHS, query_rank=None)),
    "deepseek, explicit": replace(DEEPSEEK, attention="explicit"),
    "deepseek, values as wide": replace(DEEPSEEK, latent=replace(WIDTHS, rope=2, value=6)),
    "mamba, untied, biases": replace(MAMBA, tied=False, bias=True),
    "mamba, sizes": replace(
        MAMBA, layers=1, mamba=MambaSettings(state=1, expand=3, convolution=2, rank=4)
    ),
    "mamba2, groups, untied, biases": replace(MAMBA2, tied=False, bias=True, mamba2=GROUPS),
    "mamba2, sizes": replace(MAMBA2, layers=1, mamba2=ONES),
    "bamba, groups, tied, one key": replace(
        BAMBA, tied=True, kv_heads=1, mamba2=replace(SIZES, groups=2)
    ),
    "bamba, attention first and last": bamba(
        3, [0, 2], **HYBRID, mamba2=Mamba2Settings(state=3, head=16), rotary_base=100.0
    ),
}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
every_peer = pytest.mark.parametrize("config", PEERS.values(), ids=PEERS)


def versions(config):
    """The peers of a configuration: DeepSeek has two, V3 alone with these experts."""
    if config.experts is not None and config.mixer == "latent":
        return ({"version": 3},)
    return ({"version": 2}, {"version": 3}) if config.mixer == "latent" else ({},)


def made(config, dtype=torch.float64):
    return randomised(GPT(config, dtype))


def gradients(model, x, y):
    model.zero_grad()
    loss_sum(model(x), y)[0].backward()
    return {name: p.grad.clone() for name, p in trained(model)}


def trained(model):
    """Parameters with a gradient: all but the bias of the choice of experts."""
    return [(name, p) for name, p in model.named_parameters() if not name.endswith("balance")]


@every_peer
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@torch.no_grad()
def test_logits_are_those_of_transformers(config, dtype):
    for options in versions(config):
        theirs, ours = pair(config, dtype, **options)
        for tokens in (config.context, 1):
            x = some_tokens(config, tokens=tokens)
            with lifted(dtype):
                expected = theirs(x, use_cache=False).logits
            found = ours(x)
            assert expected.std() > 0.3
            assert found.dtype is expected.dtype is dtype
            assert (found - expected).norm() <= NEAR[dtype] * expected.norm()


@every_peer
def test_gradients_are_those_of_transformers(config):
    x, y = some_tokens(config, 2, 11), some_tokens(config, 2, 11, seed=1)
    for options in versions(config):
        theirs, ours = pair(config, **options)
        with lifted():
            loss_sum(theirs(x, use_cache=False).logits, y)[0].backward()
        expected = {name: p.grad for name, p in theirs.named_parameters(remove_duplicate=False)}
        expected = renamed(expected, config, gradients=True)
        for name, found in gradients(ours, x, y).items():
            assert expected[name].any() or name.endswith("key.bias"), name
            torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-10, msg=name)


@every_peer
@torch.no_grad()
def test_greedy_tokens_with_a_cache_are_those_of_transformers(config):
    if config.layers == 1:
        pytest.skip("one layer alone repeats a token")
    for options in versions(config):
        theirs, ours = pair(config, **options)
        x, new = some_tokens(config, 2, 5), 11
        asked = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        theirs.generation_config.eos_token_id = None
        with lifted():
            done = theirs.generate(
                x, attention_mask=torch.ones_like(x), return_dict_in_generate=True, **asked
            )
        cache, found = Growing(kept_by(ours), 2, torch.float64), [x]
        while len(found) <= new:
            found.append(ours(found[-1], cache=cache)[:, -1:].argmax(-1))
        assert torch.equal(torch.cat(found, 1), done.sequences)
        assert len(done.sequences[:, 5:].unique()) > 2  # not one token again and again
        if config.mixer == "latent" and CACHES_LATENTS:
            layers = done.past_key_values.layers
            assert cache.bytes == sum(t.nbytes for one in layers for t in (one.keys, one.values))
            torch.testing.assert_close(cache.blocks[1].rows[0], layers[1].keys, **EXACT)


@every_peer
@torch.no_grad()
def test_any_split_gives_the_same(config):
    """The logits of the whole, and the same states."""
    model, x = made(config), some_tokens(config, 2, 9)
    whole, states = model(x), []
    for sizes in ([9], [1] * 9, [4, 1, 3, 1], [1, 8], [8, 1], [4, 0, 5]):
        cache = Growing(kept_by(model), 2, torch.float64)
        found = [model(part, cache=cache) for part in x.split(sizes, dim=1)]
        torch.testing.assert_close(torch.cat(found, 1), whole, **EXACT)
        states.append([state.clone() for b in cache.blocks.values() for state in b.read()])
    for other in states[1:]:
        for state, expected in zip(other, states[0], strict=True):
            assert state.any()
            torch.testing.assert_close(state, expected, **EXACT)


@every_kind
@torch.no_grad()
def test_padding_changes_neither_logits_nor_states(config):
    model = made(config)
    rows = [some_tokens(config, 1, 14, seed)[0] for seed in range(4)]
    cache, found = Growing(kept_by(model), 4, torch.float64), [[], [], [], []]
    for counts in ([3, 5, 0, 1], [1, 0, 1, 1], [2, 0, 6, 3], [4, 4, 4, 4], [0, 1, 0, 0]):
        x = torch.full((4, max(counts)), 7)  # the padding is a token like any other
        for row, count in enumerate(counts):
            x[row, :count] = rows[row][cache.lengths[row] :][:count]
        logits = model(x, cache=cache, counts=counts)
        assert logits.isfinite().all()
        for row, count in enumerate(counts):
            found[row].append(logits[row, :count])
    for row, length in enumerate(cache.lengths):
        alone = Growing(kept_by(model), 1, torch.float64)
        expected = model(rows[row][None, :length], cache=alone)[0]
        torch.testing.assert_close(torch.cat(found[row]), expected, **EXACT)
        for number, block in cache.blocks.items():
            for state, own in zip(block.read(), alone.blocks[number].read(), strict=True):
                torch.testing.assert_close(state[row], own[0], **EXACT)


@every_kind
@torch.no_grad()
def test_no_token_sees_the_future_and_every_token_sees_all_before_it(config):
    model, x = made(config), some_tokens(config, 1, 9)
    before = model(x)
    for place in range(9):
        changed = x.clone()
        changed[0, place] = (changed[0, place] + 1) % config.vocab
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], **EXACT)
        assert ((after - before)[0, place:].abs().amax(-1) > 1e-9).all()
        torch.testing.assert_close(model(x[:, : place + 1]), before[:, : place + 1], **EXACT)


@every_kind
def test_every_dtype_runs_and_lower_precision_is_near(config):
    x, y, exact = some_tokens(config, 2, 11), some_tokens(config, 2, 11, seed=1), None
    for dtype, near in ((torch.float64, 0), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        model = made(config, dtype)
        logits = model(x)
        assert (logits.dtype, logits.shape) == (dtype, (2, 11, 31))
        loss, count = loss_sum(logits, y)
        loss.backward()
        assert count == 22
        assert loss.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        exact = loss.item() if exact is None else exact
        assert abs(loss.item() - exact) <= near * exact
        for name, parameter in trained(model):
            assert parameter.grad.dtype is dtype, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@every_kind
@torch.no_grad()
def test_a_cache_in_another_dtype(config):
    """A cache in bf16 keeps rounded numbers, of a model in float32."""
    model, x = made(config, torch.float32), some_tokens(config, 2, 8)
    cache = Growing(kept_by(model), 2, torch.bfloat16)
    found, expected = torch.cat([model(t, cache=cache) for t in x.split([5, 1, 2], 1)], 1), model(x)
    assert found.dtype is torch.float32
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()


@every_kind
@pytest.mark.parametrize("attention", CHOICES["attention"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_recomputing_changes_no_bit_and_keeps_fewer_bytes(config, attention, dtype):
    x, y, results, kept = some_tokens(config), some_tokens(config, seed=1), [], []
    for recompute in CHOICES["recompute"]:
        model = made(replace(config, attention=attention, recompute=recompute), dtype).train()
        results.append(gradients(model, x, y))
        kept.append(bytes_saved(lambda m=model: loss_sum(m(x), y)[0].backward(), model))
    for other in results[1:]:
        for name, gradient in other.items():
            assert torch.equal(gradient, results[0][name]), name
    has_core = {"attention", "latent"} & set(config.mixers)
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == (3 if has_core else 2)  # a scan keeps few states of its own accord


@every_kind
@pytest.mark.parametrize("recompute", CHOICES["recompute"])
def test_an_empty_batch_forward_and_backward(config, recompute):
    """A rank without data still runs: its gradients are zeros, not None."""
    model, tokens = build(replace(config, recompute=recompute)), torch.zeros(0, 5).long()
    logits = model(tokens)
    assert logits.shape == (0, 5, 31)
    loss, count = loss_sum(logits, tokens)
    loss.backward()
    assert (loss, count) == (0, 0)
    for name, parameter in trained(model):
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize("config", [LLAMA, GPT2, DEEPSEEK], ids=["llama", "gpt2", "deepseek"])
def test_every_form_of_attention_is_the_fused_one(config):
    x, y = some_tokens(config), some_tokens(config, seed=1)
    fused, *others = (made(replace(config, attention=kind)) for kind in CHOICES["attention"])
    expected = gradients(fused, x, y)
    for other in others:
        torch.testing.assert_close(other(x), fused(x), **EXACT)
        for name, gradient in gradients(other, x, y).items():
            torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-11, msg=name)
