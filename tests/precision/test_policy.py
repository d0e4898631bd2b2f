"""Our small autocast gives each operation of the GPT the format that PyTorch's gives it."""

from collections import Counter

import pytest
import torch

from helpers.models.gpt import GPTConfig, build
from helpers.precision.policy import Policy
from helpers.precision.recorder import operations_of

SHAPES = {
    "llama": {},
    "explicit attention": {"attention": "explicit", "kv_heads": 2},
    "gpt-2": {
        "norm": "layer",
        "positions": "learned",
        "mlp": "gelu",
        "bias": True,
        "tied": False,
    },
}


def training_step(context, **options):
    """The operations of a forward and backward of a GPT; and its gradients' formats."""
    model = build(GPTConfig(vocab=17, context=8, width=32, layers=2, **options))
    tokens = torch.arange(16).reshape(2, 8)

    def run():
        with context:
            loss, _ = model.criterion(model(tokens), tokens)
        assert loss.dtype is torch.float32
        loss.backward()

    operations = operations_of(run)
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    return operations


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_format_of_each_operation(shape, dtype):
    ours = training_step(Policy(dtype), **SHAPES[shape])
    theirs = training_step(torch.autocast("cpu", dtype), **SHAPES[shape])
    assert len(ours) > 60
    assert {o.dtype for o in ours} == {torch.float32, dtype}
    assert any(o.backward for o in ours)
    # PyTorch's list for the CPU leaves softmax in the low format; its list for CUDA, and ours, do
    # not. PyTorch's fused attention has a softmax in float32 inside.
    different = {"_softmax", "_softmax_backward_data"} if shape == "explicit attention" else set()
    assert [o.name for o in ours] == [o.name for o in theirs]
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert {a.name for a, _ in pairs} == different
    assert {(a.dtype, b.dtype) for a, b in pairs} <= {(torch.float32, dtype)}
    assert Counter(a.name for a, _ in pairs) == dict.fromkeys(different, 2)  # one a layer


def test_the_lists():
    x, y = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.bfloat16)
    with Policy():
        assert (x @ x).dtype is torch.bfloat16
        assert torch.nn.functional.linear(x, x).dtype is torch.bfloat16
        assert y.softmax(-1).dtype is torch.float32
        assert y.exp().dtype is torch.float32
        assert y.sum().dtype is torch.float32
        assert torch.cat([x, y]).dtype is torch.float32
        assert torch.cat([y, y]).dtype is torch.bfloat16
        rows, half = torch.zeros(3, 3, dtype=torch.long), y.half()
        for one, other in ((y, half), (half, y), (x, y), (y, x)):  # two low formats are mixed, too
            assert one.scatter_add(0, rows, other).dtype is torch.float32
        assert y.scatter_add(0, rows, y).dtype is torch.bfloat16
        assert torch.matmul(input=x, other=x).dtype is torch.bfloat16  # by keyword
        assert torch.stack([y, half]).dtype is torch.float32
        assert (y + y).dtype is torch.bfloat16
        assert (x.double() @ x.double()).dtype is torch.float64
    assert (x @ x).dtype is torch.float32
    with Policy(wide={"add"}, low={"exp"}):
        assert (y @ y).dtype is torch.bfloat16
        assert x.exp().dtype is torch.bfloat16
        assert torch.add(y, y).dtype is torch.float32


def test_what_is_refused():
    with pytest.raises(ValueError, match="two lists: exp;"):
        Policy(low={"exp"})
    for double in ({"low": {"cat"}}, {"wide": {"cat"}}):
        with pytest.raises(ValueError, match="two lists: cat;"):
            Policy(**double)
    with pytest.raises(ValueError, match="float32"):
        Policy(torch.float32)


MATRIX, ROW = torch.rand(3, 3) + 0.5, torch.rand(1, 3, 3) + 0.5
TARGETS = torch.tensor([0, 2, 1])
F = torch.nn.functional
LOW = {
    "linear": lambda x, _: F.linear(x, x),
    "matmul": lambda x, _: torch.matmul(x, x),
    "@": lambda x, _: x @ x,
    "mm": lambda x, _: torch.mm(x, x),
    "bmm": lambda _, y: torch.bmm(y, y),
    "addmm": lambda x, _: torch.addmm(x, x, x),
    "addbmm": lambda x, y: torch.addbmm(x, y, y),
    "baddbmm": lambda _, y: torch.baddbmm(y, y, y),
    "conv1d": lambda _, y: F.conv1d(y, y),
    "conv2d": lambda _, y: F.conv2d(y[None], y[None]),
    "conv3d": lambda _, y: F.conv3d(y[None, None], y[None, None]),
    "attention": lambda _, y: F.scaled_dot_product_attention(y, y, y),
}
WIDE = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGETS),
    "nll_loss": lambda x: F.nll_loss(x, TARGETS),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy_with_logits(x, x.clamp(0, 1)),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "pow": lambda x: x.pow(3),
    "sum": lambda x: x.sum(0),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp(0),
    **{
        name: lambda x, name=name: getattr(torch, name)(x)
        for name in ("exp", "expm1", "log", "log1p", "rsqrt", "mean", "prod", "var", "std")
    },
}
WIDEST = {
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "index_put": lambda x, y: x.index_put((TARGETS,), y),
    "scatter_add": lambda x, y: x.scatter_add(0, TARGETS[None], y[:1]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_operation_of_the_lists(dtype):
    low = MATRIX.to(dtype)
    with Policy(dtype):
        found = {name: run(MATRIX, ROW).dtype for name, run in LOW.items()}
        assert found == dict.fromkeys(LOW, dtype)
        found = {name: run(low).dtype for name, run in WIDE.items()}
        assert found == dict.fromkeys(WIDE, torch.float32)
        for one, other in ((low, MATRIX), (MATRIX, low)):
            found = {name: run(one, other).dtype for name, run in WIDEST.items()}
            assert found == dict.fromkeys(WIDEST, torch.float32)
        assert {run(low, low).dtype for run in WIDEST.values()} == {dtype}
        assert low.__rmatmul__(MATRIX).dtype == dtype
