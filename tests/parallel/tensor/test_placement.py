"""Which rows and columns each rank has of a GPT's matrices."""

import pytest

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.models.settings import Latent, Mamba2Settings
from helpers.parallel.tensor.placement import placed
from helpers.state.placing import Seat

SIZES = {"vocab": 32, "context": 8, "width": 24, "layers": 1, "tied": False, "positions": "learned"}


def parts_of(config, rank, ranks=4):
    shapes = {name: tuple(p.shape) for name, p in config.build(device="meta").named_parameters()}
    return placed(Seat(Layout(tp=ranks), rank), config, shapes, "tp")


def test_matrices_with_their_biases():
    config = GPTConfig(**SIZES, heads=4, bias=True, mlp="gelu", norm="layer", hidden=40)
    parts = parts_of(config, 2)
    at = "blocks.0."
    for name, rows in {"attention.query": (12, 18), "attention.key": (12, 18),
                       "attention.value": (12, 18), "mlp.up": (20, 30)}.items():  # fmt: skip
        for kind in ("weight", "bias"):
            assert parts[f"{at}{name}.{kind}"].ranges(0) == (rows,), (name, kind)
    for name in ("embedding.weight", "head.weight"):
        assert parts[name].ranges(0) == ((16, 24),)
    for name, columns in {"attention.out": (12, 18), "mlp.down": (20, 30)}.items():
        assert parts[f"{at}{name}.weight"].ranges(1) == (columns,), name
        assert not parts[f"{at}{name}.bias"].cuts  # added once, after the sum
    assert not any(part.cuts for name, part in parts.items() if "norm" in name)
    assert not any(part.pending for part in parts.values())


@pytest.mark.parametrize(
    ("heads", "key_heads", "rows", "shared"),
    [
        (8, 8, [(0, 6), (6, 12), (12, 18), (18, 24)], False),
        (8, 4, [(0, 3), (3, 6), (6, 9), (9, 12)], False),
        (4, 2, [(0, 6), (0, 6), (6, 12), (6, 12)], True),  # neighbours share a key head
        (4, 1, [(0, 6)] * 4, True),
    ],
)
def test_each_rank_has_the_key_heads_of_its_query_heads(heads, key_heads, rows, shared):
    config = GPTConfig(**SIZES, heads=heads, kv_heads=key_heads)
    for rank in range(4):
        parts = parts_of(config, rank)
        for name in ("key", "value"):
            part = parts[f"blocks.0.attention.{name}.weight"]
            assert part.ranges(0) == (rows[rank],)
            assert bool(part.pending) == shared  # ranks that share a head sum its gradient
        assert parts["blocks.0.attention.query.weight"].ranges(0) == ((6 * rank, 6 * rank + 6),)


@pytest.mark.parametrize(
    ("heads", "key_heads", "words"),
    [
        (6, 6, "6 query heads do not divide over 4 ranks"),
        (12, 6, "6 key heads on 4 ranks: one number must divide the other"),
    ],
)
def test_heads_that_do_not_divide(heads, key_heads, words):
    with pytest.raises(ValueError, match=words):
        parts_of(GPTConfig(**SIZES, heads=heads, kv_heads=key_heads), 0)


MIXED = SIZES | {"layers": 2, "positions": "none", "mamba2": Mamba2Settings(state=3, head=16)}


@pytest.mark.parametrize("order", [1, -1])
def test_every_mixer_of_a_model_has_to_suit_the_ranks(order):
    """Whichever block comes first: three mamba2 heads on two ranks, or three query heads."""
    mixers = ("attention", "mamba2")[::order]
    with pytest.raises(ValueError, match="3 mamba2 heads do not divide over 2 ranks"):
        parts_of(GPTConfig(**MIXED, heads=4, mixer=mixers), 0, ranks=2)
    fine = MIXED | {"mamba2": Mamba2Settings(state=3, head=8)}
    with pytest.raises(ValueError, match="3 query heads do not divide over 2 ranks"):
        parts_of(GPTConfig(**fine, heads=3, mixer=mixers), 0, ranks=2)
    parts = parts_of(GPTConfig(**fine, heads=4, mixer=mixers), 1, ranks=2)
    at = mixers.index("attention")
    assert parts[f"blocks.{at}.attention.query.weight"].ranges(0) == ((12, 24),)
    assert parts[f"blocks.{1 - at}.mamba2.A_log"].ranges(0) == ((3, 6),)


def test_a_mixer_without_a_rule():
    config = GPTConfig(
        **SIZES | {"layers": 2}, heads=4, mixer=("attention", "latent"),
        latent=Latent(kv_rank=8, nope=4, rope=6, value=5),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"block 1 has mixer 'latent', .* cuts attention, mamba2"):
        parts_of(config, 0)


def test_a_mixer_that_is_not_there_is_not_checked():
    """Three query heads do not divide, but no block has attention."""
    config = GPTConfig(
        **MIXED | {"mamba2": Mamba2Settings(state=3, head=8)}, heads=3, mixer="mamba2"
    )
    assert parts_of(config, 0, ranks=2)["blocks.0.mamba2.A_log"].ranges(0) == ((0, 3),)
