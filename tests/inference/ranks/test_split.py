"""One rank's part of a model: its parameters and its cache are the shares that they should be."""

from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.inference.ranks.split import SplitModel, kept_on_rank
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import GPTConfig, kept_by
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.inference.conftest import noisy

pytestmark = pytest.mark.usefixtures("kept_ranks")
CONFIG = GPTConfig(vocab=33, context=24, width=24, layers=2, heads=4, tied=False)


def weights_of(config, dtype=torch.float64):
    return noisy(config).to(dtype).state_dict()


def step(worker, config, weights, tokens, counts, **options):
    mesh = make_mesh(Layout(tp=worker.world_size))
    split = SplitModel(config, weights, mesh, **options)
    cache = Preallocated(split.kept, len(tokens), 16, split.dtype)
    chosen = [split.next_tokens(tokens, cache, counts).tolist()]
    chosen.append(split.next_tokens(torch.tensor(chosen[0])[:, None], cache).tolist())
    return {
        "chosen": chosen,
        "start": split.start,
        "numbers": sum(p.numel() for p in split.model.parameters()),
        "cache": cache.bytes,
        "lengths": cache.lengths,
        "trains": split.model.training or any(p.requires_grad for p in split.model.parameters()),
    }


@pytest.mark.parametrize("head", ["best", "logits"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@torch.no_grad()
def test_the_next_tokens_are_those_of_one_process(ranks, head):
    weights, counts = weights_of(CONFIG), [3, 1, 6]
    tokens = torch.randint(0, 33, (3, 6), generator=torch.Generator().manual_seed(4))
    options = {"config": CONFIG, "weights": weights, "head": head, "counts": counts}
    runs = launch(step, ranks, device="cpu", tokens=tokens, **options)
    model, chosen = noisy(CONFIG), [[], []]
    for row, count in zip(tokens.tolist(), counts, strict=True):
        known = row[:count]
        for chosen_here in chosen:
            known.append(int(model(torch.tensor([known]))[0, -1].argmax()))
            chosen_here.append(known[-1])
    for run in runs:
        assert run["chosen"] == chosen
        assert run["lengths"] == [4, 2, 7]
        assert not run["trains"]


@pytest.mark.parametrize(("ranks", "key_heads", "times"), [(2, 4, 1), (2, 2, 1), (4, 2, 2)])
def test_caches_and_weights_are_cut(ranks, key_heads, times):
    """Four ranks that share two key heads keep each of them twice."""
    config = replace(CONFIG, kv_heads=key_heads)
    weights = weights_of(config)
    options = {"config": config, "weights": weights, "counts": None}
    runs = launch(step, ranks, device="cpu", tokens=torch.ones(1, 2, dtype=torch.int64), **options)
    whole = Preallocated(kept_by(noisy(config)), 1, 16, torch.float64)
    assert sum(run["cache"] for run in runs) == times * whole.bytes
    norms = (2 * config.layers + 1) * config.width
    keys = config.layers * 2 * key_heads * config.head_width * config.width
    total = sum(tensor.numel() for tensor in weights.values())
    expected = total - norms + ranks * norms + (times - 1) * keys
    assert sum(run["numbers"] for run in runs) == expected
    assert [run["start"] for run in runs] == [33 // ranks * rank + (rank > 0) for rank in
                                              range(ranks)]  # fmt: skip


def test_what_a_rank_keeps():
    config = GPTConfig(width=64, heads=8, kv_heads=4, layers=3)
    assert kept_on_rank(config, 1) == kept_by(config.build(device="meta"))
    assert [kept_on_rank(config, n)[2].per_token for n in (2, 4, 8)] == [
        ((2, 8), (2, 8)),
        ((1, 8), (1, 8)),
        ((1, 8), (1, 8)),
    ]
    assert list(kept_on_rank(config, 2)) == [0, 1, 2]


def test_tied_weights_in_another_dtype():
    config = replace(CONFIG, tied=True, norm="layer", positions="learned", mlp="gelu", bias=True)
    weights = weights_of(config, torch.float32)
    options = {"config": config, "weights": weights, "counts": None}
    tokens = torch.tensor([[5, 7, 9]])
    run = launch(step, 2, device="cpu", tokens=tokens, **options)[1]
    with torch.no_grad():
        assert run["chosen"][0] == [int(noisy(config)(tokens)[0, -1].argmax())]
    assert run["cache"] == 2 * 2 * 16 * 12 * 4


@pytest.mark.parametrize(
    ("changes", "ranks", "said"),
    [
        ({"heads": 3, "width": 24}, 2, "3 query heads do not divide over 2 ranks"),
        ({"heads": 12, "kv_heads": 4}, 3, "4 key heads on 3 ranks: one number must divide"),
    ],
)
def test_heads_that_do_not_divide(changes, ranks, said):
    config = replace(CONFIG, **changes)
    options = {"config": config, "weights": weights_of(config), "counts": None}
    with pytest.raises(WorkerError, match=said):
        launch(step, ranks, device="cpu", tokens=torch.ones(1, 2, dtype=torch.int64), **options)


@pytest.mark.parametrize("mixer", ["latent", "mamba", ("attention", "mamba")])
def test_mixers_without_such_heads(mixer):
    config = replace(CONFIG, mixer=mixer)
    name = mixer if isinstance(mixer, str) else mixer[1]
    with pytest.raises(ValueError, match=f"the mixer '{name}' cannot be cut by heads here"):
        SplitModel(config, {}, None)


def test_an_unknown_head_and_weights_that_do_not_fit():
    options = {"weights": weights_of(CONFIG), "counts": None, "device": "cpu"}
    tokens = torch.ones(1, 2, dtype=torch.int64)
    with pytest.raises(WorkerError, match="head must be one of best, logits, not 'top'"):
        launch(step, 2, config=CONFIG, tokens=tokens, head="top", **options)
    with pytest.raises(WorkerError, match="in the tensors to load"):
        launch(step, 2, config=replace(CONFIG, layers=3), tokens=tokens, **options)
