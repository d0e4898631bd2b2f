"""The small Transformer with Hugging Face Accelerate.

    python train_gpt.py                       two ranks, started by `launch`
    accelerate launch --cpu train_gpt.py      on a CPU it starts one process, and `launch` the ranks
    accelerate launch train_gpt.py            on GPUs it starts the ranks, and `launch` joins them

`prepare` wraps the model in PyTorch's DDP and leaves all else alone. Prints a line of JSON for
each step.
"""

import json

import torch
from accelerate import Accelerator

from helpers import launch
from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.gpt import GPTConfig, build, loss_sum

STEPS, BATCH, LENGTH = 20, 6, 32
CONFIG = GPTConfig(context=LENGTH, width=32, layers=2, heads=4)


def train(worker):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=worker.device.type == "cpu")
    model = build(
        CONFIG, seed=worker.rank, dtype=torch.float64
    )  # prepare makes them rank 0's
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)

    blocks = pack("python", length=LENGTH)
    source = Source(blocks, Order(len(blocks), BATCH, seed=0))
    losses = []
    for step in range(STEPS):
        batch = source.shard(step, worker.rank, worker.world_size).to(
            accelerator.device
        )
        optimizer.zero_grad()
        loss, _ = loss_sum(model(batch.tokens), batch.targets)
        loss = loss / (BATCH * LENGTH)
        accelerator.backward(loss * worker.world_size)  # DDP takes the mean over ranks
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), reduction="sum").item())
    return losses


if __name__ == "__main__":
    runs = launch(train, workers=2)
    for step, loss in enumerate(runs[0]):
        print(json.dumps({"step": step, "loss": loss, "ranks": len(runs)}), flush=True)
