"""Train a small Transformer on several ranks in plain PyTorch: DDP or ZeRO, with checkpoints.

    torchrun --standalone --nproc-per-node 2 distributed_plain_torch.py --stage 3 --folder runs/a
    accelerate launch distributed_plain_torch.py --stage 3     the same, on the GPUs of a machine
    python distributed_plain_torch.py                          one process

--stage 0: DistributedDataParallel        1: and ZeroRedundancyOptimizer
--stage 2: fully_shard, with whole parameters from forward to backward        3: fully_shard

Run the same command after a crash: the training continues from the last whole checkpoint. That run
may use another stage, and another number of ranks. `distributed.py` does the same with `helpers`.

SIGTERM to any rank is a notice: after the step, all ranks save, and leave with code 143. A
checkpoint with a changed byte is refused.

Prints lines of JSON: each step's loss, each checkpoint, the bytes that each rank holds; at the end
the tokens per second of the median step, and rank 0's peak memory: of its GPU, else the resident
peak. Load only your own checkpoints: PyTorch keeps a checkpoint's table of contents as a pickle.

B sequences, T tokens each, D numbers for a token
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

SEAL = "checksums.json"
LENGTH, BATCH, WIDTH, LAYERS, HEADS, RATE, WARM_UP = 64, 16, 64, 2, 4, 3e-3, 20


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        shape = {"dim_feedforward": 4 * WIDTH, "dropout": 0.0, "activation": "gelu"}
        make = partial(nn.TransformerEncoderLayer, WIDTH, HEADS, **shape)
        self.blocks = nn.ModuleList(
            make(batch_first=True, norm_first=True) for _ in range(LAYERS)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens, targets):  # (B, T) each -> the summed loss
        x = self.tokens(tokens) + self.places.weight  # (B, T, D)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, x.device, x.dtype)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        logits = self.head(self.norm(x))  # (B, T, 256)
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def read(name):
    """The bytes of a text as tokens: "python" (its manual), "wikitext" (from the Hub), or a file."""
    if name == "wikitext":
        from datasets import load_dataset

        data = load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1", split="train")
        text = "".join(data["text"])
    elif name == "python":
        from pydoc_data.topics import topics

        text = "\n".join(topics[title] for title in sorted(topics))
    else:
        text = Path(name).read_text()
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def batch(text, k, rank, ranks, device):
    """This rank's rows of global batch k: they depend on k alone, not on how the run came here."""
    blocks = (len(text) - 1) // LENGTH
    epoch, place = divmod(k, blocks // BATCH)
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(epoch))
    mine = order[place * BATCH : (place + 1) * BATCH][rank::ranks]
    rows = text[mine[:, None] * LENGTH + torch.arange(LENGTH + 1)].long().to(device)
    return rows[:, :-1], rows[:, 1:]


def distribute(model, stage):
    """Return what trains: the wrapped model, and its optimizer."""
    if stage < 2:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        for part in (*model.blocks, model):
            fully_shard(part, reshard_after_forward=stage == 3)
    if stage == 1:
        optimizer = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
    else:
        optimizer = torch.optim.AdamW
    return model, optimizer(model.parameters(), lr=RATE)


def inner(optimizer):
    """The AdamW of this rank: stage 1 wraps it."""
    return getattr(optimizer, "optim", optimizer)


def state_of(model, optimizer):
    """All that a later run needs, by the plain model's names: what this rank has of it."""
    kept, state = inner(optimizer).state, {}
    for name, p in getattr(model, "module", model).named_parameters():
        state[f"model.{name}"] = p.detach()
        for slot, value in kept.get(p, {}).items():
            state[f"optimizer.{slot}.{name}"] = value
    return state


def load(folder, model, optimizer):
    """Load the last whole checkpoint, if there is one; return the number of the next step."""
    whole = sorted(folder.glob("step-*"))
    if not whole:
        return 0
    for group in inner(optimizer).param_groups:
        for p in group["params"]:  # AdamW itself makes its state in the first step
            zeros = {slot: torch.zeros_like(p) for slot in ("exp_avg", "exp_avg_sq")}
            inner(optimizer).state[p] = {"step": torch.tensor(0.0), **zeros}
    dcp.load(state_of(model, optimizer), checkpoint_id=whole[-1])  # in place
    return int(whole[-1].name.removeprefix("step-"))


