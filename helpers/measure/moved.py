"""Count the bytes that PyTorch's operators read from memory and write to it.

Each operator reads its tensors and writes its result, so a chain of operators moves the same
numbers again and again. The count assumes that nothing stays in a cache from one operator to the
next, as for tensors larger than the caches.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# They do not read what they change, or what the result is like; memory alone is not written.
OVERWRITE = re.compile(r"::(_foreach_)?(copy|zero|fill|normal|uniform|bernoulli|random)_$")
MAKES = re.compile(r"::new_|_like$")
ROWS = re.compile(r"::(embedding|index|index_select|gather|take)$")  # of their first tensor
PUTS = re.compile(r"::_?(index_put|index|scatter)_((add|copy|fill|reduce|impl)_)?$")  # into it
READS = {"index_put": torch.ops.aten.index, "index": torch.index_select, "scatter": torch.gather}
ALLOCATES = re.compile(r"::(new_)?empty|::resize_$")


@dataclass(frozen=True)
class Operator:
    """One call of an operator: its name, and the bytes that it reads and writes."""

    name: str
    read: int
    written: int


@dataclass(frozen=True)
class Moved:
    """The result of `moved_by`.

    Attributes:
        operators: all calls, in order. An operator on a list of tensors is one call.
    """

    operators: tuple[Operator, ...]

    @property
    def read(self) -> int:
        """Bytes."""
        return sum(operator.read for operator in self.operators)

    @property
    def written(self) -> int:
        """Bytes."""
        return sum(operator.written for operator in self.operators)

    @property
    def total(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def moved_by(call: Callable[[], object]) -> Moved:
    """Count what the operators of a call move. Views move nothing."""
    with Counter() as counter:
        call()
    return Moved(tuple(counter.operators))


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        schema = function._schema
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        changed = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
        if schema.name.startswith("aten::_fused_adam") and given.get("grad_scale") is None:
            changed.discard("grads")  # they are written only when they are unscaled
        written = [x for name in changed for x in tensors(given.get(name))]
        unread = {a.name for a in schema.arguments if a.is_out}
        if OVERWRITE.search(schema.name):
            unread = changed
        elif MAKES.search(schema.name):
            unread = given.keys()
        read = [x for name in given.keys() - unread for x in tensors(given[name])]
        if ROWS.search(schema.name):  # as many numbers as they return
            read = [x for x in read if x is not args[0]]
            read.append(min(args[0], result, key=lambda x: x.nbytes))
        if put := PUTS.search(schema.name):
            rows = READS[put[1]](*args[: 2 if put[1] == "index_put" else 3])
            written = [min(args[0], rows, key=lambda x: x.nbytes)]
            adds = put[3] in ("add", "reduce") or given.get("accumulate")
            read = [x for x in read if x is not args[0]] + (written if adds else [])
        made = [] if changed else tensors(result)
        moves = not function.is_view and schema.name != "aten::_unsafe_view"
        moves &= not ALLOCATES.search(schema.name)
        if (written or made) and moves:  # else a number goes to Python
            sizes = nbytes(read), nbytes(written) + nbytes(made)
            self.operators.append(Operator(schema.name.removeprefix("aten::"), *sizes))
        return result


def tensors(value) -> list[torch.Tensor]:
    """The tensors in an argument or a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for one in value for x in tensors(one)] if isinstance(value, list | tuple) else []


def nbytes(tensors) -> int:
    """Bytes of the tensors; a tensor that is there twice counts once."""
    places = {(x.data_ptr(), x.numel() * x.element_size()) for x in tensors}
    return sum(size for _, size in places)
