"""Fused weights, and the step in C, give the plain model's logits with any cache."""

import shutil

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.inference.decoder import compiled
from helpers.inference.decoder.compiled import Compiled, in_strips, library
from helpers.inference.decoder.fused import Core, Fused
from helpers.inference.decoder.weights import Weights, refusal
from helpers.models.caches.cache import CacheFull
from helpers.models.caches.packed import Packed
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.gpt import GPT, GPTConfig, build, kept_by

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
SHAPES = {  # widths that are no multiples of a strip, and more than one strip of each matrix
    "llama": {"heads": 4},
    "grouped": {"heads": 4, "kv_heads": 2, "tied": False, "attention": "explicit"},
    "multi-query": {"heads": 3, "kv_heads": 1, "width": 18, "hidden": 7, "layers": 3},
    "one head, large epsilon": {"heads": 1, "layers": 1, "norm_eps": 0.3, "rotary_base": 50.0},
    "strips": {"vocab": 77, "width": 36, "heads": 6, "kv_heads": 3, "hidden": 41, "tied": False},
}


def small_model(dtype=torch.float64, **shape):
    config = GPTConfig(**{"vocab": 19, "context": 24, "width": 16, **shape})
    model = build(config, 0, torch.float64).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # first values of scales are 1, and would hide mistakes
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.3 * noise
    return model.to(dtype)


def paged_batch(model, sequences):
    paged = Paged(kept_by(model), 40, 4, torch.float64)
    return PagedBatch(paged, [paged.sequence() for _ in range(sequences)])


def preallocated(model, sequences, capacity=24):
    return Preallocated(kept_by(model), sequences, capacity, torch.float64)


def growing(model, sequences):
    return Growing(kept_by(model), sequences, torch.float64)


every_forward = pytest.mark.parametrize(
    ("kind", "make"),
    [
        (Fused, paged_batch),
        (Fused, preallocated),
        (Fused, growing),
        pytest.param(Compiled, preallocated, marks=needs_compiler),
        pytest.param(Compiled, growing, marks=needs_compiler),
    ],
)
both = pytest.mark.parametrize("kind", [Fused, pytest.param(Compiled, marks=needs_compiler)])


@pytest.fixture(params=SHAPES.values(), ids=SHAPES, scope="module")
def model(request):
    return small_model(**request.param)


@pytest.fixture
def llama():
    return small_model(**SHAPES["grouped"])


def some_tokens(sequences, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (sequences, tokens), generator=generator)


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@every_forward
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1], [9], [1, 8]], ids=str)
@torch.no_grad()
def test_any_split_of_a_prompt(model, kind, make, chunks):
    tokens, cache, forward, found = some_tokens(3, 9), make(model, 3), kind(model), []
    for part in tokens.split(chunks, 1):
        found.append(forward(part, cache=cache))
    assert cache.lengths == [9, 9, 9]
    close(torch.cat(found, 1), model(tokens))


@every_forward
@torch.no_grad()
def test_ragged_steps(model, kind, make):
    """Then one more of each: sequences of several lengths, and a cache that was rewound."""
    rows, cache, forward = some_tokens(4, 14), make(model, 4), kind(model)
    expected = model(rows)
    for counts in ([3, 5, 0, 1], [1, 1, 1, 1], [2, 0, 6, 3], [1, 1, 0, 1], [0, 1, 0, 0], None):
        added = counts or [1] * 4
        x = torch.full((4, max(added)), 7)  # the padding is a token like any other
        for row, count in enumerate(added):
            start = cache.lengths[row]
            x[row, :count] = rows[row, start : start + count]
        logits = forward(x, cache=cache, counts=counts)
        assert logits.isfinite().all()
        for row, count in enumerate(added):
            length = cache.lengths[row]
            close(logits[row, :count], expected[row, length - count : length])
    assert cache.lengths == [8, 9, 8, 7]
    cache.rewind([2, 9, 1, 7])
    found = forward(rows[range(4), [2, 9, 1, 7]][:, None], cache=cache)
    close(found[:, 0], expected[range(4), [2, 9, 1, 7]])


