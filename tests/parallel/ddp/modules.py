"""Small modules with typical problems of data parallel, their data, and a transport of one rank."""

import torch
from torch import nn

from helpers.comm.regions import Ready


class Plain(nn.Module):
    """Three layers of unequal size, so that buckets end inside a layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)
        )

    def forward(self, x):
        return self.layers(x)


class TiedAndFrozen(nn.Module):
    """A weight with two names, a frozen weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(7, 7)
        self.outer = nn.Linear(7, 7)
        self.outer.weight = self.inner.weight
        self.frozen = nn.Linear(7, 7)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(7, 3)
        self.register_buffer("shift", torch.randn(7))

    def forward(self, x):
        return self.head(
            torch.tanh(self.frozen(self.outer(torch.tanh(self.inner(x + self.shift)))))
        )


class Branching(nn.Module):
    """Two branches: rows with a positive first number use one branch, other rows the other."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(7, 5), nn.Linear(5, 3)
        self.left, self.right = nn.Linear(5, 5), nn.Linear(5, 5)
        self.never = nn.Linear(5, 5)

    def forward(self, x):
        hidden = torch.tanh(self.stem(x))
        positive = x[:, 0] > 0
        if positive.any():
            hidden = torch.where(positive[:, None], self.left(hidden), hidden)
        if not positive.all():
            hidden = torch.where(positive[:, None], hidden, self.right(hidden))
        return self.head(hidden)


MODULES = {"plain": Plain, "tied": TiedAndFrozen, "branching": Branching}


def make(kind: str, seed: int) -> nn.Module:
    """Make a module in float64 from the seed only, without changing the process's generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODULES[kind]().double()


def data(rows: int, step: int):
    """(x, y) of one global batch. In Branching, every second row uses the left branch.

    In step 2, all rows use the left branch. Two ranks get the rows in turn, so in the other steps
    each rank uses only one branch.
    """
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 7, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].abs()
    if step != 2:
        x[1::2, 0] *= -1
    return x, torch.randn(rows, 3, generator=generator, dtype=torch.float64)


def gradients(module) -> dict[str, torch.Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}


class Alone:
    """The transport of one rank, in this process."""

    size, rank = 1, 0

    def empty(self, numel, dtype, device):
        return torch.empty(numel, dtype=dtype, device=device)

    def all_reduce(self, buffer):
        return Ready(buffer)

    def broadcast(self, buffer, source=0):
        pass


class Third(Alone):
    """The transport of rank 1 of 3. The k-th all-reduce adds k to each number, when waited for."""

    size, rank = 3, 1

    def __init__(self):
        self.sent, self.under_way = [], 0

    def all_reduce(self, buffer):
        self.sent.append(buffer.clone())
        self.under_way += 1
        return Adding(self, buffer, len(self.sent))


class Adding:
    def __init__(self, transport, buffer, number):
        self.transport, self.buffer, self.number = transport, buffer, number

    def wait(self):
        self.transport.under_way -= 1
        self.buffer += self.number


def added_in_two_steps(replica, average, **options) -> list[dict[str, set[float]]]:
    """What the messages of each of two steps added to each gradient, of two micro-batches a step.

    A bucket's gradients get the same number, and gradients of two buckets get two numbers.
    """
    transport, found = Third(), []
    ddp = replica(make("plain", 0), transport, same=True, average=average, **options)
    for step in range(2):
        alone, sent = make("plain", 0), len(transport.sent)
        ddp.zero_grad()
        for last in (False, True):
            x, y = data(5, 2 * step + last)
            for module in (ddp, alone):
                loss = nn.functional.mse_loss(module(x), y)
                if module is alone or last:
                    loss.backward()
                else:
                    with ddp.no_sync():
                        loss.backward()
                        ddp.synchronize()
            assert last or len(transport.sent) == sent
        ddp.synchronize()
        assert not transport.under_way
        own = {name: p.grad / (3 if average else 1) for name, p in alone.named_parameters()}
        ours = gradients(ddp.module)
        found.append({n: set((ours[n] - own[n]).flatten().round(decimals=9).tolist()) for n in own})
    ddp.close()
    return found
