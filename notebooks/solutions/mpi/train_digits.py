"""Data parallel by hand in MPI: a classifier of handwritten digits.

    mpiexec -n 2 python solutions/mpi/train_digits.py

Four steps, as with any other library: seed, broadcast, shard, all-reduce. Rank 0 prints a line of
JSON for each training step. The loss does not depend on the number of ranks, because the global
batch is always the same.
"""

import json

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy

from helpers.data.digits import digits, tensors
from helpers.data.order import Order

STEPS, BATCH, RATE = 30, 90, 0.5

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
torch.set_num_threads(1)
torch.manual_seed(
    rank
)  # Seed: the ranks draw different numbers; the broadcast makes them equal

images, labels = tensors(digits("train"))
images = images.flatten(1).double()  # (rows, 64)
model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()

# Broadcast: every rank starts from rank 0's parameters.
for parameter in model.parameters():
    world.Bcast(parameter.detach().numpy(), root=0)

# Shard: one order on all ranks, from a common seed; each rank takes its own part of a batch.
order = Order(len(images), batch=BATCH, seed=0)

for step in range(STEPS):
    mine = order.shard(step, rank, size)
    loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum") / BATCH
    model.zero_grad()
    loss.backward()

    # All-reduce: copy all gradients into one flat buffer and sum it over the ranks.
    flat = torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters()]
    ).numpy()
    world.Allreduce(MPI.IN_PLACE, flat, op=MPI.SUM)

    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = torch.from_numpy(flat[start : start + parameter.numel()])
            parameter -= RATE * gradient.view_as(parameter)
            start += parameter.numel()

    total = np.array([loss.item()])
    world.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    if rank == 0:
        print(json.dumps({"step": step, "loss": total[0], "ranks": size}), flush=True)
