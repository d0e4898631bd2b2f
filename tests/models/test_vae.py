"""The loss is that of PyTorch's distributions, no cut changes the noise, and digits are learned."""

from dataclasses import replace

import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

from helpers.data.batch import Pictures
from helpers.data.digits import digits, tensors
from helpers.data.order import Order
from helpers.data.source import PictureSource
from helpers.models.dropout import counter, normal
from helpers.models.initialization import build
from helpers.models.vae import VAEConfig, divergence, reconstruction_loss
from tests.pictures import random_pictures

TINY = VAEConfig(side=4, width=6, layers=2, latent=3)


def test_the_loss_is_that_of_pytorch_s_distributions():
    model = build(TINY, seed=1, dtype=torch.float64)
    with torch.no_grad():
        for name, p in model.named_parameters():  # the first values of biases are 0
            if name.endswith("bias"):
                p.copy_(torch.linspace(-1, 1, len(p)))
    batch = replace(random_pictures(5, 7, 4), step=3)
    white = batch.images.double()
    mean, log_variance = model.encode(white)
    posterior = Normal(mean, log_variance.exp().sqrt())
    z = mean + posterior.scale * normal(counter(1, 3, torch.arange(7)), 3)
    pixels = Bernoulli(logits=model.decode(z), validate_args=False)  # grey values count
    far = kl_divergence(posterior, Normal(0.0, 1.0)).sum()
    loss, count = model.loss(batch)
    assert count == 7
    torch.testing.assert_close(loss, far - pixels.log_prob(white).sum())
    # each half by itself
    torch.testing.assert_close(divergence(mean, log_variance).sum(), far)
    logits = model.decode(z)
    assert reconstruction_loss(logits, white).shape == (7,)


def test_the_layers_by_hand():
    """tanh behind each hidden layer, as in appendix C, and behind no other."""
    model = build(TINY, seed=1, dtype=torch.float64)
    p = {name: value.detach() for name, value in model.named_parameters()}
    images = random_pictures(5, 7, 4).images.double()

    def linear(x, name):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    x = images.reshape(7, 16)
    for n in range(2):
        x = linear(x, f"encoder.{n}.linear").tanh()
    mean, log_variance = model.encode(images)
    torch.testing.assert_close(torch.cat([mean, log_variance], 1), linear(x, "posterior"))
    noise = normal(counter(9, torch.arange(4)), 3)
    for z, made in (
        (mean, model.reconstruct(images)),  # the mean alone, without noise
        (noise, model.sample(4, seed=9)),
        (normal(counter(0, torch.arange(2)), 3), model.sample(2)),
    ):
        for n in range(2):
            z = linear(z, f"decoder.{n}.linear").tanh()
        expected = 1 / (1 + (-linear(z, "pixels")).exp())
        torch.testing.assert_close(made, expected.reshape(-1, 4, 4))
        assert not made.requires_grad


def test_both_halves_of_the_loss_are_reduced_in_float32():
    """300 numbers of 1 in bf16: a sum in bf16 would stop growing at 256."""
    ones, zeros = torch.ones(2, 300).bfloat16(), torch.zeros(2, 300).bfloat16()
    far = divergence(ones, zeros)
    assert (far.dtype, far.tolist()) == (torch.float32, [150, 150])
    lost = reconstruction_loss(torch.zeros(2, 20, 15).bfloat16(), torch.ones(2, 20, 15))
    assert lost.dtype is torch.float32
    torch.testing.assert_close(lost, torch.full((2,), 300 * torch.tensor(2.0).log().item()))


def test_gradients_reach_every_parameter_through_the_noise():
    model = build(TINY, seed=0, dtype=torch.float64)
    batch = random_pictures(0, 5, 4)
    model.loss(batch)[0].backward()
    for name, p in model.named_parameters():
        assert p.grad.abs().max() > 0, name
    weight = model.posterior.weight  # the last row: a log variance
    with torch.no_grad():
        losses = []
        for change in (1e-6, -2e-6):
            weight[-1, 0] += change
            losses.append(model.loss(batch)[0])
    slope = (losses[0] - losses[1]) / 2e-6
    torch.testing.assert_close(slope, weight.grad[-1, 0], rtol=1e-6, atol=1e-8)


def test_a_picture_has_the_same_noise_in_any_cut_and_other_noise_otherwise():
    model = build(TINY, seed=0, dtype=torch.float64)
    batch = replace(random_pictures(0, 7, 4), step=2)
    loss, _ = model.loss(batch)
    for cut in (batch.micro(3), batch.micro(9), [batch.shard(r, 2) for r in range(2)]):
        pieces = [model.loss(part) for part in cut]
        torch.testing.assert_close(sum(value for value, _ in pieces), loss, rtol=1e-14, atol=0)
        assert sum(int(n) for _, n in pieces) == 7
    assert model.loss(replace(batch, step=3))[0] != loss
    assert model.loss(replace(batch, numbers=batch.numbers + 7))[0] != loss
    other = build(TINY, seed=0, dtype=torch.float64)
    other.seed = 1
    assert other.loss(batch)[0] != loss
    weights = [build(TINY, seed=seed).pixels.weight for seed in (0, 1)]
    assert not torch.equal(*weights)


def test_an_empty_batch_has_zero_loss_and_zero_gradients():
    model = build(TINY)
    loss, count = model.loss(random_pictures(0, 2, 4).shard(2, 3))
    loss.backward()
    assert (loss.item(), int(count)) == (0, 0)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_bf16_computes_the_loss_in_float32():
    batch = random_pictures(0, 64, 4)
    exact, _ = build(TINY, dtype=torch.float64).loss(batch)
    low, _ = build(TINY, dtype=torch.bfloat16).loss(batch)
    assert low.dtype == torch.float32
    assert abs(low / exact - 1) < 2e-3


def test_it_learns_the_digits():
    images, _ = tensors(digits())
    held_out, _ = tensors(digits("validation"))
    source = PictureSource(images, Order(len(images), batch=64))
    model = build(VAEConfig(width=64, layers=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for k in range(100):
        batch = source.shard(k)
        loss, count = model.loss(batch)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    loss, count = model.loss(Pictures(images=held_out))
    always = images.mean(0).clamp(1e-4, 1 - 1e-4).logit().expand_as(held_out)
    without = reconstruction_loss(always, held_out).mean()  # the best of a model without an input
    assert loss / count < without
    # a reconstruction is nearer to its own picture than to any of 99 others
    some = held_out[:100].flatten(1)
    found = torch.cdist(model.reconstruct(held_out[:100]).flatten(1), some).argmin(1)
    assert (found == torch.arange(100)).float().mean() > 0.2  # by chance: 0.01
    # samples lie near digits: nearer than noise with the same grey values
    every, made = images.flatten(1), model.sample(50, seed=1).flatten(1)
    shuffled = made[:, torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    near, far = (torch.cdist(x, every).min(1).values.mean() for x in (made, shuffled))
    assert near < 0.7 * far
    assert torch.equal(model.sample(5, seed=1), model.sample(50, seed=1)[:5])
    assert not torch.equal(model.sample(5, seed=2), model.sample(5, seed=1))


def test_a_pixel_that_is_surely_wrong_costs_its_logit():
    """The probability rounds to 1, and its loss is still exact."""
    loss = reconstruction_loss(torch.full((1, 1, 1), 300.0), torch.zeros(1, 1, 1))
    assert loss.tolist() == [300.0]
