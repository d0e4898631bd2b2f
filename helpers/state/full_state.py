"""All that training goes on from, by plain names: parameters, and the optimizer's state.

An optimizer's moments lie as their parameter does, so they share its part; its counts are one
number for all ranks.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from helpers.state.all_parts import AllParts
from helpers.state.facts import exchange
from helpers.state.gather import full
from helpers.state.part import Part

Kept = Mapping[str, Mapping[str, object]]  # key -> slot ("exp_avg", "step", …) -> what is kept


def full_optimizer(
    parts: AllParts,
    kept: Kept,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, object]]:
    """Gather an optimizer's state whole, by plain name. Every rank of the world calls it; copies.

    Args:
        kept: this rank's, by key: tensors of the part's local shape; numbers and tensors without
            dims ("step"), which are the same on all ranks. A key without state may be missing.

    Returns:
        {name: {slot: value}}, in the shape of the plain optimizer's own.

    Raises:
        ValueError: a tensor that is of the local shape on some ranks only, or of neither kind;
            a count that differs between ranks; and as `reshard`.
    """
    rows, counts = moments_and_counts(parts, kept, group)
    result: dict[str, dict[str, object]] = {name: {} for name in parts.shapes}
    for slot, tensors in rows.items():
        for name, value in full(parts, tensors, group, device).items():
            result[name][slot] = value
    for name, slots in counts.items():
        result[name] |= {slot: read(count) for slot, count in slots.items()}
    return {name: slots for name, slots in result.items() if slots}


def full_state(
    parts: AllParts,
    local: Mapping[str, torch.Tensor],
    kept: Kept,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, dict]:
    """All that training goes on from: {"model": {name: tensor}, "optimizer": {name: {slot: …}}}.

    Every rank of the world calls it and gets all of it; copies.
    """
    return {
        "model": full(parts, local, group, device),
        "optimizer": full_optimizer(parts, kept, group, device),
    }


def moments_and_counts(
    parts: AllParts, kept: Kept, group: dist.ProcessGroup | None = None
) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, dict[str, list]]]:
    """Optimizer state in two. Every rank of the world calls it.

    Returns:
        slot -> key -> this rank's tensor, with the same slots in the same order on every rank;
        plain name -> slot -> [value, dtype], of all ranks together.

    Raises:
        ValueError: as `full_optimizer`.
    """
    own = parts.ranks[dist.get_rank(group)]
    rows: dict[str, dict[str, torch.Tensor]] = {}
    counts: dict[str, dict[str, list]] = {}
    for key, slots in kept.items():
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor) and is_local(slot, value, own[key]):
                rows.setdefault(slot, {})[key] = value
            else:
                counts.setdefault(own[key].name, {})[slot] = written(slot, value)
    told = exchange([sorted(rows), counts], group)
    together: dict[str, dict[str, list]] = {}
    for _, theirs in told:
        for name, slots in theirs.items():
            for slot, count in slots.items():
                first = together.setdefault(name, {}).setdefault(slot, count)
                if first != count:
                    raise ValueError(f"{slot} of {name} is {first} on one rank, {count} on another")
    every = sorted({slot for slots, _ in told for slot in slots})
    return {slot: rows.get(slot, {}) for slot in every}, together


def is_local(slot: str, value: torch.Tensor, part: Part) -> bool:
    """Whether a tensor lies as the parameter does; else it is a count.

    "step" is a count by name: for a parameter without dims, shapes cannot tell the two apart.
    """
    return slot != "step" and tuple(value.shape) == part.local_shape


def written(slot: str, value) -> list:
    """A count for JSON: [value, dtype of the tensor that held it or None]."""
    if not isinstance(value, torch.Tensor):
        return [value, None]
    if value.numel() != 1:
        raise ValueError(f"{slot} is {tuple(value.shape)}: neither a count nor the part's shape")
    return [value.item(), str(value.dtype)]


def read(count: list):
    value, dtype = count
    if dtype is None:
        return value
    return torch.tensor(value, dtype=getattr(torch, dtype.removeprefix("torch.")))
