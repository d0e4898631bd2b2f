"""The base of the libraries' strategies: one step, around what each library does itself.

A library divides the gradients by the number of ranks, but a Strategy needs the gradient of the
global mean over targets. So each rank multiplies its summed loss by N and divides it by the targets
of all ranks.
"""

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.tensor import DTensor

from helpers.comm.mesh import Mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch
from helpers.models.initialization import build
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.owners.local import by_device, like
from helpers.parallel.strategy import Step, Strategy, check_batch, check_start
from helpers.parallel.world import GlobalSum, copied
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.placing import whole as place_whole

Total = tuple[torch.Tensor, torch.Tensor]  # a summed loss, and its number of targets


class Loss(torch.nn.Module):
    """A model's loss as a module's forward: most libraries wrap a module, and call it."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.loss(batch)


class Library(Strategy):
    """A model that a library trains.

    A subclass makes it in `make`, and changes the parts of a step that the library does in its own
    way: `begin`, `loss`, `turn`, `backward`, `norm`, `apply`.

    Args:
        config, seed, dtype, device, optimizer, micro_batches: as for Trainer.
        mesh: with one of the tuples of axes in `meshes`. All ranks have different sequences, unless
            `divides` is False.
        options: for `make`.

    Attributes:
        parameters: this rank's, by plain name. `make` sets it, `model` and `optimizer`.

    Raises:
        ValueError: the mesh has other axes; experts are balanced by a bias.
        TypeError, ValueError: as `check_start`.
    """

    meshes: tuple[tuple[str, ...], ...] = (("dp",),)
    divides = True

    parameters: Mapping[str, torch.nn.Parameter]

    def __init__(
        self,
        config,
        seed: int,
        mesh: Mesh,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
        **options,
    ):
        check_start(config, seed, micro_batches)
        if mesh.layout.axes not in self.meshes:
            known = " or ".join(" and ".join(axes) for axes in self.meshes)
            raise ValueError(
                f"{type(self).__name__} needs a mesh with the axes {known} only, in this order, "
                f"not {mesh.layout!r}"
            )
        expect_no_bias(config)
        self.mesh, self.device = mesh, torch.device(device)
        self.rule, self.micro_batches = optimizer or OptimizerConfig(), micro_batches
        self.world_size, self.groups = mesh.layout.world_size, []
        if self.divides:
            self.data_rank, self.data_size = getattr(mesh, "rank", 0), self.world_size
        plain = config.build(dtype, "meta", seed=seed)
        self.shapes = {name: tuple(p.shape) for name, p in plain.named_parameters()}
        self.make(config, seed, dtype, **options)
        if self.divides:
            self.groups = [GroupTransport(mesh.group(*mesh.layout.axes))]

    @abstractmethod
    def make(self, config, seed: int, dtype: torch.dtype, **options):
        """Build the model, with the first values of the seed, and hand it to the library."""

    def build(self, config, seed: int, dtype: torch.dtype):
        """Build the plain model, and our rule's optimizer of its trained parameters."""
        self.model = build(config, seed, dtype, self.device)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = self.rule.make(self.trained(), self.whole_parts())

    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    def whole_parts(self) -> dict[str, Part]:
        """The parts of parameters that are whole on every rank, by plain name."""
        return {n: place_whole(self.mesh, n, p.shape) for n, p in self.parameters.items()}

    # a step

    def begin(self):
        """Clear the last step's gradients."""
        self.optimizer.zero_grad()

    def loss(self, micro: Batch) -> Total:
        """Run the forward of a micro-batch."""
        return self.model.loss(micro)

    def turn(self, last: bool) -> AbstractContextManager:
        """The context of a micro-batch's forward and backward; `last`: gradients may be sent."""
        return nullcontext()

    def backward(self, loss: torch.Tensor):
        loss.backward()

    @property
    def most(self) -> float:
        """The maximum of the global norm; infinite for no clipping."""
        return float("inf") if self.rule.clip is None else self.rule.clip

    def norm(self) -> torch.Tensor:
        """Clip all gradients by their global norm, and return the norm before."""
        return whole(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.most))

    def apply(self):
        """Update the parameters."""
        self.optimizer.step()

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        check_batch(batch)
        self.begin()
        set_lr(self.optimizer, self.rule.lr if lr is None else lr)
        tokens = GlobalSum(self.groups, self.device, batch.counted()).send().wait()
        mean = GlobalSum(self.groups, self.device)
        weight = self.data_size / tokens.clamp(min=1)
        parts = batch.to(self.device).micro(self.micro_batches)
        for left, micro in zip(reversed(range(len(parts))), parts, strict=True):
            with self.turn(left == 0):
                total, _ = self.loss(micro)
                mean.add(whole(total.detach()))
                self.backward(total * weight.to(total.dtype))
        norm = self.norm()
        self.apply()
        loss = mean.send().wait() / tokens.clamp(min=1)
        return Step(loss=loss, grad_norm=norm, tokens=int(tokens))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        check_batch(batch)
        self.model.eval()
        try:
            with self.turn(True):
                values = self.loss(batch.to(self.device))
        finally:
            self.model.train()
        sums = [GlobalSum(self.groups, self.device, float(whole(v))).send() for v in values]
        loss, count = (each.wait() for each in sums)
        return float(loss), int(count)

    # what is trained, whole

    def full_gradients(self):
        return {n: whole(p.grad).clone() for n, p in self.parameters.items() if p.grad is not None}

    def full_state(self):
        state = self.optimizer.state
        return {
            "model": {name: whole(p.detach()).clone() for name, p in self.parameters.items()},
            "optimizer": {
                name: {slot: whole(value).clone() for slot, value in state[p].items()}
                for name, p in self.parameters.items()
                if state.get(p)
            },
        }

    @torch.no_grad()
    def put(self, state: Mapping):
        self.optimizer.state.clear()
        for name, p in self.parameters.items():
            p.copy_(like(p, "", state["model"][name]))
            if slots := state["optimizer"].get(name):
                self.optimizer.state[p] = {k: like(p, k, copied(v)) for k, v in slots.items()}

    def stored(self):
        """Everything, whole on every rank."""
        state = self.full_state()
        parts = {n: place_whole(self.mesh, n, t.shape) for n, t in state["model"].items()}
        return AllParts.exchanged(parts), state["model"], state["optimizer"]

    def resume(self, tensors, moments, scale):
        self.put({"model": tensors, "optimizer": moments})

    def held(self):
        kinds = {
            "parameters": [local(p) for p in self.parameters.values()],
            "gradients": [local(p.grad) for p in self.parameters.values()],
            "optimizer": [
                local(value) for slots in self.optimizer.state.values() for value in slots.values()
            ],
        }
        return by_device(kinds)


