"""Exercise of week 6: steps of ZeRO stage 1 on a flat buffer, against one process."""

import copy

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.traffic import Traffic
from helpers.check.verdict import Verdict
from helpers.check.week06.stage_1_hints import hint_failure, hint_norm, hint_step
from helpers.measure.memory import bytes_of

STEPS = 3
PATIENCE = 4  # times the usual timeout: the first optimizer imports for seconds on a busy machine
# Ranks, numbers, optimizer. 5 numbers on 4 ranks: shards of 2, and the last rank has padding only.
CASES = [(2, 7, "SGD"), (4, 5, "SGD"), (3, 6, "Adam"), (1, 4, "SGD")]
MAKE = {
    "SGD": lambda tensors: torch.optim.SGD(tensors, lr=0.5, momentum=0.9),
    "Adam": lambda tensors: torch.optim.Adam(tensors, lr=0.1, eps=1e-3),
}
MOMENTS = {"SGD": 1, "Adam": 2}  # numbers of state for one parameter
SIZES = (0.2, 4.0, 2.0)  # the norm of each step: below and above MAX_NORM
MAX_NORM = 1.0
AS_TORCH = "right, as torch clips"
SMALL = 64  # bytes: counts of steps and norms
ROUNDING = 1e-11  # float64, numbers of size 1, three steps: rounding is below 1e-14
SIMILAR = 1e-5  # a mistake is named with torch's 1e-6 in the norm, or without


def zero_1(fn) -> Verdict:
    """Check `fn(worker, params, numbers, make_optimizer, max_norm) -> step`."""
    cases = [(n, {"numbers": numbers, "optimizer": name}) for n, numbers, name in CASES]
    return examine("zero_1", fn, cases, run_steps, judge_steps, hint_failure, PATIENCE)


def draw(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hidden.seed(seed))
    return torch.randn(count, generator=generator, dtype=torch.float64)


def gradients(step: int, ranks: int, numbers: int, size: int) -> torch.Tensor:
    """(ranks, size): each rank's gradient; the padding is not zero."""
    made = torch.stack([draw(100 * step + rank, size) for rank in range(ranks)])
    made[:, :numbers] *= SIZES[step] / made[:, :numbers].mean(0).norm()
    made[:, numbers:] = 3.0
    return made


class Twin:
    """One process with all the parameters, and its optimizer. It keeps its last gradient."""

    def __init__(self, params: torch.Tensor, optimizer: str):
        self.params, self.name = params.clone().requires_grad_(), optimizer
        self.optimizer = MAKE[optimizer]([self.params])

    def after(self, gradient: torch.Tensor) -> torch.Tensor:
        """The parameters after a step with this gradient; the twin itself makes none."""
        other = copy.deepcopy(self)
        other.step(gradient)
        return other.params.detach()

    def anew(self, gradient: torch.Tensor) -> torch.Tensor:
        """The same with a new optimizer, which has no state."""
        return Twin(self.params.detach(), self.name).after(gradient)

    def step(self, gradient: torch.Tensor):
        self.params.grad = gradient.clone()
        self.optimizer.step()


