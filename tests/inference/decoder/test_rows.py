"""A block's arithmetic on rows is that of the model's block, with attention in between."""

import torch

from helpers.inference.decoder.rows import Rows
from helpers.inference.decoder.weights import Weights
from helpers.models.attention import rotate

PLACES = torch.tensor([3, 0, 7, 23, 1])


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def pairs_apart(t):
    """From the decoder's order of a head's numbers to the model's."""
    return torch.cat([t[..., 0::2], t[..., 1::2]], -1)


@torch.no_grad()
def test_the_norm_is_that_of_the_model_without_scale(model):
    rows, root = Rows(Weights.of(model), 5), model.config.width**0.5
    for size in (0.0, 1e-3, 1.0, 1e4):  # epsilon decides for the smallest
        x = size * torch.randn(5, model.config.width, dtype=torch.float64)
        rows.hidden.copy_(x)
        expected = torch.nn.functional.rms_norm(x, x.shape[1:], eps=model.config.norm_eps)
        close(root * rows.norm(), expected)


@torch.no_grad()
def test_a_block_between_embedding_and_logits(model):
    config, weights = model.config, Weights.of(model)
    rows, tokens = Rows(weights, 5), torch.tensor([4, 18, 0, 4, 7])
    d = config.head_width
    for _ in range(2):  # the second time, the buffers hold the numbers of the first
        rows.embed(tokens)
        x = model.embedding(tokens)
        close(rows.hidden, x)
        for block, fused in zip(model.blocks.values(), weights.blocks, strict=True):
            rows.project(fused, weights.angles[PLACES])
            y = block.attention_norm(x)
            q, k, v = (
                layer(y).unflatten(1, (-1, d))
                for layer in (block.attention.query, block.attention.key, block.attention.value)
            )
            angles = model.rotary(PLACES)
            close(pairs_apart(rows.queries.flatten(1, 2)), rotate(q, *angles) / d**0.5)
            close(pairs_apart(rows.keys), rotate(k, *angles))
            close(rows.values, v)
            close(rows.keys_values, torch.stack([rows.keys, rows.values], 1))
            attended = torch.randn(5, config.heads * d, dtype=torch.float64)
            rows.finish(fused, attended)
            x = x + block.attention.out(attended)
            x = x + block.mlp(block.mlp_norm(x))
            close(rows.hidden, x)
        expected = model.head(model.norm(x))
        close(rows.logits(slice(1, None, 2)), expected[1::2])
        close(rows.logits(), expected)


@torch.no_grad()
def test_one_place_for_all_rows(llama):
    weights = Weights.of(llama)
    rows = Rows(weights, 3)
    found = []
    for angles in (weights.angles[6], weights.angles[[6, 6, 6]]):
        rows.embed(torch.tensor([1, 2, 3]))
        rows.project(weights.blocks[0], angles)
        found.append(rows.keys.clone())
    assert torch.equal(*found)
