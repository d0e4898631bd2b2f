"""Find the first operation that overflows or makes a NaN, forward or backward.

A loss of NaN tells that something went wrong, but not where. By then, NaN has spread through every
later operation.
"""

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from helpers.precision.exponents import Exponents, exponents
from helpers.precision.formats import format_of

TORCH = str(Path(torch.__file__).parent)
PACKAGE = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class Place:
    """A line of a program.

    Attributes:
        file: the file's path; a cell has a path of its own.
        line: the line's number, from 1.
        text: the line.
    """

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        cell = "ipykernel" in Path(self.file).parent.name  # whose files have random names
        where = "the cell" if cell else Path(self.file).name
        return f"line {self.line} of {where}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """The first operation whose result has an infinity or a NaN that its inputs do not have.

    Attributes:
        operation: its name, for example "softmax".
        kind: "inf" or "NaN".
        backward: whether it happened in the operation's backward.
        dtype: of the result.
        place: the line that called the operation in the forward.
        caller: the innermost line outside of `helpers`, for example in a cell; equal to `place` if
            the operation was called there.
        exponents: of the inputs' numbers.
        largest: the largest finite magnitude among the inputs.
    """

    operation: str
    kind: str
    backward: bool
    dtype: torch.dtype
    place: Place
    caller: Place
    exponents: Exponents
    largest: float

    def __str__(self) -> str:
        what = f"the backward of {self.operation}" if self.backward else self.operation
        lines = [f"{what} made {self.kind} in {self.dtype}", f"  {self.place}"]
        if self.caller != self.place:
            lines.append(f"  called from {self.caller}")
        limit = torch.finfo(self.dtype).max
        lines.append(
            f"  the largest input is {self.largest:.3g}; the largest number of the format is "
            f"{limit:.3g}"
        )
        return "\n".join(lines)

    def draw(self):
        """Draw the inputs' numbers by exponent, over the range of the result's format."""
        from helpers.plots.bar import histogram

        form, title = format_of(self.dtype), f"Inputs of {self.operation}"
        ranges = {form.name: form.exponents}
        return histogram({"inputs": self.exponents.counts}, ranges=ranges, title=title)


def find_overflow(function: Callable[..., object], *args, **kwargs) -> Overflow | None:
    """Run a function, and find the first operation that overflows or makes a NaN.

    Infinities that are given, such as the -inf of an attention mask, count as inputs. Other
    operations may turn them into finite numbers, as a softmax does.

    The function's result is dropped. An error of the function is raised only if no operation
    overflowed before it.

    Returns:
        None if every number is finite, in a backward inside of the function, too.
    """
    with Search() as search:
        try:
            function(*args, **kwargs)
        except Exception:
            if search.found is None:
                raise
    return search.found


class Search(TorchFunctionMode):
    """Look at each operation's inputs and results. `found` is the first that is not finite."""

    def __init__(self):
        super().__init__()
        self.found: Overflow | None = None
        self.known: set = set()  # nodes of the graph that have their hook

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(operation, "__name__", str(operation))
        if self.found is not None or name in ("backward", "__get__", "__set__"):
            if name == "backward":
                self.watch(None, args)  # what was computed before the search
            return operation(*args, **kwargs)
        inputs = args, {key: value for key, value in kwargs.items() if key != "out"}
        if in_place(name) or "out" in kwargs:  # `out` may be an input, too
            inputs = tree_map(keep, inputs)
        result = operation(*args, **kwargs)
        made = args[0] if name == "__setitem__" else result  # x[0] = y returns nothing
        kind = new_kind(state_of(inputs), state_of(made))
        if kind:
            self.report(operation, kind, False, inputs, made, *places())
        elif any(t.grad_fn is not None for t in floats(made)):
            self.watch(operation, made)
        return result

    def watch(self, operation, result):
        """Look at the backward of an operation, too, when it runs. None: nodes have names."""
        here = places()
        nodes = [t.grad_fn for t in floats(result) if t.grad_fn is not None]
        while nodes:
            node = nodes.pop()
            if node in self.known:
                continue
            self.known.add(node)
            of = operation or node.name()
            node.register_hook(
                lambda inputs, outputs, of=of: self.backward(of, outputs, inputs, here)
            )
            nodes += [after for after, _ in node.next_functions if after is not None]

    def backward(self, operation, given, made, here):
        """Look at the gradients that a node of the graph got, and at those that it made."""
        if self.found is not None:
            return
        # Gradients of several uses are added on their way here; that sum can overflow, too.
        kind = new_kind(NOTHING, state_of(given))
        if kind:
            self.report(
                "the sum of gradients into " + short(operation), kind, True, given, given, *here
            )
            return
        kind = new_kind(state_of(given), state_of(made))
        if kind:
            self.report(operation, kind, True, given, made, *here)

    def report(self, operation, kind, backward, inputs, result, place, caller):
        numbers = floats(inputs)
        finite = [
            float(n.detach()[n.isfinite()].abs().max()) for n in numbers if n.isfinite().any()
        ]
        self.found = Overflow(
            operation=short(operation),
            kind=kind,
            backward=backward,
            dtype=floats(result)[0].dtype,
            place=place,
            caller=caller,
            exponents=exponents(numbers),
            largest=max(finite, default=0.0),
        )


NOTHING = (False, False)


def in_place(name: str) -> bool:
    """Whether an operation writes into an input: `add_`, which is also +=, or x[0] = y."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def keep(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def state_of(values) -> tuple[bool, bool]:
    """Whether there is an infinity, and whether there is a NaN."""
    infinite = nan = False
    for value in tree_leaves(values):
        if isinstance(value, float):
            value = torch.tensor(value)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            infinite = infinite or bool(value.isinf().any())
            nan = nan or bool(value.isnan().any())
    return infinite, nan


def new_kind(before: tuple[bool, bool], after: tuple[bool, bool]) -> str:
    """Name the kind of number that is in the results only: "inf", "NaN" or ""."""
    if after[1] and not before[1]:
        return "NaN"
    return "inf" if after[0] and not before[0] else ""


def floats(values) -> list[torch.Tensor]:
    leaves = tree_leaves(values)
    return [v for v in leaves if isinstance(v, torch.Tensor) and v.is_floating_point()]


def short(operation) -> str:
    """The operation's name without its module."""
    if isinstance(operation, str):
        return operation
    name = resolve_name(operation) or getattr(operation, "__name__", str(operation))
    return name.rsplit(".", 1)[-1].strip("_")


def places() -> tuple[Place, Place]:
    """The innermost line outside of PyTorch, and the innermost outside of `helpers`."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((TORCH, "<")) and file != __file__:
            found.append(
                Place(file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip())
            )
            if not file.startswith(PACKAGE):
                break
        frame = frame.f_back
    return found[0], found[-1]
