"""What a GPT is made of: its loss, stages, ties, dropout. `test_every_model` has the rest."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers.data.batch import Batch, random_batch
from helpers.models import gpt
from helpers.models.caches.preallocated import Growing
from helpers.models.dropout import counter
from helpers.models.gpt import GPT, GPTConfig, build, kept_by, loss_sum
from helpers.models.shape import CHOICES
from tests.models.peers import randomised
from tests.models.steps import some_tokens

GPT2_LIKE = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
SHAPE = {"vocab": 31, "context": 16, "width": 24, "layers": 2, "heads": 4}
KINDS = {"llama": GPTConfig(**SHAPE), "gpt2": GPTConfig(**SHAPE, **GPT2_LIKE)}
KINDS["grouped"] = replace(KINDS["llama"], kv_heads=2, tied=False)
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


def test_without_positions_earlier_tokens_are_a_set():
    model = randomised(GPT(replace(KINDS["llama"], positions="none", layers=1)).double())
    assert not any("positions" in name for name, _ in model.named_parameters())
    first, other = model(torch.tensor([[1, 2, 3, 5], [3, 1, 2, 5]]))[:, -1]
    torch.testing.assert_close(first, other, rtol=0, atol=1e-13)


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


LATENT = replace(KINDS["llama"], mixer="latent")
PACKED = {
    f"{name}, {kind}": replace(config, attention=kind)
    for name, config in (KINDS | {"latent": LATENT}).items() for kind in CHOICES["attention"]
}  # fmt: skip


@pytest.mark.parametrize("config", PACKED.values(), ids=PACKED)
def test_packed_documents_are_sequences_of_their_own(config):
    """Loss and gradients are those of the documents one by one."""
    packed, apart = (build(config, 0, torch.float64) for _ in "ab")
    documents = [[5, 1, 10], [16], [7, 9]]
    batch = replace(random_batch(0, 3, 16, 31, ignored=0.2), documents=documents)
    packed.loss(batch)[0].backward()
    for row, lengths in enumerate(documents):
        places = torch.arange(16).split(lengths)
        for own in places:
            tokens, targets = (one[row : row + 1, own] for one in (batch.tokens, batch.targets))
            apart.loss(Batch(tokens=tokens, targets=targets))[0].backward()
    for name, p in packed.named_parameters():
        wanted = apart.get_parameter(name).grad
        torch.testing.assert_close(p.grad, wanted, rtol=0, atol=1e-11)
    whole = build(config, 0, torch.float64).loss(replace(batch, documents=None))[0]
    assert abs(whole - packed.loss(batch)[0]) > 1e-3


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
