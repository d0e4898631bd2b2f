"""The model agrees with transformers' Llama and GPT-2, and has the properties of a GPT."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers.data.batch import Batch, random_batch
from helpers.models import gpt
from helpers.models.caches.preallocated import Growing
from helpers.models.config import CHOICES, GPTConfig
from helpers.models.dropout import counter
from helpers.models.gpt import GPT, build, kept_by, loss_sum
from tests.models.copied import from_gpt2, from_llama, gpt2_of, in_float64, llama_of
from tests.models.steps import bytes_saved

GPT2_LIKE = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
SHAPE = {"vocab": 31, "context": 16, "width": 24, "layers": 2, "heads": 4}
KINDS = {"llama": GPTConfig(**SHAPE), "gpt2": GPTConfig(**SHAPE, **GPT2_LIKE)}
KINDS["grouped"] = replace(KINDS["llama"], kv_heads=2, tied=False)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# For logits of size 1: rounding of the last bit, in sums of some dozen terms, in two layers.
CLOSE = {torch.float64: 1e-13, torch.float32: 1e-5}

every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
every_attention = pytest.mark.parametrize("attention", CHOICES["attention"])


def some_tokens(config, sequences=3, tokens=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab, (sequences, tokens or config.context), generator=generator)


def randomised(model, seed=0):
    """Make every parameter random, of size 1/4. Biases and scales too, so that tests see them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            parameter.copy_(noise + (parameter.dim() == 1))
    return model


def gradients(model, x, y):
    model.zero_grad()
    loss_sum(model(x), y)[0].backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


# transformers


def both(kind, dtype, **changes):
    """Their model, our model with their parameters, and the function that renames parameters."""
    config = GPTConfig(**SHAPE, **(GPT2_LIKE if kind == "gpt2" else {}), **changes)
    config = replace(config, kv_heads={"grouped": 2, "one key": 1}.get(kind))
    make, rename = (gpt2_of, from_gpt2) if kind == "gpt2" else (llama_of, from_llama)
    theirs = randomised(make(config)).eval()
    if dtype is torch.float64:
        theirs = in_float64(theirs, config)
    ours = GPT(config, dtype=dtype)
    ours.load_state_dict(rename(theirs.state_dict(), config))  # strict: no parameter is missing
    return theirs, ours, rename


every_peer = pytest.mark.parametrize("kind", ["llama", "grouped", "one key", "gpt2"])
either_tied = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@either_tied
@every_peer
@every_attention
def test_logits_are_those_of_transformers(kind, attention, tied, dtype):
    theirs, ours, _ = both(kind, dtype, attention=attention, tied=tied)
    tokens = some_tokens(ours.config)
    with torch.no_grad():
        found, expected = ours(tokens), theirs(tokens).logits
    assert expected.std() > 0.5
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE[dtype])


@either_tied
@every_peer
def test_gradients_are_those_of_transformers(kind, tied):
    theirs, ours, rename = both(kind, torch.float64, tied=tied)
    tokens = some_tokens(ours.config)
    targets = some_tokens(ours.config, seed=1)
    loss_sum(theirs(tokens).logits, targets)[0].backward()
    loss_sum(ours(tokens), targets)[0].backward()
    theirs = {name: p.grad for name, p in theirs.named_parameters(remove_duplicate=False)}
    expected = rename(theirs, ours.config)
    for name, parameter in ours.named_parameters():
        # sums over 48 targets of numbers up to about 10
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-11)


# properties of every GPT


@every_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_attention
def test_every_dtype_runs(config, dtype, attention):
    model = build(replace(config, attention=attention), dtype=dtype)
    x, y = some_tokens(config), some_tokens(config, seed=1)
    logits = model(x)
    assert logits.shape == (3, 16, 31)
    assert logits.dtype is dtype
    loss, count = loss_sum(logits, y)
    loss.backward()
    assert loss.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert count == 48
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype is dtype, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@every_kind
def test_lower_precision_is_near(config):
    x, y = some_tokens(config), some_tokens(config, seed=1)
    exact = loss_sum(build(config, dtype=torch.float64)(x), y)[0].item()
    # relative to the loss: a few rounding errors of 2^-24 and 2^-9
    for dtype, near in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        found = loss_sum(build(config, dtype=dtype)(x), y)[0].item()
        assert found == pytest.approx(exact, rel=near)