def save(folder, step, model, optimizer):
    """Write a checkpoint. It has its name only when it is whole: a rename happens, or does not."""
    part = folder / "part"
    dcp.save(state_of(model, optimizer), checkpoint_id=part)
    if dist.get_rank() == 0:  # `save` has returned, so every rank has written its part
        (part / SEAL).write_text(json.dumps(digests(part)))
        part.rename(folder / f"step-{step:08}")
        for old in sorted(folder.glob("step-*"))[:-1]:
            shutil.rmtree(old)
        say(saved=step)
    dist.barrier()  # no rank leaves before the checkpoint is whole


def digests(folder):
    """The SHA-256 of each file of a checkpoint, by name."""
    files = [path for path in folder.iterdir() if path.name != SEAL]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def damaged(folder):
    """The first file of the last checkpoint that is not as it was saved; None if all are."""
    for last in sorted(folder.glob("step-*"))[-1:]:
        try:
            saved = json.loads((last / SEAL).read_text())
            wrong = sorted(dict(saved.items() ^ digests(last).items()))
        except (OSError, ValueError):
            wrong = [SEAL]
        return last / wrong[0] if wrong else None


def say(**facts):
    """Print a line, on rank 0 or the rank that it names. One write: lines of ranks do not mix."""
    if dist.get_rank() == facts.get("rank", 0):
        print(json.dumps(facts) + "\n", end="", flush=True)


def nbytes(tensors):
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


def main(options):
    cuda, alone, device = torch.cuda.is_available(), {}, torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if "RANK" not in os.environ:  # no launcher
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", **alone)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text, folder = read(options.data), Path(options.folder)
    if wrong := damaged(folder):  # each rank looks
        say(refused=f"{wrong} is not as it was saved: its checksum is another")
        dist.barrier()  # the first rank to fail ends the others, and rank 0 has the reason
        return 1
    torch.manual_seed(0)  # the same first values on every rank
    model = Transformer().to(device, getattr(torch, options.dtype))
    model, optimizer = distribute(model, options.stage)
    first = load(folder, model, optimizer)
    if rank == 0:
        shutil.rmtree(folder / "part", ignore_errors=True)  # of a save that broke off
    notices, seconds = [], []
    signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
    for k in range(first, options.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(*batch(text, k, rank, ranks, device)) / (BATCH * LENGTH)
        (loss * ranks).backward()  # DDP and fully_shard average over ranks
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (k + 1) / WARM_UP)
        optimizer.step()
        sums = torch.stack([loss.detach(), loss.new_tensor(len(notices))])
        dist.all_reduce(sums)  # with a notice: all ranks stop after the same step
        loss, noticed = sums.tolist()  # on a GPU this waits for the step
        seconds.append(time.perf_counter() - began)
        say(step=k, loss=loss)
        done = k + 1
        if noticed or done == options.steps or done % options.save_every == 0:
            save(folder, done, model, optimizer)
        if noticed and done < options.steps:
            say(stopped=f"SIGTERM: {done} steps are saved; the same command continues")
            return 128 + signal.SIGTERM
    own, state = list(model.parameters()), state_of(model, optimizer)
    held = {
        "parameters": nbytes(own),
        "gradients": nbytes(p.grad for p in own if p.grad is not None),
        "optimizer": nbytes(t for name, t in state.items() if name.startswith("opt")),
    }
    say(rank=rank, bytes=held)
    unit = 1024 if sys.platform == "linux" else 1  # macOS counts bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if cuda:
        peak = torch.cuda.max_memory_allocated()
    if seconds:
        rate = round(BATCH * LENGTH / statistics.median(seconds))
        held["all"] = peak
        say(tokens_per_second=rate, per_rank=rate // ranks, peak_bytes=held)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, choices=range(4), default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--data", default="python", help="or wikitext, or a file")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    code = main(parser.parse_args())
    # Not in `main`: there a DDP still owns gloo's group, whose end could then wait for Python's lock.
    dist.destroy_process_group()
    sys.exit(code)