def run_steps(worker, solve, numbers, optimizer):
    torch.set_num_threads(1)
    n, rank = worker.world_size, worker.rank
    size = -(-numbers // n) * n
    params = draw(7, size)
    twin = Twin(params[:numbers], optimizer)
    made = []

    def make_optimizer(tensors):
        made.append(MAKE[optimizer](tensors))
        return made[-1]

    step = solve(worker, params, numbers, make_optimizer, MAX_NORM)
    if not callable(step):
        return {"step": type(step).__name__}
    reports = []
    for k in range(STEPS):
        every = gradients(k, n, numbers, size)
        before = params[:numbers].clone()
        with Traffic() as traffic:
            norm = step(every[rank].clone())
        right = every[:, :numbers].mean(0)
        kind = kind_of(params[:numbers], before, every, numbers, rank, twin)
        reports.append(
            {
                "kind": kind,
                "norm": float(norm) if is_scalar(norm) else type(norm).__name__,
                "norms": norms(every, numbers),
                "own": shard_norm(every, numbers, rank),
                "reduced": sum(c.nbytes for c in traffic.calls if c.name == "all_reduce"),
            }
        )
        # torch adds 1e-6 to the norm: the next step is compared from where this one ends
        twin.step(clipped(right, right.norm() + 1e-6 * (kind == AS_TORCH)))
    state = sum(bytes_of(list(one.state.values())) for one in made)
    return {"step": "", "reports": reports, "state": state, "optimizers": len(made)}


def is_scalar(value) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real or (isinstance(value, torch.Tensor) and value.numel() == 1)


def clipped(gradient, norm):
    return gradient * min(1.0, MAX_NORM / max(float(norm), 1e-30))


def norms(every, numbers) -> dict[str, float]:
    """The norm that is asked for, and those that common mistakes return."""
    n, mean = len(every), every.mean(0)
    shards = [shard_norm(every, numbers, rank) for rank in range(n)]
    right = mean[:numbers].norm().item()
    return {
        "right": right,
        "with padding": mean.norm().item(),
        "divided twice": right / n,
        "of the sum": right * n,
        "the sum of norms": sum(shards),
        "after clipping": min(right, MAX_NORM),
        "squared": right**2,
    }


def shard_norm(every, numbers, rank) -> float:
    size = every.shape[1] // len(every)
    mean = every.mean(0)
    mean[numbers:] = 0
    return mean[rank * size : (rank + 1) * size].norm().item()


def kind_of(found, before, every, numbers, rank, twin: Twin) -> str:
    """Name the step that gives these parameters."""
    n, size = len(every), every.shape[1] // len(every)
    mean, own = every[:, :numbers].mean(0), every[rank, :numbers]
    norm = mean.norm()
    mixed = torch.cat([every[r, r * size : (r + 1) * size] for r in range(n)])[:numbers]
    whole = every.mean(0)
    real = [shard_norm(every, numbers, r) for r in range(n)]
    padded = [whole[r * size : (r + 1) * size].norm() for r in range(n)]
    by_shard, by_padded = (
        torch.cat([clipped(torch.ones(size).double(), norm) for norm in each])[:numbers]
        for each in (real, padded)
    )
    right = twin.after(clipped(mean, norm))
    stale, mine = before.clone(), slice(rank * size, (rank + 1) * size)
    stale[mine] = right[mine]
    if not torch.isfinite(found).all():
        return "not a number"
    for kind, value in {"right": right, AS_TORCH: twin.after(clipped(mean, norm + 1e-6))}.items():
        if torch.allclose(found, value, rtol=0, atol=ROUNDING):
            return kind
    candidates = {
        "nothing": before,
        "not gathered": stale,
        "the norm of the sum": twin.after(clipped(mean, norm * n)),
        "divided twice": twin.after(clipped(mean / n, norm / n)),
        "the sum": twin.after(clipped(mean * n, norm * n)),
        "the sum, clipped as the mean": twin.after(clipped(mean, norm) * n),
        "own": twin.after(clipped(own, own.norm())),
        "own, not clipped": twin.after(own),
        "own, each its shard": twin.after(clipped(mixed, mixed.norm())),
        "own, each its shard, divided": twin.after(clipped(mixed / n, mixed.norm() / n)),
        "not clipped": twin.after(mean),
        "the sum, not clipped": twin.after(mean * n),
        "clipped by shards": twin.after(mean * by_shard),
        "clipped by shards, padding too": twin.after(mean * by_padded),
        "padding": twin.after(clipped(mean, whole.norm())),
        "the sum of norms": twin.after(clipped(mean, sum(real))),
        "always scaled": twin.after(mean * MAX_NORM / norm),
        "the square": twin.after(clipped(mean, norm**2)),
        "each number": twin.after(mean.clamp(-MAX_NORM, MAX_NORM)),
        "a new optimizer": twin.anew(clipped(mean, norm)),
    }
    if twin.params.grad is not None:
        both = mean + twin.params.grad
        candidates["added up"] = twin.after(clipped(both, both.norm()))
    for kind, value in candidates.items():
        if alike(found, value) and not alike(value, right):  # some mistakes change nothing here
            return kind
    return "something else"


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=SIMILAR)


def judge_steps(runs, numbers, optimizer):
    n = len(runs)
    size = -(-numbers // n)
    for rank, run in enumerate(runs):
        if run["step"]:
            raise NotRight(
                f"rank {rank} returned {run['step']}",
                "Return the function that makes one step: step(gradients) -> norm.",
            )
    for k in range(STEPS):
        for rank, run in enumerate(runs):
            judge_step(run["reports"][k], k, rank, numbers, optimizer)
    for rank, run in enumerate(runs):
        if not run["optimizers"]:
            raise NotRight(
                f"right, but rank {rank} made no optimizer",
                "Call make_optimizer with a list of the tensors that this rank updates.",
            )
        shard = 8 * MOMENTS[optimizer] * size
        if run["state"] > shard + SMALL:
            raise NotRight(
                f"right, but rank {rank}'s {optimizer} holds {run['state']} bytes of state; the "
                f"state of a shard of {size} numbers has {shard} bytes",
                "The optimizer's state is not sharded, so the rank saves nothing. Which numbers "
                "does this rank update, and which tensor must make_optimizer be given?",
            )
        reduced = max(report["reduced"] for report in run["reports"])
        if n > 1 and reduced > SMALL:
            raise NotRight(
                f"right, but rank {rank} used all-reduces of {reduced} bytes in a step",
                "An all-reduce gives each rank the whole sum, and sends twice the bytes. Which "
                "half of it gives each rank the sum of its own shard?",
            )


def judge_step(report, step, rank, numbers, optimizer):
    where = f"{numbers} numbers, {optimizer}, step {step + 1}, rank {rank}"
    kind, norm = report["kind"], report["norm"]
    if not kind.startswith("right"):
        raise NotRight(f"{where}: the parameters are not one process's", hint_step(kind))
    right = report["norms"]["right"]
    if isinstance(norm, str) or not abs(norm - right) <= 1e-9 * right:  # NaN is not right
        said = norm if isinstance(norm, str) else f"{norm:.6g}"
        raise NotRight(
            f"{where}: the parameters are right; step returned {said}, the norm is {right:.6g}",
            hint_norm(norm, report["norms"], report["own"]),
        )