@every_kind
@every_attention
def test_no_token_sees_the_future(config, attention):
    model = randomised(GPT(replace(config, attention=attention), dtype=torch.float64))
    tokens = some_tokens(config, 1)
    with torch.no_grad():
        before = model(tokens)
        for place in range(config.context):
            changed = tokens.clone()
            changed[0, place] = (changed[0, place] + 1) % config.vocab
            after = model(changed)
            assert torch.equal(after[:, :place], before[:, :place])
            # every later place sees the change
            assert ((after - before)[0, place:].abs().amax(-1) > 0).all()
        # a place does not see the number of later places
        for length in (1, 2, 7):
            shorter = model(tokens[:, :length])
            torch.testing.assert_close(shorter, before[:, :length], rtol=0, atol=1e-13)


@every_kind
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_explicit_attention_is_the_fused_one(config, dtype):
    x, y = some_tokens(config), some_tokens(config, seed=1)
    fused, explicit = (
        randomised(GPT(replace(config, attention=attention), dtype=dtype))
        for attention in CHOICES["attention"]
    )
    torch.testing.assert_close(explicit(x), fused(x), rtol=0, atol=CLOSE[dtype])
    found, expected = gradients(explicit, x, y), gradients(fused, x, y)
    size = max(gradient.abs().max().item() for gradient in expected.values())
    for name in found:
        # the keys' bias does not change the softmax: its gradient is only rounding error, so
        # compare with the size of all gradients
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=CLOSE[dtype] * size)


def test_without_positions_earlier_tokens_are_a_set():
    model = randomised(GPT(replace(KINDS["llama"], positions="none", layers=1)).double())
    assert not any("positions" in name for name, _ in model.named_parameters())
    first, other = model(torch.tensor([[1, 2, 3, 5], [3, 1, 2, 5]]))[:, -1]
    torch.testing.assert_close(first, other, rtol=0, atol=1e-13)


# recomputation


@every_kind
@every_attention
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_recomputing_changes_no_bit(config, attention, recompute, dtype):
    config = replace(config, attention=attention)
    x, y = some_tokens(config), some_tokens(config, seed=1)
    kept = randomised(GPT(config, dtype=dtype))
    again = randomised(GPT(replace(config, recompute=recompute), dtype=dtype))
    assert torch.equal(again(x), kept(x))
    assert_equal(gradients(again, x, y), gradients(kept, x, y))


@every_kind
@every_attention
def test_recomputing_keeps_fewer_bytes(config, attention):
    x, y = some_tokens(config), some_tokens(config, seed=1)
    kept = []
    for recompute in CHOICES["recompute"]:
        changed = replace(config, attention=attention, recompute=recompute)
        model = build(changed)
        kept.append(bytes_saved(lambda model=model: loss_sum(model(x), y)[0].backward(), model))
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_each_block_runs_again_in_training_alone(recompute):
    model = build(replace(KINDS["llama"], recompute=recompute))
    runs = []
    model.blocks["0"].attention.core.register_forward_pre_hook(lambda *_: runs.append(1))
    x = some_tokens(model.config)
    loss_sum(model(x), x)[0].backward()
    assert len(runs) == 2
    model.eval()
    loss_sum(model(x), x)[0].backward()
    assert len(runs) == 3


# dropout: test_dropout has the masks themselves


def test_each_place_of_dropout_has_a_counter_of_its_own(monkeypatch):
    """Of seed, step, the sequence's number, the token's place, and the place in the model."""
    keys = []
    monkeypatch.setattr(gpt, "dropout", lambda x, rate, key: (keys.append((rate, key)), x)[1])
    model = build(replace(KINDS["gpt2"], dropout=0.25), seed=7)
    numbers, places = torch.tensor([4, 9, 2]), torch.arange(16)
    model.loss(Batch(tokens=(x := some_tokens(model.config)), targets=x, numbers=numbers, step=5))
    assert [rate for rate, _ in keys] == [0.25] * 5  # embedding, two of each block
    for site, (_, key) in enumerate(keys):
        assert torch.equal(key, counter(counter(7, 5, numbers[:, None], places), site))
    model.eval()(x)
    assert len(keys) == 5


