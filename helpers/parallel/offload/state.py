"""AdamW's state of some tensors in a file: updates pass through few buffers of a fixed size."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from os import PathLike

import torch
from torch.optim.adamw import adamw

from helpers.parallel.offload.blocks import BlockFile, Stream
from helpers.parallel.offload.versions import Versions
from helpers.parallel.optimizer import OptimizerConfig
from helpers.precision.fused_adam.loop import compiled_loop

SLOTS = "parameters", "exp_avg", "exp_avg_sq"  # in a block, one after the other
MOMENTS = SLOTS[1:]


class StateOnDisk:
    """Parameters, and first and second moments, in two files that are written in turn.

    The tensors lie in a row of numbers, one after the other. A block of the file has the same range
    of this row from each slot.

    Args:
        tensors: by name, contiguous, of one dtype. An update writes the new parameters there too.
        copies: those of them that only the file has between updates: `free` frees their memory.
        folder, rank: as for Versions.
        block: bytes of a block.
        buffers: blocks in memory.

    Attributes:
        steps: the number of updates of each tensor.
        stream: the buffers; it counts bytes, and traces the last pass.
        versions: the files.

    Raises:
        ValueError: the tensors have several dtypes.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        copies: Sequence[torch.Tensor],
        folder: str | PathLike,
        rank: int,
        block: int,
        buffers: int,
    ):
        if len(kinds := {tensor.dtype for tensor in tensors.values()}) != 1:
            raise ValueError(f"a file has numbers of one dtype, but the parameters have {kinds}")
        [self.dtype] = kinds
        self.tensors, self.copies = dict(tensors), list(copies)
        self.flat = {name: tensor.detach().view(-1) for name, tensor in tensors.items()}
        self.numbers = block // (len(SLOTS) * self.dtype.itemsize)  # of each slot in a block
        sizes = {name: flat.numel() for name, flat in self.flat.items()}
        self.blocks = blocks_of(sizes, self.numbers)
        self.steps = dict.fromkeys(tensors, 0)
        facts = {"names and sizes": list(map(list, sizes.items())), "dtype": str(self.dtype)}
        self.stream = Stream(block, buffers)
        self.versions = Versions(folder, rank, block, len(self.blocks), facts)

    @torch.no_grad()
    def run(self, change: Callable, source: BlockFile | None, target: BlockFile | None = None):
        """Pass all blocks through the buffers, as Stream does, piece by piece of the tensors.

        Args:
            change: `change(name, there, p, m, v)`: a tensor's name, the piece's place in the flat
                tensor, and the piece's three slots in the buffer.
        """

        def each(k, buffer):
            numbers = torch.frombuffer(buffer, dtype=self.dtype)[: len(SLOTS) * self.numbers]
            slots = numbers.view(len(SLOTS), -1)
            for name, there, here in self.blocks[k]:
                change(name, there, *slots[:, here])

        return self.stream.run(each, len(self.blocks), source, target)

    def update(
        self,
        gradients: Mapping[str, torch.Tensor],
        rule: OptimizerConfig,
        decay: Mapping[str, float],
        note: dict,
    ):
        """Make one step of AdamW, in the file and in the tensors. There is a version: see `write`.

        Args:
            gradients: by name; a tensor without a gradient does not change.
            decay: each tensor's weight decay.
            note: plain data to keep with the new version.

        Raises:
            OSError: the disk refuses. Then files and tensors are those of the last whole step.
        """
        flat = {name: gradient.reshape(-1) for name, gradient in gradients.items()}
        steps = {name: step + (name in flat) for name, step in self.steps.items()}
        adamw_of = host_adamw(self.dtype)

        def change(name, there, p, m, v):
            if name in flat:
                g = flat[name][there].to("cpu")
                adamw_of(p, g, m, v, steps[name], rule.lr, rule.betas, rule.eps, decay[name])
            elif not self.tensors[name].requires_grad:
                p.copy_(self.flat[name][there])  # a router's balance changes without a gradient
            self.flat[name][there] = p

        self.allocate()
        before = self.versions.current["updates"]
        try:
            self.write_version(change, self.versions.source, before + 1, steps, note)
        except OSError as error:
            self.read_tensors()
            raise OSError(
                error.errno,
                f"update {before + 1} was not written to {self.versions.folder} "
                f"({error.strerror}): files and parameters are those of update {before}. Free some "
                "room, start again, and continue with recover()",
            ) from error

    def write(self, moments: Mapping[str, Mapping], note: dict):
        """Write the tensors, and these moments, as a new version. Missing moments are zeros."""
        steps = {name: int(moments.get(name, {}).get("step", 0)) for name in self.steps}

        def fill(name, there, p, *slots):
            p.copy_(self.flat[name][there])
            for key, slot in zip(MOMENTS, slots, strict=True):
                slot[:] = moments[name][key].reshape(-1)[there] if steps[name] else 0

        self.write_version(fill, None, max(steps.values()), steps, note)

    def write_version(self, change: Callable, source, updates: int, steps: dict, note: dict):
        """Pass all blocks through `change` to the other file, and make it the newest version."""
        sums = self.run(change, source, self.versions.target())
        self.versions.commit({"updates": updates, "steps": steps, "note": note}, sums)
        self.steps = steps

    def read_tensors(self):
        """Read the tensors from the newest version."""
        self.allocate()
        self.run(lambda name, there, p, *_: self.flat[name][there].copy_(p), self.versions.source)

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Read the moments into memory, by name and slot, as torch's AdamW has them."""
        found = {
            name: {
                "step": torch.tensor(float(step)),
                **{key: torch.zeros_like(self.tensors[name]) for key in MOMENTS},
            }
            for name, step in self.steps.items()
            if step
        }

        def take(name, there, p, *slots):
            if name in found:
                for key, slot in zip(MOMENTS, slots, strict=True):
                    found[name][key].view(-1)[there] = slot

        if found:
            self.run(take, self.versions.source)
        return found

    def free(self):
        """Free the memory of the copies, once the file has them."""
        if self.versions.current is not None:
            for tensor in self.copies:
                tensor.untyped_storage().resize_(0)

    def allocate(self):
        """Give the copies memory again, without values."""
        for tensor in self.copies:
            tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())

    def reload(self):
        """Read the copies, if they are freed."""
        if any(t.numel() and not t.untyped_storage().size() for t in self.copies):
            self.read_tensors()

    def use(self, place: int) -> dict:
        """Continue from a whole version: see `Versions.whole`. Returns its note."""
        self.versions.use(place)
        self.steps = dict(self.versions.current["steps"])
        self.read_tensors()
        return self.versions.current["note"]

    def close(self):
        self.stream.close()
        self.versions.close()