@torch.no_grad()
def test_tokens_of_several_sequences_in_one_row(model):
    rows, fused = some_tokens(5, 14), Fused(model)
    expected, paged = model(rows), Paged(kept_by(model), 40, 4, torch.float64)
    sequences = [paged.sequence() for _ in rows]
    for counts in ([3, 5, 1, 1, 4], [1] * 5, [1, 1, 6, 1, 1], [2, 1, 1, 3, 1], [1] * 5):
        starts = [sequence.length for sequence in sequences]
        parts = [rows[n, i : i + c] for n, (i, c) in enumerate(zip(starts, counts, strict=True))]
        row = torch.cat([*parts, rows[0, :2]])[None]
        found = fused(row, cache=Packed(paged, sequences, counts))
        for number, one in enumerate(found[0, :-2].split(counts)):
            close(one, expected[number, starts[number] : starts[number] + counts[number]])


@both
@torch.no_grad()
def test_what_it_refuses_leaves_the_cache_as_before_and_results_stay(llama, kind):
    tokens, forward = some_tokens(2, 24), kind(llama)
    cache = preallocated(llama, 2, capacity=4)
    first = forward(tokens[:, :3], cache=cache)
    kept = first.clone()
    forward(tokens[:, 3:4], cache=cache)
    assert torch.equal(first, kept)
    with pytest.raises(CacheFull, match="would have 5 tokens"):
        forward(tokens[:, 4:5], cache=cache)
    assert cache.lengths == [4, 4]
    cache = growing(llama, 2)
    forward(tokens, cache=cache)
    with pytest.raises(ValueError, match="would have 25 tokens with those in the cache, but the"):
        forward(tokens[:, :1], cache=cache)
    assert cache.lengths == [24, 24]
    cache = growing(llama, 2)
    assert forward(torch.zeros(2, 0, dtype=torch.int64), cache=cache).shape == (2, 0, 19)
    assert cache.lengths == [0, 0]


