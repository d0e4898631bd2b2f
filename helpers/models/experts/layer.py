"""A mixture of experts, as a block's MLP.

B  sequences        D  width of a token's vector        E  experts
T  tokens           F  inner width of an expert         k  experts of a token
R  rows: one for each token and expert that has it; B T k without drops
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from helpers.models.experts import routing
from helpers.models.experts.permutation import combine, sort, spread
from helpers.models.experts.product import PRODUCTS
from helpers.models.mlp import SwiGLU
from helpers.models.shape import GPTShape


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing:
    """What a router decides.

    Attributes:
        chosen: (B, T, k) int64, each token's experts, the largest score first.
        gates: (B, T, k), in float32 at least.
        kept: (B, T, k) bool: the expert had room for the token. None: all had.
        extra: the losses of balance and of large logits, summed over tokens; None outside training.
    """

    chosen: torch.Tensor
    gates: torch.Tensor
    kept: torch.Tensor | None = None
    extra: torch.Tensor | None = None


class Router(nn.Module):
    """Choose k of E experts for each token. It computes in float32, in a float64 model in float64.

    Attributes:
        weight: (E, D).
        balance: (E,): added to the scores for the choice alone. It is no trained parameter: see
            `ExpertSettings.bias_rate`. None without a rate.
        total, loads: see the package.
    """

    def __init__(self, config: GPTShape, **place):
        super().__init__()
        self.settings = config.experts
        self.weight = nn.Parameter(torch.empty(self.settings.count, config.width, **place))
        self.balance = None
        if self.settings.bias_rate:
            bias = torch.empty(self.settings.count, **place)
            self.balance = nn.Parameter(bias, requires_grad=False)
        self.total, self.loads = (lambda counts: counts), None

    def forward(self, x: torch.Tensor) -> Routing:
        s, wide = self.settings, torch.promote_types(x.dtype, torch.float32)
        logits = functional.linear(x.to(wide), self.weight.to(wide))  # (B, T, E)
        scores = routing.scores_of(logits, s.score)
        biased = scores if self.balance is None else scores + self.balance.to(wide)
        chosen = routing.choose(biased, s.chosen, s.groups, s.limit)
        gates = routing.gates_of(scores, chosen, s.normalized, s.scale)
        if not self.training:
            return Routing(chosen=chosen, gates=gates)
        kept = None
        if s.capacity is not None:
            kept = routing.within_capacity(chosen, s.count, s.capacity)
        if self.balance is not None and not recomputing():
            counts = routing.counts_of(chosen, s.count).sum(0)
            self.loads = counts if self.loads is None else self.loads + counts
        return Routing(
            chosen=chosen, gates=gates, kept=kept, extra=self.extra(logits, scores, chosen)
        )

    def extra(self, logits, scores, chosen) -> torch.Tensor | None:
        s, losses = self.settings, []
        if s.loss_rate:
            losses.append(s.loss_rate * routing.balance_loss(scores, chosen, self.total))
        if s.z_rate:
            losses.append(s.z_rate * routing.z_loss(logits))
        return sum(losses) if losses else None

    def take_loads(self) -> torch.Tensor | None:
        """Return the loads, and begin to count anew. None: no token came in training."""
        loads, self.loads = self.loads, None
        return loads


class Experts(nn.Module):
    """E SwiGLUs on sorted rows. Their matrices are `gate` and `up` (E, F, D), and `down` (E, D, F).

    Args:
        experts: E; None: the configuration's.
    """

    def __init__(self, config: GPTShape, experts: int | None = None, **place):
        super().__init__()
        s = config.experts
        count, inner = experts or s.count, s.hidden or config.inner
        self.multiply = PRODUCTS[s.product]
        for name, shape in (
            ("gate", (count, inner, config.width)),
            ("up", (count, inner, config.width)),
            ("down", (count, config.width, inner)),
        ):
            self.register_parameter(name, nn.Parameter(torch.empty(shape, **place)))

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compute (R, D) from rows (R, D): the first counts[0] are expert 0's, and so on."""
        gate, up = (self.multiply(rows, counts, weight) for weight in (self.gate, self.up))
        return self.multiply(functional.silu(gate) * up, counts, self.down)

    def begin(self, rows: torch.Tensor, counts: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start what runs beside other computations: here nothing. Returns what computes the rest.

        The function that is returned gives the result of `forward`. Call it once.
        """
        return partial(self, rows, counts)


class Mixture(nn.Module):
    """Send each token to its experts, and add their results by the gates, and the shared experts.

    A dropped choice adds nothing: the token goes on by the residual stream.
    """

    def __init__(self, config: GPTShape, **place):
        super().__init__()
        s = config.experts
        self.router, self.experts = Router(config, **place), Experts(config, **place)
        self.shared = None
        if s.shared:
            self.shared = SwiGLU(config, s.shared * (s.hidden or config.inner), **place)
        self.kept_extra: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        found = self.router(x)
        if not recomputing():
            self.kept_extra = found.extra
        kept = None if found.kept is None else found.kept.flatten(0, 1)
        order = sort(found.chosen.flatten(0, 1), self.router.settings.count, kept)
        begun = self.experts.begin(spread(x.flatten(0, 1), order), order.counts)
        beside = None if self.shared is None else self.shared(x)
        y = combine(begun(), found.gates.flatten(0, 1), order).view_as(x)
        return y if beside is None else y + beside

    def take_extra(self) -> torch.Tensor | int:
        """Return what the last forward adds to the loss, once."""
        extra, self.kept_extra = self.kept_extra, None
        return 0 if extra is None else extra


def recomputing() -> bool:
    """Whether a backward repeats this forward: it was counted before."""
    return torch._C._current_graph_task_id() != -1
