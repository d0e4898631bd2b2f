"""Fused weights, and the step in C, give the plain model's logits with any cache."""

import shutil

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.inference.decoder import compiled, table
from helpers.inference.decoder.compiled import Compiled, library
from helpers.inference.decoder.fused import Core, Fused
from helpers.inference.decoder.table import in_strips
from helpers.inference.decoder.weights import Weights, check
from helpers.measure.kernels import in_c
from helpers.models.caches.cache import CacheFull
from helpers.models.caches.packed import Packed
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.caches.quantised import Quantised
from helpers.models.caches.window import Window
from helpers.models.gpt import GPT, GPTConfig, build, kept_by
from helpers.models.settings import Latent, Mamba2Settings, MambaSettings

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
SHAPES = {  # widths that are no multiples of a strip, and more than one strip of each matrix
    "llama": {"heads": 4},
    "grouped": {"heads": 4, "kv_heads": 2, "tied": False, "attention": "explicit"},
    "multi-query": {"heads": 3, "kv_heads": 1, "width": 18, "hidden": 7, "layers": 3},
    "one head, large epsilon": {"heads": 1, "layers": 1, "norm_eps": 0.3, "rotary_base": 50.0},
    "heads wider than the model": {"heads": 2, "kv_heads": 1, "head": 24},
    "strips": {"vocab": 77, "width": 36, "heads": 6, "kv_heads": 3, "hidden": 41, "tied": False},
}
BARE = {"positions": "none", "mlp": "none"}
MAMBA = {**BARE, "mixer": "mamba", "mamba": MambaSettings(state=5)}
MAMBA2 = {**BARE, "mixer": "mamba2", "mamba2": Mamba2Settings(state=5, head=4, chunk=4)}
GROUPS = Mamba2Settings(state=3, head=2, groups=3, convolution=3, chunk=5)
HYBRID = {"mixer": ("mamba2", "attention", "mamba"), "layers": 3, "rotary_share": 0.5}
EVERY = SHAPES | {  # what the step in C can run
    "biases, no positions": {"bias": True, "positions": "none", "kv_heads": 2},
    "attention alone": {"mlp": "none", "rotary_share": 0.5, "heads": 2},
    "mamba": MAMBA,
    "mamba, untied, odd sizes": {
        **MAMBA,
        **{"tied": False, "bias": True, "width": 18, "heads": 3, "vocab": 77},
        "mamba": MambaSettings(state=7, expand=3, convolution=2, rank=5),
    },
    "mamba, one number, no convolution": {
        **MAMBA,
        "mamba": MambaSettings(state=1, convolution=1),
    },
    "mamba2": MAMBA2,
    "mamba2, groups, biases": {**MAMBA2, "width": 18, "heads": 3, "bias": True, "mamba2": GROUPS},
    "mamba2, one head": {**MAMBA2, "mamba2": Mamba2Settings(state=9, head=32)},
    "hybrid": {**HYBRID, "kv_heads": 2, "mamba2": Mamba2Settings(state=6, head=8, groups=2)},
    "hybrid, untied": {**HYBRID, "tied": False, "hidden": 41, "mamba2": MAMBA2["mamba2"]},
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


pairs = [(Fused, paged_batch), (Fused, preallocated), (Fused, growing)]
pairs += [(Compiled, preallocated), (Compiled, growing)]
every_forward = pytest.mark.parametrize(
    ("shape", "kind", "make"),
    [
        pytest.param(
            *(shape, kind, make),
            marks=needs_compiler if kind is Compiled else (),
            id=f"{name}-{kind.__name__}-{make.__name__}",
        )
        for kind, make in pairs
        for name, shape in (SHAPES if kind is Fused else EVERY).items()
    ],
)
both = pytest.mark.parametrize("kind", [Fused, pytest.param(Compiled, marks=needs_compiler)])
every_shape = pytest.mark.parametrize("shape", EVERY.values(), ids=EVERY)


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
def test_any_split_of_a_prompt(shape, kind, make, chunks):
    model = small_model(**shape)
    tokens, cache, forward, found = some_tokens(3, 9), make(model, 3), kind(model), []
    for part in tokens.split(chunks, 1):
        found.append(forward(part, cache=cache))
    assert cache.lengths == [9, 9, 9]
    close(torch.cat(found, 1), model(tokens))


@every_forward
@torch.no_grad()
def test_ragged_steps(shape, kind, make):
    """Then one more of each: sequences of several lengths, and a cache that was rewound."""
    model = small_model(**shape)
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
    if set(model.config.mixers) != {"attention"}:
        return  # a state cannot be rewound
    cache.rewind([2, 9, 1, 7])
    found = forward(rows[range(4), [2, 9, 1, 7]][:, None], cache=cache)
    close(found[:, 0], expected[range(4), [2, 9, 1, 7]])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.no_grad()
def test_tokens_of_several_sequences_in_one_row(shape):
    model = small_model(**shape)
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
    ("made", "by_fused", "by_compiled"),
    [
        ({"norm": "layer"}, "norm: 'layer', not 'rms'", "norm: 'layer', not 'rms'"),
        (
            {"positions": "learned"},
            "positions: 'learned', not 'rotary'",
            "positions: 'learned', not 'rotary' or 'none'",
        ),
        ({"rotary_share": 0.5}, "rotary_share: 0.5, not 1", None),
        ({"mlp": "gelu"}, "mlp: 'gelu', not 'swiglu'", "mlp: 'gelu', not 'swiglu' or 'none'"),
        ({"bias": True}, "bias: True, not False", None),
        ({"mixer": ("attention", "mamba")}, "mixers: 'mamba', not 'attention'", None),
        (
            {"mixer": "latent", "latent": Latent(kv_rank=4, nope=8, rope=8, value=8)},
            "mixers: 'latent', not 'attention'",
            "mixers: 'latent', not 'attention' or 'mamba' or 'mamba2'",
        ),
    ],
)
def test_other_shapes_are_refused(made, by_fused, by_compiled):
    model = GPT(GPTConfig(vocab=5, context=4, width=16, heads=2, **made), device="meta")
    with pytest.raises(ValueError, match=f"cannot run this model: {by_fused}; use the model"):
        Weights.of(model)
    if by_compiled is None:
        return check(model, table.ALLOWED)
    with pytest.raises(ValueError, match=f"cannot run this model: {by_compiled}; use the model"):
        Compiled(model)