class Copies(TorchDispatchMode):
    """Notes how many numbers each copy has."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # otherwise the first use imports torch._dynamo, which takes a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten._unsafe_view):
            self.numbers.append(made.numel())
        return made


@pytest.mark.parametrize("strided", [False, True])
def test_the_core_with_one_mask_after_another(strided):
    """One query and grouped heads; keys in order, or as a view in which heads alternate."""
    generator, core = torch.Generator().manual_seed(0), Core()
    q = torch.randn(3, 4, 1, 6, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 3, 2, 7, 6, generator=generator, dtype=torch.float64)
    if strided:
        k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
    with Copies() as copies:
        core(q, k, v)
    assert k.numel() not in copies.numbers  # the cache is read where it is
    first = torch.arange(7) <= torch.tensor([6, 2, 4])[:, None, None, None]  # (B, 1, 1, S)
    for seen in (first, first, first.flip(0), None):
        expected = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True)
        close(core(q, k, v, seen), expected)


@torch.no_grad()
def test_the_weights_are_a_copy_in_few_matrices(llama):
    fused, tokens = Fused(llama), some_tokens(1, 5)
    before = fused(tokens, cache=growing(llama, 1))
    for parameter in llama.parameters():
        parameter.zero_()
    assert torch.equal(fused(tokens, cache=growing(llama, 1)), before)
    matrices = [fused.weights.head, *vars(fused.weights.blocks[0]).values()]
    assert all(matrix.is_contiguous() for matrix in matrices)
    assert [tuple(m.shape) for m in matrices] == [(16, 19), (16, 32), (16, 16), (16, 96), (48, 16)]


SMALL = GPTConfig(vocab=5, context=4, width=16, heads=2)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"norm": "layer"}, "norm is 'layer', not 'rms'"),
        ({"positions": "learned"}, "positions is 'learned', not 'rotary'"),
        ({"rotary_share": 0.5}, "rotary_share is 0.5, not 1"),
        ({"mlp": "gelu"}, "mlp is 'gelu', not 'swiglu'"),
        ({"bias": True}, "bias is True, not False"),
        ({"mixer": ("attention", "mamba")}, "block 1 is 'mamba', not 'attention'"),
    ],
)
def test_other_shapes_are_refused(made, reason):
    model = GPT(GPTConfig(vocab=5, context=4, width=16, heads=2, **made), device="meta")
    with pytest.raises(ValueError, match=f"cannot run this model: {reason}; use the model"):
        Weights.of(model)


def test_stages_and_sixteen_bits_are_refused():
    for stage in ({"blocks": [0]}, {"first": False}, {"last": False}):
        assert refusal(GPT(SMALL, **stage)) == "it is a stage of a pipeline"
    for dtype in (torch.bfloat16, torch.float16):
        found = refusal(GPT(SMALL, dtype))
        assert found == f"its numbers are {dtype}, not float32 or float64"
    assert refusal(GPT(SMALL)) is None


def test_strips_follow_each_other_and_the_last_is_filled_with_zeros():
    matrix = torch.arange(10.0).view(2, 5)
    expected = [[[0, 1], [5, 6]], [[2, 3], [7, 8]], [[4, 0], [9, 0]]]
    assert in_strips(matrix, 2).tolist() == expected
    assert in_strips(matrix, 5).tolist() == matrix[None].tolist()


@needs_compiler
@pytest.mark.parametrize("sequences", [1, 2, 4, 7, 8, 13])
@torch.no_grad()
def test_any_number_of_rows(sequences):
    """Tokens may be a view with gaps; and the number of rows may change from call to call."""
    model, tokens = small_model(**SHAPES["strips"]), some_tokens(sequences, 6)
    forward = Compiled(model)
    forward(tokens[:1, :1], cache=preallocated(model, 1))
    cache = preallocated(model, sequences)
    found = [forward(tokens[:, place, None], cache=cache) for place in range(6)]
    close(torch.cat(found, 1), model(tokens))


@needs_compiler
@pytest.mark.parametrize("scale", [1e-3, 30.0, 3e4])
@torch.no_grad()
def test_small_and_large_values_in_both_exponentials(scale):
    """Scores, and the gates of the MLP, over more than the range of a double's exponential."""
    model = small_model(**SHAPES["strips"])
    for block in model.blocks.values():
        block.attention.query.weight.mul_(scale)
        block.mlp.gate.weight.mul_(scale)
        block.mlp.down.weight.div_(scale)
    tokens, forward, cache = torch.arange(15)[None] * 5, Compiled(model), preallocated(model, 1)
    found = [forward(tokens[:, place, None], cache=cache) for place in range(15)]
    close(torch.cat(found, 1), model(tokens), atol=1e-11)
    exact, narrow = torch.cat(found, 1), Compiled(model.float())
    if scale == 30.0:
        cache = Preallocated(kept_by(model), 1, 15)
        found = [narrow(tokens[:, place, None], cache=cache) for place in range(15)]
        close(torch.cat(found, 1), exact.float(), atol=2e-3)


@needs_compiler
def test_what_the_step_in_c_refuses(monkeypatch):
    model = small_model(**SHAPES["strips"])
    forward, cache = Compiled(model), preallocated(model, 2)
    for wrong in ([0, 77], [-1, 3]):
        with pytest.raises(ValueError, match=r"tokens from .* but the vocabulary has 77"):
            forward(torch.tensor(wrong)[:, None], cache=cache)
    assert cache.lengths == [0, 0]
    with pytest.raises(ValueError, match=r"weights in torch.float64, but a cache in torch.float32"):
        forward(torch.zeros(2, 1, dtype=torch.int64), cache=Preallocated(kept_by(model), 2, 4))
    with pytest.raises(ValueError, match="runs on the CPU, not on meta"):
        Compiled(model.to("meta"))
    monkeypatch.setattr(compiled, "OPTIONS", ("-shared", "-no-such-option"))
    library.cache_clear()
    with pytest.raises(RuntimeError, match=r"could not compile step\.c:\n(.|\n)*no-such-option"):
        Compiled(small_model())
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler named cc"):
        Compiled(small_model())