def test_norms_have_the_configured_epsilon():
    for kind in ("llama", "gpt2"):
        model = build(replace(KINDS[kind], norm_eps=0.125))
        norms = [m for m in model.modules() if isinstance(m, nn.RMSNorm | nn.LayerNorm)]
        assert [norm.eps for norm in norms] == [0.125] * 5


@pytest.mark.parametrize("config", [KINDS["llama"], KINDS["gpt2"]], ids=["rotary", "learned"])
def test_a_cache_may_fill_the_context_and_no_more(config):
    model = build(config)
    cache, tokens = Growing(kept_by(model), 1, torch.float32), some_tokens(config, 1)
    with torch.no_grad():
        model(tokens, cache=cache)
        assert list(cache.lengths) == [16]
        with pytest.raises(ValueError, match="would have 17 tokens with those in the cache"):
            model(tokens[:, :1], cache=cache)


# loss and edges


def test_the_loss_is_the_sum_of_cross_entropies():
    logits = torch.randn(2, 3, 5, dtype=torch.float64)
    targets = torch.tensor([[0, -100, 4], [-100, -100, 2]])
    loss, count = loss_sum(logits, targets)
    chosen = [(0, 0, 0), (0, 2, 4), (1, 2, 2)]
    by_hand = sum(-logits[b, t].softmax(-1)[v].log() for b, t, v in chosen)
    torch.testing.assert_close(loss, by_hand, rtol=1e-13, atol=0)
    assert count == 3


def test_nothing_but_ignored_targets():
    model = build(KINDS["llama"])
    x = some_tokens(model.config)
    loss, count = loss_sum(model(x), torch.full_like(x, -100))
    loss.backward()
    assert (loss, count) == (0, 0)
    assert all(not p.grad.any() for p in model.parameters())


def test_the_loss_is_reduced_in_float32_at_least():
    logits, targets = torch.zeros(1, 300, 7, dtype=torch.bfloat16), torch.zeros(1, 300).long()
    loss, count = loss_sum(logits, targets)
    assert loss.dtype is torch.float32  # in bf16 a sum of 300 would stop growing
    assert loss.item() == pytest.approx(300 * torch.tensor(7.0).log().item(), rel=1e-6)
    assert count == 300


