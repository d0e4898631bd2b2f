"""Checks that hold for every model with state space mixers."""

import torch

from helpers.models.caches.preallocated import Growing
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT, kept_by, loss_sum
from tests.models.ssm_peers import lifted, pair, renamed

EXACT = {"rtol": 0, "atol": 1e-12}
# In float32, relative to the norm of all logits. Theirs and ours are equally far from the logits in
# float64, about 1e-6 with rotary angles (theirs are in float32 too) and 4e-7 without: they add in
# another order.
NEAR = {torch.float64: 1e-10, torch.float32: 2e-6}


def some_tokens(config: GPTConfig, sequences=3, tokens=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab, (sequences, tokens or config.context), generator=generator)


def randomised(config: GPTConfig, dtype=torch.float64, seed=0) -> GPT:
    """A model with every parameter random, so that tests see each of them."""
    model, generator = GPT(config, dtype), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            parameter.copy_(noise + (parameter.dim() == 1 and not name.endswith("A_log")))
    return model


def check_logits(make, config: GPTConfig, dtype, tokens=None):
    """Logits are transformers', with copied weights."""
    theirs, ours = pair(make, config, dtype)
    x = some_tokens(config, tokens=tokens)
    with torch.no_grad(), lifted(dtype):
        found, expected = ours(x), theirs(x, use_cache=False).logits
    assert expected.std() > 0.5
    assert found.dtype is expected.dtype is dtype
    assert (found - expected).norm() <= NEAR[dtype] * expected.norm()
    if dtype is torch.float64:
        assert (found - expected).abs().max() <= NEAR[dtype]


def check_gradients(make, config: GPTConfig):
    """Gradients are transformers', with copied weights, in float64."""
    theirs, ours = pair(make, config, torch.float64)
    x, y = some_tokens(config, 2, 11), some_tokens(config, 2, 11, seed=1)
    with lifted():
        loss_sum(theirs(x, use_cache=False).logits, y)[0].backward()
    loss_sum(ours(x), y)[0].backward()
    expected = {name: p.grad for name, p in theirs.named_parameters(remove_duplicate=False)}
    expected = renamed(expected, config, gradients=True)
    for name, parameter in ours.named_parameters():
        assert expected[name].any(), name
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-10, msg=name)


def check_greedy_tokens(make, config: GPTConfig, new=12):
    """Greedy tokens, one after the other with a cache, are those of their `generate`."""
    theirs, ours = pair(make, config, torch.float64)
    theirs.generation_config.eos_token_id = None
    x = some_tokens(config, 2, 7)
    with torch.no_grad(), lifted():
        expected = theirs.generate(x, max_new_tokens=new, do_sample=False, pad_token_id=0)
        cache, found = Growing(kept_by(ours), 2, torch.float64), [x]
        while len(found) <= new:
            found.append(ours(found[-1], cache=cache)[:, -1:].argmax(-1))
    assert torch.equal(torch.cat(found, 1), expected)
    assert len(expected[:, 7:].unique()) > 2  # not one token again and again


@torch.no_grad()
def check_splits(config: GPTConfig):
    """Every split of a sequence gives the logits of the whole, and the same states."""
    model, x = randomised(config), some_tokens(config, 2, 9)
    whole, states = model(x), []
    for sizes in ([9], [1] * 9, [4, 1, 3, 1], [1, 8], [8, 1]):
        cache, found = Growing(kept_by(model), 2, torch.float64), []
        for part in x.split(sizes, dim=1):
            found.append(model(part, cache=cache))
        torch.testing.assert_close(torch.cat(found, 1), whole, **EXACT)
        states.append([state.clone() for b in cache.blocks.values() for state in b.read()])
    for other in states[1:]:
        for found, expected in zip(other, states[0], strict=True):
            assert found.any()
            torch.testing.assert_close(found, expected, **EXACT)


@torch.no_grad()
def check_ragged(config: GPTConfig):
    """Padding changes neither logits nor states, for no split of any sequence."""
    model = randomised(config)
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
            pairs = zip(block.read(), alone.blocks[number].read(), strict=True)
            for state, own in pairs:
                torch.testing.assert_close(state[row], own[0], **EXACT)


@torch.no_grad()
def check_causality(config: GPTConfig):
    """No token sees a later one; every token sees all earlier ones."""
    model, x = randomised(config), some_tokens(config, 1, 9)
    before = model(x)
    for place in range(9):
        changed = x.clone()
        changed[0, place] = (changed[0, place] + 1) % config.vocab
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], **EXACT)
        assert ((after - before)[0, place:].abs().amax(-1) > 1e-9).all()


def check_dtypes(config: GPTConfig):
    """Every dtype runs, forward and backward; lower precision is near."""
    x, y = some_tokens(config, 2, 11), some_tokens(config, 2, 11, seed=1)
    exact = None
    for dtype, near in ((torch.float64, 0), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        model = randomised(config, dtype)
        logits = model(x)
        assert logits.dtype is dtype
        loss, _ = loss_sum(logits, y)
        loss.backward()
        exact = loss.item() if exact is None else exact
        assert abs(loss.item() - exact) <= near * exact
        for name, parameter in model.named_parameters():
            assert parameter.grad.dtype is dtype, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
