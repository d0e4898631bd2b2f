"""Our own DDP over MPI: a small Transformer on text.

    mpiexec -n 2 python mpi/train_gpt.py

`DDP` asks its transport for two operations, a sum and a broadcast, so MPI can replace gloo or NCCL.
Rank 0 prints a line of JSON for each step.
"""

import json

import torch

from helpers.comm.mpi import MPITransport
from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.parallel.ddp.overlapped import DDP

STEPS, BATCH, LENGTH = 20, 6, 32

transport = MPITransport()
torch.set_num_threads(1)

config = GPTConfig(context=LENGTH, width=32, layers=2, heads=4)
model = build(config, seed=transport.rank, dtype=torch.float64)  # DDP copies rank 0's
ddp = DDP(model, transport, average=False, bucket_cap_mb=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

blocks = pack("python", length=LENGTH)
source = Source(blocks, Order(len(blocks), BATCH, seed=0))

for step in range(STEPS):
    batch = source.shard(step, transport.rank, transport.size)
    optimizer.zero_grad()
    loss, _ = loss_sum(ddp(batch.tokens), batch.targets)
    loss = loss / (BATCH * LENGTH)  # of all ranks: so the gradients sum to the mean's
    loss.backward()
    ddp.synchronize()
    optimizer.step()

    total = loss.detach().reshape(1)
    transport.all_reduce(total).wait()
    if transport.rank == 0:
        print(
            json.dumps({"step": step, "loss": total.item(), "ranks": transport.size}),
            flush=True,
        )
