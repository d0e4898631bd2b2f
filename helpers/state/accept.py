"""Check a training state before it is loaded. With a wrong state, training would just go on."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping

import torch

Shapes = Mapping[str, tuple[int, ...]]  # of all parameters of a model, by plain name


def accept(state: Mapping, shapes: Shapes):
    """Check that a `full_state` fits a model, and that training can continue from it.

    Raises:
        ValueError: the model or the optimizer is missing; a name is missing or unknown; a tensor
            has another shape, or a number that is not finite.
    """
    parts = [state.get(key) for key in ("model", "optimizer")] if isinstance(state, Mapping) else []
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise ValueError(
            'a state is {"model": {name: tensor}, "optimizer": {name: {…}}}, as full_state() '
            f"returns it, not {reprlib.repr(state)}"
        )
    model, kept = parts
    known(model, shapes, "the state")
    known(kept, shapes, "the state's optimizer")
    for name, shape in shapes.items():
        if name not in model:
            raise ValueError(f"the state has no {name} {shape}: was another model saved?")
        if not isinstance(model[name], torch.Tensor) or tuple(model[name].shape) != shape:
            raise misfit(name, model[name], shape)
        finite(name, model[name])
        for slot, value in kept.get(name, {}).items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.numel() != 1 and tuple(value.shape) != shape:
                raise misfit(f"{slot} of {name}", value, shape)
            finite(f"{slot} of {name}", value)


def misfit(what: str, found, shape: tuple[int, ...]) -> ValueError:
    kind = tuple(found.shape) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
    return ValueError(f"{what} is {kind} in the state, and {shape} in this model")


def known(names: Iterable[str], shapes: Shapes, where: str):
    """Check that the model has all of these parameters.

    Raises:
        ValueError: a name is unknown; with the nearest name of the model.
    """
    for name in names:
        if name not in shapes:
            near = "".join(difflib.get_close_matches(str(name), shapes, n=1, cutoff=0))
            raise ValueError(
                f"{where} has {name}, and this model has not: was another model saved? The nearest "
                f"name is {near}"
            )


def finite(what: str, tensor: torch.Tensor):
    """Check all numbers of a tensor.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    if not tensor.isfinite().all():
        raise ValueError(
            f"{what} has NaN or infinite numbers: training diverged before this state was saved. "
            "Load an earlier state"
        )
