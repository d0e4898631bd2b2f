"""Selective copying: which mixers can choose what to remember?

    python -m helpers.training.selective_copying --to helpers/training/selective_copying.csv

A sequence has letters at random places among noise, and then as many markers. At the markers the
model must write the letters, in their order. So it must ignore the noise, however long the noise is
between two letters. Three models of about the same size learn the task: attention, Mamba, and the
same Mamba without selection.

B  sequences        T  tokens        E  channels        N  numbers of state for each channel

Source: the task is that of Gu and Dao 2023, arXiv:2312.00752, sections 3.1 and 4.1.1, but smaller.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import Positions
from helpers.models.caches.cache import BlockCache
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT
from helpers.models.initialization import build
from helpers.models.mamba import Mamba
from helpers.models.settings import MambaSettings
from helpers.training.schedule import Cosine

KINDS = ("attention", "fixed", "selective")
RATES = {"attention": 5e-3, "fixed": 1e-2, "selective": 1e-2}  # the best of a few
COLUMNS = ("kind", "seed", "step", "places", "right")
NOISIER = (2, 4)  # times as many places as in training
TESTED = 256  # sequences
COMMITTED = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, kw_only=True)
class Task:
    """The sizes of the task.

    Attributes:
        letters: different letters.
        copied: letters of a sequence, which are to be copied.
        places: tokens in which these letters are; the others are noise.

    Raises:
        ValueError: the letters have no room.
    """

    letters: int = 16
    copied: int = 4
    places: int = 32

    def __post_init__(self):
        if not 0 < self.copied <= self.places:
            raise ValueError(
                f"{self.copied} letters to copy do not fit into {self.places} places: copy from 1 "
                "letter to as many as there are places"
            )

    @property
    def noise(self) -> int:
        """The token without meaning."""
        return self.letters

    @property
    def marker(self) -> int:
        """The token that asks for the next letter."""
        return self.letters + 1

    @property
    def length(self) -> int:
        """T."""
        return self.places + self.copied

    def batch(
        self, sequences: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw tokens (B, T) and targets (B, T); a target is -100 where none is asked."""
        shape = (sequences, self.copied)
        letters = torch.randint(self.letters, shape, generator=generator)
        order = torch.rand(sequences, self.places, generator=generator).argsort(1)
        where = order[:, : self.copied].sort(1).values
        tokens = torch.full((sequences, self.places), self.noise).scatter(1, where, letters)
        tokens = torch.cat([tokens, torch.full(shape, self.marker)], 1)
        nothing = torch.full((sequences, self.places), -100)
        return tokens, torch.cat([nothing, letters], 1)


class Fixed(nn.Module):
    """Mamba without selection: Δ, B and C are parameters, the same for each token.

    Such a layer is linear and time-invariant (LTI), so it is also a convolution, whose kernel is as
    long as the sequence: K[t] = Σ_n C exp(t Δ A) Δ B. Everything else is Mamba's: the short
    convolution, the gate, the decays. B and C have as many numbers as Mamba's matrices.

    Source: Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space
    Models", arXiv:2206.11893, section 3 (the kernel), section 4 (B begins as 1, C is normal).
    """

    def __init__(self, mamba: Mamba):
        super().__init__()
        for name in ("fan_out", "inner", "gate", "convolution", "A_log", "skip", "out"):
            setattr(self, name, getattr(mamba, name))
        size = self.A_log.shape[0] ** 0.5  # Mamba's C has a standard deviation of 1 / size
        self.steps = mamba.delta.bias
        self.B = nn.Parameter(torch.ones_like(self.A_log))  # (E, N)
        self.C = nn.Parameter(size * mamba.C.weight.detach().t())  # (E, N)

    def forward(self, x: torch.Tensor, positions: Positions, cache: BlockCache | None = None):
        if cache is not None:
            raise NotImplementedError("the fixed mixer has no cache: give it whole sequences")
        u, gate = self.fan_out(x, self.inner, self.gate)  # (B, T, E)
        u = functional.silu(self.convolution(u)[0])
        y = convolve(u, self.kernel(u.shape[1])) + self.skip * u
        return self.out(y * functional.silu(gate))

    def kernel(self, tokens: int) -> torch.Tensor:
        """Compute K (T, E): what an input of 1 adds to each later output."""
        delta = functional.softplus(self.steps)[:, None]  # (E, 1)
        times = torch.arange(tokens, dtype=delta.dtype, device=delta.device)[:, None, None]
        decays = torch.exp(-times * delta * self.A_log.exp())  # (T, E, N)
        return (decays * (self.C * delta * self.B)).sum(-1)


