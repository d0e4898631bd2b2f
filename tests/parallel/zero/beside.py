"""What an owner of ZeRO does in a step, as lines in order; and a transport without other ranks."""

from dataclasses import replace
from functools import partial

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import DirectTransport
from helpers.data.batch import random_batch
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.film import filming
from tests.parallel.beside import ODD


class Telling(DirectTransport):
    """Add the start and the end of each message to `told`, beside the film's events."""

    def __init__(self, group):
        super().__init__(group)
        self.told: list = []

    def all_gather(self, every, own):
        return Told(super().all_gather(every, own), self, f"gather {every.numel()}")

    def reduce_scatter(self, own, every):
        return Told(super().reduce_scatter(own, every), self, f"scatter {every.numel()}")


class Told:
    """A message that is under way; its transport tells when it starts and when it has arrived."""

    def __init__(self, work, transport, what):
        self.work, self.transport, self.what = work, transport, what
        transport.told.append(f"> {what}")

    def wait(self):
        self.work.wait()
        self.transport.told.append(f"< {self.what}")


def story(owner, act) -> list[str]:
    """What an owner with a Telling transport does in `act()`, in order; each event once in a row.

    A line "blocks.0 gradients filling" is an event of the film, "> scatter 36" starts a message
    with a row of 36 numbers, and "< scatter 36" waits for it.
    """
    with filming(owner) as film:
        opened = len(film.events)
        owner.transport.told = film.events
        act()
        owner.transport.told = []
    lines = [
        event if isinstance(event, str) else f"{event['unit']} {event['kind']} {event['state']}"
        for event in film.events[opened:]
    ]
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line != before]


UNTIED = replace(ODD, layers=1, tied=False)
ROWS = {"embedding": 396, "blocks.0": 1752, "norm": 12, "head": 396}  # its units' numbers


def told(worker, owner, micro_batches=1, config=None, transform=plain):
    """The stories of the first step of UNTIED, of the second step, and of an evaluation."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    recipe = Recipe(owner=partial(owner, transport=Telling), transform=transform)
    trainer = recipe(config or UNTIED, 0, mesh, micro_batches=micro_batches)
    batch = random_batch(worker.rank, 2, 8, 33)
    step, evaluation = partial(trainer.step, batch), partial(trainer.evaluate, batch)
    found = [story(trainer.owner, act) for act in (step, step, evaluation)]
    trainer.close()
    return found


def lines(text: str) -> list[str]:
    """The lines of a story, written with several in a row."""
    return [line.strip() for row in text.strip().splitlines() for line in row.split(";")]


UPDATED = [
    f"{unit} {kind} {state}"
    for state in ("updating", "held")
    for unit in ROWS
    for kind in ("parameters", "optimizer", "gradient shard")
]
BEGUN = [f"{unit} gradient shard freed" for unit in ROWS]
PUBLISHED = [f"{arrow} gather {numbers}" for arrow in "><" for numbers in ROWS.values()]


class Late:
    """The transport of one of two ranks in one process. A message arrives when it is waited for.

    Both ranks have this rank's shard; the other rank adds nothing to a sum.
    """

    size, lasting = 2, False

    def __init__(self, rank=0):
        self.rank, self.under_way = rank, 0

    def empty(self, numel, dtype, device):
        return torch.full((numel,), 7.0, dtype=dtype, device=device)

    def all_gather(self, every, own):
        return Arriving(self, every, own)

    def reduce_scatter(self, own, every):
        return Arriving(self, own, every[self.rank])


class Arriving:
    def __init__(self, transport, into, sent):
        self.transport, self.into, self.sent = transport, into, sent
        transport.under_way += 1

    def wait(self):
        self.transport.under_way -= 1
        there, needed = self.into.untyped_storage().nbytes(), self.into.nbytes
        assert there >= needed  # before pytest would print freed memory
        self.into.copy_(self.sent.expand_as(self.into))
