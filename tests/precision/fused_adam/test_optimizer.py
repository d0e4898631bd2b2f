"""FusedAdamW in Triton's interpreter, beside torch.optim.AdamW on the same numbers."""

import copy
import io
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.precision.fused_adam import launch
from helpers.precision.fused_adam.optimizer import FusedAdamW

SIZES = (1, 3, 1023, 1024, 1025, 0)
STATE = ("step", "exp_avg", "exp_avg_sq")
# float32 and less: some last digits, because the sums are in another order
CLOSE = {
    torch.float64: {"rtol": 1e-13, "atol": 1e-13},
    torch.float32: {"rtol": 1e-6, "atol": 1e-6},
    torch.float16: {"rtol": 2**-10, "atol": 1e-6},
    torch.bfloat16: {"rtol": 2**-7, "atol": 1e-6},
}


def make(sizes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    return [torch.nn.Parameter(value) for value in values]


def give_gradients(step, *models, skip=(), scale=1.0):
    """The same gradients to each model; none to the parameters in `skip`."""
    for place, parameters in enumerate(zip(*models, strict=True)):
        generator = torch.Generator().manual_seed(100 * step + place)
        gradient = torch.randn(parameters[0].shape, generator=generator) * scale
        for p in parameters:
            p.grad = None if place in skip else gradient.to(p.dtype)


def assert_same(ours, theirs, mine, others):
    """Parameters, moments and steps of two models with their optimizers."""
    for p, q in zip(mine, others, strict=True):
        close = CLOSE[p.dtype]
        torch.testing.assert_close(p, q, equal_nan=True, **close)
        assert ours.state[p].keys() == theirs.state[q].keys()
        for name in ours.state[p]:
            own, other = ours.state[p][name], theirs.state[q][name]
            torch.testing.assert_close(own, other, equal_nan=True, **close)


@pytest.mark.parametrize("dtype", CLOSE)
def test_sizes_around_a_block(dtype):
    mine, others = make(SIZES, dtype), make(SIZES, dtype)
    ours, theirs = FusedAdamW(mine, lr=0.01), torch.optim.AdamW(others, lr=0.01, fused=True)
    for step in range(2):
        give_gradients(step, mine, others)
        ours.step()
        theirs.step()
    assert_same(ours, theirs, mine, others)
    unequal = sum((p != q).sum().item() for p, q in zip(mine, others, strict=True))
    assert unequal <= 0.02 * sum(SIZES) or dtype in (torch.float32, torch.float64)


def test_a_hundred_steps_are_as_exact_as_torch():
    """The distance to AdamW in float64: no more than twice that of PyTorch's float32."""
    mine, others = make([4097]), make([4097])
    exact = [torch.nn.Parameter(p.detach().double()) for p in mine]
    options = {"lr": 0.01, "weight_decay": 0.1}
    ours, theirs = FusedAdamW(mine, **options, block=4096), torch.optim.AdamW(others, **options)
    twin = torch.optim.AdamW(exact, **options)
    for step in range(100):
        give_gradients(step, mine, others, exact)
        for optimizer in (ours, theirs, twin):
            optimizer.step()
    far, torchs = (
        (model[0].double() - exact[0]).square().mean().sqrt() for model in (mine, others)
    )
    assert 0 < far <= 2 * torchs
    assert ours.state[mine[0]]["step"] == 100


def test_a_million():
    mine, others = make([10**6]), make([10**6])
    ours, theirs = FusedAdamW(mine, block=2**18), torch.optim.AdamW(others)
    give_gradients(0, mine, others)
    ours.step()
    theirs.step()
    assert_same(ours, theirs, mine, others)


class Count:
    """A kernel that counts its launches."""

    def __init__(self, kernel):
        self.kernel, self.grids = kernel, []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.kernel[grid]


@pytest.fixture
def counted(monkeypatch):
    kernels = [Count(kernel) for kernel in launch.on_cpu()]
    monkeypatch.setattr(launch, "on_cpu", lambda: kernels)
    return kernels


def test_many_tensors_in_one_launch_for_each_group(counted):
    sizes = [1 + place % 5 for place in range(40)]
    mine, others = make(sizes), make(sizes)
    optimizers = []
    for cls, own in ((FusedAdamW, mine), (torch.optim.AdamW, others)):
        first = {"params": own[:35], "lr": torch.tensor(0.1), "betas": (0.0, 0.5), "eps": 0.1}
        second = {"params": own[35:], "weight_decay": 0.5, "betas": (0.5, 0.0)}
        options = {"block": 2} if cls is FusedAdamW else {}
        optimizers.append(cls([first, second], lr=0.01, **options))
    ours, theirs = optimizers
    schedules = [torch.optim.lr_scheduler.ExponentialLR(own, 0.5) for own in optimizers]
    for step in range(3):
        give_gradients(step, mine, others, skip=(1, 36) if step == 1 else ())
        for own, schedule in zip(optimizers, schedules, strict=True):
            own.step()
            schedule.step()
    assert_same(ours, theirs, mine, others)
    assert ours.state[mine[1]]["step"] == 2
    advance, update = counted
    assert len(advance.grids) == len(update.grids) == 2 * 3
    # sizes 1 to 5, in blocks of 2: 1, 1, 2, 2 and 3 programs, seven times in the first group
    assert update.grids[:4] == [(63,), (9,), (62,), (8,)]


def test_maximize_and_a_closure():
    mine, others = make([3]), make([3])
    ours, theirs = FusedAdamW(mine, maximize=True), torch.optim.AdamW(others, maximize=True)

    def closure(p):
        p.grad = None
        loss = p.square().sum()
        loss.backward()
        return loss

    for own, [p] in ((ours, mine), (theirs, others)):
        assert own.step(lambda p=p: closure(p)).item() > 0
    assert_same(ours, theirs, mine, others)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # by NumPy
def test_gradients_that_are_not_finite_spread_as_in_torch():
    mine, others = make([6]), make([6])
    ours, theirs = FusedAdamW(mine), torch.optim.AdamW(others)
    for step in range(2):
        give_gradients(step, mine, others)
        if step == 0:
            for p in (*mine, *others):
                p.grad[:3] = torch.tensor([math.nan, math.inf, -math.inf])
        ours.step()
        theirs.step()
    assert_same(ours, theirs, mine, others)
    assert mine[0].isnan().tolist() == [True] * 3 + [False] * 3


def test_state_moves_to_torch_and_back():
    mine, others = make([5, 2]), make([5, 2])
    classes = [FusedAdamW, torch.optim.AdamW, FusedAdamW, torch.optim.AdamW]
    straight = torch.optim.AdamW(others, lr=0.01)
    saved = None
    for step, cls in enumerate(classes):
        optimizer = cls(mine, lr=0.5)  # the loaded group has another lr
        if saved is not None:
            optimizer.load_state_dict(saved)
        else:
            optimizer.param_groups[0]["lr"] = 0.01
        give_gradients(step, mine, others)
        optimizer.step()
        straight.step()
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        if step == 1:  # as PyTorch's counts are, where the default dtype is float64
            for state in saved["state"].values():
                state["step"] = state["step"].double()
    assert_same(optimizer, straight, mine, others)
    assert saved["param_groups"][0]["lr"] == 0.01


def test_a_copy_trains_on_by_itself():
    mine = make([5])
    ours = FusedAdamW(mine)
    give_gradients(0, mine)
    ours.step()
    twin = copy.deepcopy(ours)
    [p] = twin.param_groups[0]["params"]
    before = mine[0].detach().clone()
    give_gradients(1, [p])
    twin.step()
    assert torch.equal(mine[0], before)
    assert not torch.equal(p, before)
    odd = copy.deepcopy(FusedAdamW(mine, block=64, master_copies=True))
    assert (twin.block, twin.master_copies) == (launch.BLOCK, False)
    assert (odd.block, odd.master_copies) == (64, True)


@pytest.mark.parametrize("master_copies", [False, True])
def test_the_scaler_decides_and_the_step_obeys(master_copies):
    """GradScaler's scale and steps are those that PyTorch's AdamW gets, and so are the updates."""
    mine, others = make([5, 2]), make([5, 2])
    if master_copies:
        mine, others = make([5, 2], torch.bfloat16), make([5, 2])
        for p, q in zip(mine, others, strict=True):
            q.data.copy_(p)
    ours = FusedAdamW(mine, lr=0.01, master_copies=master_copies)
    theirs = torch.optim.AdamW(others, lr=0.01)
    scalers = [torch.amp.GradScaler("cpu", 2.0**10, growth_interval=2) for _ in range(2)]
    scales = []
    for step in range(5):
        for own, model, scaler in zip((ours, theirs), (mine, others), scalers, strict=True):
            give_gradients(step, model, scale=scaler.scale(torch.ones(())).item())
            for p, q in zip(mine, others, strict=True):
                q.grad = p.grad.to(q.dtype) if model is others else None
            if step == 1:
                model[1].grad[0] = math.inf
            scaler.step(own)
            scaler.update()
            scales.append(scaler.get_scale())
    assert scales[::2] == scales[1::2] == [1024, 512, 512, 1024, 1024]
    for p, q in zip(mine, others, strict=True):
        state = ours.state[p]
        assert state["step"] == theirs.state[q]["step"] == 4
        torch.testing.assert_close(state.get("master", p.detach()), q.detach(), **CLOSE[q.dtype])


class NoWaiting(TorchDispatchMode):
    """Raise if a tensor's value is read: on a GPU, the CPU would have to wait for it."""

    def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(fn), "the CPU waits for a tensor's value"
        return fn(*args, **(kwargs or {}))


def test_the_cpu_does_not_read_scale_or_overflow():
    mine = make([5])
    ours = FusedAdamW(mine)
    ours.found_inf, ours.grad_scale = torch.zeros(1), torch.full((1,), 2.0)
    give_gradients(0, mine)
    with NoWaiting():
        ours.step()
    assert ours.state[mine[0]]["step"] == 1
    with pytest.raises(AssertionError, match="waits"), NoWaiting():
        ours.found_inf.item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_copies(dtype):
    """The copy is trained as float32 would be; the parameter is the copy, rounded."""
    mine = make([13, 2], dtype)
    others = [torch.nn.Parameter(p.detach().float()) for p in mine]
    ours = FusedAdamW(mine, lr=1e-3, master_copies=True, block=8)
    theirs = torch.optim.AdamW(others, lr=1e-3)
    for step in range(4):
        if step == 2:  # through a file, to a new optimizer
            saved = ours.state_dict()["state"]
            as_saved = copy.deepcopy(saved)
            state_dict = ours.state_dict()
            ours = FusedAdamW(mine, master_copies=True, block=8)
            ours.load_state_dict(state_dict)
        give_gradients(step, mine)
        for p, q in zip(mine, others, strict=True):
            q.grad = p.grad.float()
        ours.step()
        theirs.step()
    for p, q in zip(mine, others, strict=True):
        state = ours.state[p]
        assert torch.equal(p, state["master"].to(dtype))
        torch.testing.assert_close(state["master"], q.detach(), **CLOSE[q.dtype])
        for name in STATE:
            assert state[name].dtype == torch.float32
            torch.testing.assert_close(state[name], theirs.state[q][name], **CLOSE[q.dtype])
    for number, state in as_saved.items():  # the training after the load has not changed it
        for name in ("master", "exp_avg", "exp_avg_sq"):
            assert torch.equal(saved[number][name], state[name])


def test_master_copies_after_the_state_of_torch():
    mine, others = make([4], torch.bfloat16), make([4], torch.bfloat16)
    theirs = torch.optim.AdamW(others)
    give_gradients(0, others)
    theirs.step()
    ours = FusedAdamW(mine, master_copies=True)
    ours.load_state_dict(theirs.state_dict())
    give_gradients(1, mine)
    before = mine[0].detach().float()
    ours.step()
    state = ours.state[mine[0]]
    assert {state[name].dtype for name in (*STATE, "master")} == {torch.float32}
    assert (state["master"] - before).abs().max() < 2e-3  # from the parameter, by one step
    assert theirs.state[others[0]]["exp_avg"].dtype == torch.bfloat16  # not changed
    without = FusedAdamW(mine)  # loads a state with master copies, but has none
    without.load_state_dict(ours.state_dict())
    assert without.state[mine[0]].keys() == set(STATE)


@pytest.mark.parametrize(
    "shaped",
    [
        lambda x: x[1 : 1 + 6].view(2, 3),  # not aligned
        lambda x: x[:12].view(3, 4).t(),
        lambda x: x[:16].view(4, 4)[:, ::2],
        lambda x: x[:24].view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    ],
)
def test_layouts(shaped):
    """Parameters in any layout, with gradients in another one; the rest of the memory stays."""
    memory = [torch.randn(24, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    before = memory[0].clone()
    mine, others = ([torch.nn.Parameter(shaped(x))] for x in memory)
    ours, theirs = FusedAdamW(mine), torch.optim.AdamW(others)
    for step in range(2):
        give_gradients(step, mine, others)
        ours.step()
        theirs.step()
    assert_same(ours, theirs, mine, others)
    assert torch.equal(*memory) or not torch.equal(before, memory[0])
    torch.testing.assert_close(*memory)


def test_autograd_knows_that_a_parameter_has_changed():
    several = make([3, 3, 3])
    for p in several:
        p.grad = torch.ones(3)
    losses = [(p * p).sum() for p in several]
    FusedAdamW(several).step()
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_what_it_cannot_update():
    def stepped(p, gradient, **options):
        p.grad = gradient
        optimizer = FusedAdamW([p])
        optimizer.param_groups[0].update(options)
        optimizer.step()

    [p] = make([3])
    with pytest.raises(ValueError, match="must be dense"):
        stepped(p, torch.ones(3).to_sparse())
    with pytest.raises(ValueError, match="amsgrad is not supported"):
        stepped(p, torch.ones(3), amsgrad=True)
    turned = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(ValueError, match="complex64"):
        stepped(turned, torch.ones(3, dtype=torch.complex64))
    nowhere = torch.nn.Parameter(torch.ones(3, device="meta"))
    with pytest.raises(ValueError, match="not on meta"):
        stepped(nowhere, torch.ones(3, device="meta"))