def test_stages_and_sixteen_bits_are_refused():
    for stage in ({"blocks": [0]}, {"first": False}, {"last": False}):
        for refuses in (Weights.of, Compiled):
            with pytest.raises(ValueError, match="it is a stage of a pipeline"):
                refuses(GPT(SMALL, **stage))
    for dtype in (torch.bfloat16, torch.float16):
        for refuses in (Weights.of, Compiled):
            with pytest.raises(ValueError, match=f"its numbers are {dtype}, not float32 or"):
                refuses(GPT(SMALL, dtype))


def test_strips_follow_each_other_and_the_last_is_filled_with_zeros():
    matrix = torch.arange(10.0).view(2, 5)
    expected = [[[0, 1], [5, 6]], [[2, 3], [7, 8]], [[4, 0], [9, 0]]]
    assert in_strips(matrix, 2).tolist() == expected
    assert in_strips(matrix, 5).tolist() == matrix[None].tolist()


@needs_compiler
@every_shape
@torch.no_grad()
def test_model_and_step_continue_each_others_caches(shape):
    """After a long prompt, in turns; the caches are the same, number by number."""
    model = small_model(**shape)
    forward, tokens = Compiled(model), some_tokens(3, 24)
    mixed, plain = preallocated(model, 3), preallocated(model, 3)
    for place, part in enumerate(tokens.split([17] + [1] * 7, 1)):
        found = (model if place in (2, 4) else forward)(part, cache=mixed)
        close(found, model(part, cache=plain))
        for one, other in zip(mixed.blocks.values(), plain.blocks.values(), strict=True):
            both_tensors = (one.rows + one.states, other.rows + other.states)
            for ours, expected in zip(*both_tensors, strict=True):
                close(ours, expected, atol=1e-11)  # numbers up to hundreds