def whole(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor of a DTensor; every rank calls it. Any other tensor as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local(value):
    """This rank's tensor of a DTensor; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) else value


class WrongWrapper(TypeError):
    """A library wrapped a model in another way than it was asked to: some say nothing."""


def expect(made, kind: type, maker: str):
    """Return `made` if it is a `kind`, and raise otherwise.

    Args:
        maker: the call that made it, for the message.

    Raises:
        WrongWrapper: it is something else. Training would run, but not as it was asked to.
    """
    if not isinstance(made, kind):
        raise WrongWrapper(
            f"{maker} returned a {type(made).__qualname__}, not a {kind.__qualname__}: the model "
            "would train, but not sharded as you asked. Check the library's settings and device"
        )
    return made


def expect_no_bias(config):
    """Raises ValueError: the bias of a choice of experts moves, which no library does."""
    if getattr(getattr(config, "experts", None), "bias_rate", 0):
        raise ValueError("no library moves the bias of a choice of experts: use bias_rate=0")


def expect_ranks(found: int, ranks: int, maker: str):
    """Raise if a library counts other ranks than there are.

    Raises:
        WrongWrapper: it would give every rank the same data, or weight the targets wrongly.
    """
    if found != ranks:
        raise WrongWrapper(
            f"{maker} sees {found} rank{'s' * (found != 1)}, and there are {ranks}: every rank "
            "would get the same sequences. Check the library's settings and device"
        )
