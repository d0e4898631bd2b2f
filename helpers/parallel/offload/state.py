"""AdamW's state of some tensors in a file: updates pass through few buffers of a fixed size."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from os import PathLike

import torch
from torch.optim.adamw import adamw

from helpers.parallel.offload.blocks import Stream
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
        apart: those of them that `free` may free between updates: only the file has them then.
        folder, rank: as for Versions.
        block: bytes of a block.
        buffers: blocks in memory.

    Attributes:
        steps: the number of updates of each tensor.
        stream: the buffers; it counts bytes, and has the last pass as spans.
        versions: the files.

    Raises:
        ValueError: the tensors have several dtypes.
        OSError: as for Versions.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        apart: Sequence[torch.Tensor],
        folder: str | PathLike,
        rank: int,
        block: int,
        buffers: int,
    ):
        if len(kinds := {tensor.dtype for tensor in tensors.values()}) != 1:
            raise ValueError(f"a file has numbers of one dtype, but the parameters have {kinds}")
        [self.dtype] = kinds
        self.tensors, self.apart = dict(tensors), list(apart)
        self.flat = {name: tensor.detach().view(-1) for name, tensor in tensors.items()}
        self.numbers = block // (len(SLOTS) * self.dtype.itemsize)  # of each slot in a block
        self.blocks = blocks_of({n: flat.numel() for n, flat in self.flat.items()}, self.numbers)
        self.steps = dict.fromkeys(tensors, 0)
        sizes = [[name, flat.numel()] for name, flat in self.flat.items()]
        facts = {"names and sizes": sizes, "dtype": str(self.dtype)}
        self.stream = Stream(block, buffers)
        self.versions = Versions(folder, rank, block, len(self.blocks), facts)

    def update(
        self,
        gradients: Mapping[str, torch.Tensor],
        rule: OptimizerConfig,
        decay: Mapping[str, float],
        note: dict,
    ):
        """Make one step of AdamW, in the file and in the tensors.

        Args:
            gradients: by name; a tensor without a gradient does not change.
            decay: each tensor's weight decay.
            note: plain data to keep with the new version.

        Raises:
            OSError: the disk refuses. Then files and tensors are those of the last whole step.
        """
        if self.versions.current is None:
            self.write({}, note)  # the state before the first update
        flat = {name: gradient.reshape(-1) for name, gradient in gradients.items()}
        steps = {name: step + (name in flat) for name, step in self.steps.items()}
        adamw_of, options = host_adamw(self.dtype), {"betas": rule.betas, "eps": rule.eps}

        def change(k, p, m, v):
            for name, there, here in self.blocks[k]:
                if name in flat:
                    g = flat[name][there].to("cpu")
                    own = {**options, "lr": rule.lr, "weight_decay": decay[name]}
                    adamw_of(p[here], g, m[here], v[here], steps[name], **own)
                self.flat[name][there] = p[here]

        self.make_room()
        before = self.versions.current["updates"]
        try:
            self.pass_to_disk(change, self.versions.source, before + 1, steps, note)
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

        def change(k, p, m, v):
            for name, there, here in self.blocks[k]:
                p[here] = self.flat[name][there]
                for values, slot in zip((m, v), MOMENTS, strict=True):
                    values[here] = moments[name][slot].reshape(-1)[there] if steps[name] else 0

        self.pass_to_disk(change, None, max(steps.values()), steps, note)

    @torch.no_grad()
    def pass_to_disk(self, change: Callable, source, updates: int, steps: dict, note: dict):
        """Pass all blocks through `change(k, p, m, v)` to the other file, and commit it."""
        target = self.versions.target()
        sums = self.stream.run(self.slots(change), len(self.blocks), source, target)
        self.versions.commit({"updates": updates, "steps": steps, "note": note}, sums)
        self.steps = steps

    @torch.no_grad()
    def read(self, take: Callable):
        """Pass all blocks of the newest version through `take(k, p, m, v)`."""
        self.stream.run(self.slots(take), len(self.blocks), self.versions.source)

    def slots(self, change: Callable) -> Callable:
        """Give `change` a buffer's slots as flat tensors."""

        def inside(k, buffer):
            numbers = torch.frombuffer(buffer, dtype=self.dtype)[: len(SLOTS) * self.numbers]
            return change(k, *numbers.view(len(SLOTS), -1))

        return inside

    def read_tensors(self):
        """Read the tensors from the newest version."""
        self.make_room()

        def take(k, p, m, v):
            for name, there, here in self.blocks[k]:
                self.flat[name][there] = p[here]

        self.read(take)

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Read the moments into memory, by name and slot, as torch's AdamW has them."""
        found = {
            name: {
                "step": torch.tensor(float(step)),
                **{slot: torch.zeros_like(self.tensors[name]) for slot in MOMENTS},
            }
            for name, step in self.steps.items()
            if step
        }

        def take(k, p, *moments):
            for name, there, here in self.blocks[k]:
                for slot, values in zip(MOMENTS, moments, strict=True):
                    if name in found:
                        found[name][slot].view(-1)[there] = values[here]

        if found:
            self.read(take)
        return found

    def free(self):
        """Free the memory of the tensors that are apart, once the file has them."""
        if self.versions.current is not None:
            for tensor in self.apart:
                tensor.untyped_storage().resize_(0)

    def make_room(self):
        """Give these tensors memory again, without values."""
        for tensor in self.apart:
            tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())

    def back(self):
        """Read the tensors that are freed."""
        if any(t.numel() and not t.untyped_storage().size() for t in self.apart):
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
    place = 0
    for name, size in sizes.items():
        start = 0
        while start < size:
            k, inside = divmod(place, numbers)
            here = min(numbers - inside, size - start)
            if k == len(blocks):
                blocks.append([])
            blocks[k].append((name, slice(start, start + here), slice(inside, inside + here)))
            start, place = start + here, place + here
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