@needs_compiler
@pytest.mark.parametrize("name", ["grouped", "mamba", "mamba2, groups, biases", "hybrid"])
@torch.no_grad()
def test_float32_decodes_the_same_tokens_and_a_new_cache_starts_again(name):
    """Greedily, after a long prompt, twice with one decoder."""
    model = small_model(torch.float32, **{**EVERY[name], "context": 200})
    forward, prompt = Compiled(model), some_tokens(2, 120)

    def decoded(call):
        x, found, cache = prompt, [], Preallocated(kept_by(model), 2, 180)
        for _ in range(60):
            logits = call(x, cache=cache)[:, -1:]
            x = logits.argmax(-1)
            found.append((x, logits))
        return (torch.cat(each, 1) for each in zip(*found, strict=True))

    expected, logits = decoded(model)
    for _ in range(2):
        tokens, ours = decoded(forward)
        assert torch.equal(tokens, expected)
        close(ours, logits, atol=1e-4 * logits.abs().max().item())


@needs_compiler
@torch.no_grad()
def test_a_cache_of_another_kind_goes_through_the_model():
    model, tokens = small_model(**EVERY["hybrid"]), some_tokens(2, 9)
    forward = Compiled(model)
    for make in (
        lambda: Window(kept_by(model), 2, 4, 2, torch.float64),
        lambda: Quantised(kept_by(model), 2, 9, torch.float64),
    ):
        mine, plain = make(), make()
        for token in tokens.split(1, 1):
            assert torch.equal(forward(token, cache=mine), model(token, cache=plain))


@needs_compiler
@torch.no_grad()
def test_an_interrupt_leaves_lengths_and_states_of_one_token_count(monkeypatch):
    """Before the step: as if nothing was asked. After it: as if the token was read."""
    model, tokens = small_model(**MAMBA), some_tokens(1, 4)
    forward, expected = Compiled(model), model(tokens)
    step, cache = forward._library.step, preallocated(model, 1)
    forward(tokens[:, :1], cache=cache)

    def interrupted(*given):
        if cache.lengths == [2]:
            step(*given)
        raise KeyboardInterrupt

    for length in (1, 2):
        monkeypatch.setattr(forward._library, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            forward(tokens[:, length : length + 1], cache=cache)
        monkeypatch.undo()
        if length == 1:
            assert cache.lengths == [1]
            close(forward(tokens[:, 1:2], cache=cache), expected[:, 1:2])
    assert cache.lengths == [3]
    close(forward(tokens[:, 3:4], cache=cache), expected[:, 3:4])


@needs_compiler
@torch.no_grad()
def test_the_compiled_weights_are_a_copy():
    """Prompts too: the model may be trained on."""
    for shape in (SHAPES["grouped"], MAMBA):
        model, tokens = small_model(**shape), some_tokens(1, 5)
        forward, expected = Compiled(model), model(tokens)
        for parameter in model.parameters():
            parameter.zero_()
        cache = preallocated(model, 1)
        close(
            torch.cat([forward(part, cache=cache) for part in tokens.split([2, 1, 1, 1], 1)], 1),
            expected,
        )


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
    wanted, token = r"2 sequences in torch.float64, but a cache of ", torch.zeros(2, 1).long()
    with pytest.raises(ValueError, match=rf"{wanted}2 in torch\.float32"):
        forward(token, cache=Preallocated(kept_by(model), 2, 4))
    with pytest.raises(ValueError, match=rf"{wanted}1 in torch\.float64"):
        forward(token, cache=preallocated(model, 1))
    with pytest.raises(ValueError, match="runs on the CPU, not on meta"):
        Compiled(model.to("meta"))
    monkeypatch.setattr(compiled, "SUMS", ("-no-such-option",))
    library.cache_clear()
    with pytest.raises(RuntimeError, match=r"could not compile step\.c:\n(.|\n)*no-such-option"):
        Compiled(small_model())
    monkeypatch.setattr(in_c.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler named cc"):
        Compiled(small_model())