@every_kind
@every_attention
@pytest.mark.parametrize("recompute", CHOICES["recompute"])
def test_an_empty_batch_forward_and_backward(config, attention, recompute):
    """A rank without data still runs: its gradients are zeros, not None."""
    model = build(replace(config, attention=attention, recompute=recompute))
    tokens = torch.zeros(0, 5, dtype=torch.long)
    logits = model(tokens)
    assert logits.shape == (0, 5, 31)
    loss, count = loss_sum(logits, tokens)
    loss.backward()
    assert (loss, count) == (0, 0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@every_kind
def test_more_tokens_than_the_context(config):
    with pytest.raises(ValueError, match="17 tokens, but the context allows 16"):
        build(config)(torch.zeros(1, 17, dtype=torch.long))


def test_the_state_names_parameters_alone():
    """A checkpoint does not contain the tables of angles."""
    model = build(KINDS["grouped"])
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()
    assert {name.rsplit(".")[-1] for name, _ in model.named_buffers()} == {"cos", "sin"}


# stages, casts, caches


def stages(config, dtype=torch.float64):
    """A model of three blocks in three stages: block 0; blocks 1 and 2; the head only."""
    middle = {"first": False, "last": False}
    cuts = [([0], {"last": False}), ([1, 2], middle), ([], {"first": False})]
    return [build(config, 0, dtype, blocks=blocks, **ends) for blocks, ends in cuts]


@every_kind
def test_stages_in_a_row_are_the_whole_model(config):
    config = replace(config, layers=3)
    whole, parts = build(config, 0, torch.float64), stages(config)
    batch = random_batch(0, 3, config.context, config.vocab, ignored=0.2)
    loss, count = whole.loss(batch)
    loss.backward()
    x = batch.tokens
    for stage in parts:
        x = stage(x)
    found, counted = parts[-1].criterion(x, batch.targets)
    found.backward()
    assert (found, counted) == (loss, count)
    expected = {name: p.grad for name, p in whole.named_parameters()}
    sums = {}
    for stage in parts:
        for name, p in stage.named_parameters():
            name = stage.plain_name(name)
            sums[name] = sums.get(name, 0) + p.grad
    assert sums.keys() == expected.keys()
    for name in expected:  # a tied matrix's gradient is the sum of both stages' gradients
        torch.testing.assert_close(sums[name], expected[name], rtol=0, atol=1e-12)


def test_moving_and_casting_keep_the_tie():
    for model in (build(KINDS["llama"]), GPT(KINDS["llama"], device="meta").to_empty(device="cpu")):
        assert model.double().head.weight is model.embedding.weight


def test_places_may_differ_from_sequence_to_sequence():
    model = randomised(GPT(KINDS["llama"], dtype=torch.float64))
    tokens = some_tokens(model.config, 2, 4)
    places = torch.tensor([[0, 1, 2, 3], [0, 2, 4, 9]])
    both = model(tokens, model.locate(tokens, places))
    for row in range(2):
        alone = tokens[row : row + 1]
        expected = model(alone, model.locate(alone, places[row]))
        torch.testing.assert_close(both[row : row + 1], expected, rtol=0, atol=1e-13)
    assert not torch.allclose(both[1], model(tokens)[1])


@every_kind
def test_every_parameter_is_reached_through_its_modules_call(config):
    """FSDP gathers in a module's hooks, so outside its call a parameter is only a shard."""
    model, called = build(config), set()
    for module in model.modules():
        module.register_forward_pre_hook(lambda m, _: called.add(m))
    owners = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    for module in owners:
        guard(module, called)
    model.loss(random_batch(0, 2, 16, config.vocab))
    assert called >= set(owners)


def guard(module, called):
    """Remove the parameters of `module` until it is called."""
    held = {name: module._parameters.pop(name) for name in list(module._parameters)}
    module.register_forward_pre_hook(lambda m, _: m._parameters.update(held))


@torch.no_grad()
def test_stages_with_caches_of_their_own_are_the_whole_model():
    """A cache has the blocks under their numbers in the whole model."""
    config = replace(KINDS["llama"], layers=3)
    whole, parts = build(config, 0, torch.float64), stages(config)
    assert [list(kept_by(stage)) for stage in parts] == [[0], [1, 2], []]
    caches = [Growing(kept_by(stage), 2, torch.float64) for stage in parts]
    tokens, found = some_tokens(config, 2, 7), []
    for x in tokens.split([4, 1, 0, 2], 1):
        for stage, cache in zip(parts, caches, strict=True):
            x = stage(x, cache=cache)
        found.append(x)
    torch.testing.assert_close(torch.cat(found, 1), whole(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_a_model_in_training_reads_its_cache_too(recompute):
    model = randomised(GPT(replace(KINDS["llama"], recompute=recompute), dtype=torch.float64))
    cache, tokens = Growing(kept_by(model), 2, torch.float64), some_tokens(model.config, 2, 7)
    found = [model(part, cache=cache).detach() for part in tokens.split([4, 1, 2], 1)]
    assert cache.lengths == [7, 7]
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_linear_layers_and_layer_norms_have_a_bias_or_none_has(mlp, bias):
    model = GPT(replace(KINDS["gpt2"], layers=1, mlp=mlp, bias=bias), device="meta")
    names = dict(model.named_parameters())
    for name in [name for name in names if name.endswith("weight") and "norm" not in name]:
        linear = not name.startswith(("embedding", "positions", "head"))
        assert (name.replace("weight", "bias") in names) == (bias and linear), name
    for norm in ("blocks.0.attention_norm", "blocks.0.mlp_norm", "norm"):
        assert (f"{norm}.bias" in names) == bias