def convolve(u: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Compute y[t] = Σ_s K[s] u[t-s] by Fourier transforms. u is (B, T, E), the kernel (T, E)."""
    tokens = u.shape[1]
    size = 2 * tokens  # no output wraps around
    product = torch.fft.rfft(u, size, dim=1) * torch.fft.rfft(kernel, size, dim=0)
    return torch.fft.irfft(product, size, dim=1)[:, :tokens]


def make(kind: str, task: Task, width: int = 32, seed: int = 0) -> GPT:
    """Build a model of two blocks: "attention", "fixed" or "selective".

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}; choose one of {', '.join(KINDS)}")
    shape = {"vocab": task.letters + 2, "context": 8 * task.length, "width": width, "layers": 2}
    if kind == "attention":
        config = GPTConfig(**shape, heads=4, hidden=width // 4 * 7, positions="rotary")
        return build(config, seed)
    one = {"mixer": "mamba", "mlp": "none", "positions": "none"}
    model = build(GPTConfig(**shape, **one, mamba=MambaSettings(state=16)), seed)
    if kind == "fixed":
        for block in model.blocks.values():
            block.mamba = Fixed(block.mamba)
    return model


@torch.no_grad()
def right(model: GPT, task: Task, sequences: int = TESTED, seed: int = 10_000) -> float:
    """Measure the share of letters that the model copies right, on sequences of its own."""
    tokens, targets = task.batch(sequences, torch.Generator().manual_seed(seed))
    copied = model(tokens)[:, -task.copied :].argmax(-1)
    return (copied == targets[:, -task.copied :]).double().mean().item()


def learn(
    model: GPT,
    task: Task,
    steps: int,
    *,
    batch: int = 32,
    lr: float = 5e-3,
    seed: int = 0,
    every: int = 50,
) -> Iterator[tuple[int, float]]:
    """Train with Adam on new sequences; yield (step, share of letters copied right)."""
    generator = torch.Generator().manual_seed(seed)
    schedule = Cosine(peak=lr, steps=steps, warmup=min(50, steps), final=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
    for step in range(steps):
        if step % every == 0:
            yield step, right(model, task)
        for group in optimizer.param_groups:
            group["lr"] = schedule(step)
        tokens, targets = task.batch(batch, generator)
        logits = model(tokens)[:, -task.copied :].flatten(0, 1)
        loss = functional.cross_entropy(logits, targets[:, -task.copied :].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    yield steps, right(model, task)


def write(path: Path | str, rows):
    """Write rows of COLUMNS as a table."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows((*row, f"{share:.4f}") for *row, share in rows)


def longer_run() -> dict[str, list[list[tuple[int, float]]]]:
    """Read the committed run: for each kind, for each seed, (step, share of letters right)."""
    runs = {kind: {} for kind in KINDS}
    for kind, seed, step, places, share in read():
        if places == Task().places:
            runs[kind].setdefault(seed, []).append((step, share))
    return {kind: list(seeds.values()) for kind, seeds in runs.items()}


def with_more_noise() -> dict[str, dict[int, list[float]]]:
    """Read, for each kind, {places: share of letters right by seed} of the trained models."""
    found = {kind: {} for kind in KINDS}
    rows = read()
    last = max(step for _, _, step, *_ in rows)
    for kind, _, step, places, share in rows:
        if step == last:
            found[kind].setdefault(places, []).append(share)
    return found


def read() -> list[tuple[str, int, int, int, float]]:
    """Read the rows of the committed run."""
    with open(COMMITTED, newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    return [(kind, int(a), int(b), int(c), float(share)) for kind, a, b, c, share in rows]


def main(arguments=None):
    """Train each kind with each seed, and write how many letters it copied right on the way."""
    parser = argparse.ArgumentParser(prog="python -m helpers.training.selective_copying")
    parser.add_argument("--to", type=Path, required=True, help="the table to write, a .csv")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    task, rows = Task(), []
    for kind in KINDS:
        for seed in range(given.seeds):
            model = make(kind, task, seed=seed)
            for step, share in learn(model, task, given.steps, lr=RATES[kind], seed=seed):
                rows.append((kind, seed, step, task.places, share))
            for more in NOISIER:  # trained with less noise
                noisier = replace(task, places=more * task.places)
                rows.append((kind, seed, given.steps, noisier.places, right(model, noisier)))
            print(f"{kind}, seed {seed}: {share:.0%} of the letters right", flush=True)
    write(given.to, rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