def blocks_of(sizes: Mapping[str, int], numbers: int) -> list[list[tuple[str, slice, slice]]]:
    """Cut tensors that lie in a row into blocks of so many numbers.

    Returns:
        For each block its pieces: the tensor's name, the piece in the tensor, and in the block.
    """
    blocks: list[list] = [[]]
    filled = 0  # of the last block
    for name, size in sizes.items():
        start = 0
        while start < size:
            if filled == numbers:
                blocks.append([])
                filled = 0
            stop = min(start + numbers - filled, size)
            here = slice(filled, filled + stop - start)
            blocks[-1].append((name, slice(start, stop), here))
            start, filled = stop, here.stop
    return blocks


@cache
def host_adamw(dtype: torch.dtype) -> Callable:
    """The update of flat tensors on the host, with the arguments of `compiled_loop`'s.

    It is the loop in C for float32, where there is a compiler, and PyTorch's own otherwise.
    """
    if dtype is torch.float32 and shutil.which("cc"):
        return compiled_loop()

    def update(p, g, m, v, step, lr, betas, eps, weight_decay):
        (beta1, beta2), done = betas, torch.tensor(step - 1.0)
        rates = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        adamw([p], [g], [m], [v], [], [done], amsgrad=False, maximize=False, fused=True, **rates)

    return update
