"""`FusedAdamW`: torch.optim.AdamW, with an update that reads and writes each number once."""

import math
from collections import defaultdict
from itertools import chain

import torch

from helpers.measure.kernels.address import address
from helpers.precision.fused_adam.launch import BLOCK, TYPES, formats, launch_step
from helpers.precision.fused_adam.table import Table, Tensors, arranged

LOW = (torch.bfloat16, torch.float16)


class FusedAdamW(torch.optim.AdamW):
    """AdamW whose step is two launches for each group, however many parameters the group has.

    Use it in place of `torch.optim.AdamW`: groups, learning-rate schedules and `state_dict` are the
    same, and either optimizer loads the other's state. A group with parameters on several devices
    or in several formats needs two launches for each of them.

    On a GPU the kernels are compiled. On the CPU they run in Triton's interpreter, which is slow:
    for tests and lessons.

    With `torch.amp.GradScaler`, `step` divides the gradients by the scale as it reads them, and
    skips the update after an overflow. The decision stays on the GPU: the CPU does not wait for it.
    Unlike PyTorch's fused AdamW, it leaves the scaled gradients as they are.

    In a CUDA graph, give `lr` as a tensor on the GPU, and keep the gradients' memory
    (`zero_grad(set_to_none=False)`): a replay reads the table of its capture.

    Attributes:
        grad_scale, found_inf: float32 tensors of one number on the parameters' device. `GradScaler`
            sets them before `step`, and deletes them afterwards. You may set them yourself. Without
            them there is no scale and no overflow.

    Args:
        params, lr, betas, eps, weight_decay, maximize: as for `torch.optim.AdamW`. `lr` may be a
            tensor, on the parameters' device or on the CPU.
        master_copies: whether each bfloat16 or float16 parameter has a master copy in float32, with
            float32 moments, in the optimizer's state. The update changes the master copy, and
            rounds it into the parameter in the same pass. Without it, the moments have the
            parameter's format, as in PyTorch.
        block: the numbers that one program updates, a power of 2.
    """

    _step_supports_amp_scaling = True  # GradScaler asks for it, and then leaves the scale to `step`

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        master_copies: bool = False,
        block: int = BLOCK,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)
        self.master_copies, self.block = master_copies, block
        self._tables = {}

    def __getstate__(self):  # for a copy
        own = {"master_copies": self.master_copies, "block": self.block}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state):  # of a copy, and of a state that is loaded
        super().__setstate__(state)
        self._tables = {}

    @torch.no_grad()
    def step(self, closure=None):
        """Update the parameters that have a gradient.

        Returns:
            What `closure` returns, or None.

        Raises:
            ValueError: a parameter or gradient that the kernels cannot update.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            kinds = defaultdict(list)  # tensors of one device and one format share a launch
            for p in group["params"]:
                if p.grad is not None:
                    kinds[kind_of(p, self._state_of(p, group))].append(p)
            for kind, params in kinds.items():
                self._update((index, kind), group, params)
        return loss

    def load_state_dict(self, state_dict):
        """Load the state of this optimizer, or of `torch.optim.AdamW`."""
        super().load_state_dict(state_dict)  # it rounds the state to the parameters' formats
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, p in zip(saved, own, strict=True):
            state = state_dict["state"].get(number)
            if not self._has_master(p):
                self.state.get(p, {}).pop("master", None)  # of an optimizer that has them
            elif state:
                for name in {"master", "exp_avg", "exp_avg_sq"} & state.keys():
                    value = state[name].to(p.device, torch.float32, copy=True)
                    self.state[p][name] = value

    def _has_master(self, p) -> bool:
        return self.master_copies and p.dtype in LOW

    def _state_of(self, p, group) -> dict:
        """The state of a parameter: new, or as it was loaded, on the parameter's device."""
        if group["amsgrad"]:
            raise ValueError("amsgrad is not supported; use torch.optim.AdamW")
        if p.device.type not in ("cpu", "cuda"):
            raise ValueError(f"the kernels run on GPUs and on the CPU, not on {p.device}")
        if p.grad.is_sparse or p.dtype not in TYPES or p.grad.dtype not in TYPES:
            raise ValueError(
                f"cannot update {p.dtype} by {p.grad.layout} gradients of {p.grad.dtype}: both "
                "must be dense, in float64, float32, bfloat16 or float16"
            )
        address(p)  # refuses a DTensor, of `fully_shard`
        state = self.state[p]
        if not state:
            dtype = torch.float32 if self._has_master(p) else p.dtype
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(p, dtype=dtype)
        if self._has_master(p) and "master" not in state:
            state["master"] = p.detach().to(torch.float32, copy=True)
        if state["step"].device != p.device or state["step"].dtype is not torch.float32:
            state["step"] = state["step"].to(p.device, torch.float32)
        return state

    def _update(self, key, group, params):
        """Launch the step of parameters of one kind."""
        device = params[0].device
        if key not in self._tables:
            self._tables[key] = Table(device, self.block)
        table, tensors, copied = self._tables[key], [], []
        for p in params:
            state = self.state[p]
            target = state.get("master", p)
            low = [p] if target is not p else []
            own = [target, p.grad, state["exp_avg"], state["exp_avg_sq"], *low]
            packed = arranged(own)
            if packed is not own:
                pairs = zip(own, packed, strict=True)
                copied += [(old, new) for old, new in pairs if new is not old and old is not p.grad]
            tensors.append(Tensors(*packed[:4], state["step"], *packed[4:]))

        lr = group["lr"]
        on_gpu = isinstance(lr, torch.Tensor) and lr.device.type != "cpu"
        table.fill(hyper_of(group, 0.0 if on_gpu else float(lr)), tensors)
        if on_gpu:  # without a copy to the CPU
            table.hyper[:1].copy_(lr.reshape(1))
        launch_step(
            table,
            one(getattr(self, "found_inf", None), 0.0, device),
            one(getattr(self, "grad_scale", None), 1.0, device),
            formats(*kind_of(params[0], self.state[params[0]])[1:]),
        )
        for old, new in copied:
            old.copy_(new)
        torch.autograd.graph.increment_version(params)


def kind_of(p: torch.Tensor, state: dict) -> tuple:
    """Device, then formats of: what is updated, gradient, moments, low-precision copy or None."""
    master = "master" in state
    target = torch.float32 if master else p.dtype
    return p.device, target, p.grad.dtype, state["exp_avg"].dtype, p.dtype if master else None


def hyper_of(group: dict, lr: float) -> list[float]:
    """The numbers of a group, in the order of `kernel`."""
    betas = [float(beta) for beta in group["betas"]]
    logs = [math.log(beta) if beta else -math.inf for beta in betas]
    sign = -1.0 if group["maximize"] else 1.0
    return [lr, *betas, float(group["eps"]), float(group["weight_decay"]), sign, *logs]


def one(value: torch.Tensor | None, default: float, device: torch.device) -> torch.Tensor:
    """A float32 number on the device."""
    if value is None:
        return torch.full((), default, device=device)
    return value.to(device, torch.float32, non_blocking=True)
