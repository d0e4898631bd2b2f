"""Gather the parts of all ranks whole, by plain names: tensors, gradients, and training state.

Training resumes from parameters and optimizer state. An optimizer's moments have their parameter's
layout, so they share its part. An optimizer's counts ("step") are the same on all ranks.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from helpers.state.all_parts import AllParts
from helpers.state.facts import exchange
from helpers.state.part import Part
from helpers.state.reshard import reshard

Kept = Mapping[str, Mapping[str, object]]  # key -> slot ("exp_avg", "step", …) -> value


def full(
    parts: AllParts,
    local: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Gather every tensor whole. Every rank of the world calls it and gets a copy of each.

    It reshards to the layout in which every rank holds everything. Each rank keeps the numbers that
    it already has, so the result shows whether a replica has drifted.

    Args, raises: as `reshard`.
    """
    return reshard(parts, local, parts.whole, group, device)


def full_gradients(
    parts: AllParts,
    gradients: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Gather every gradient whole, by plain name. Every rank of the world calls it.

    Returns:
        Copies, of the tensors that have a gradient.

    Raises:
        ValueError: a sum is pending; and as `reshard` raises.
    """
    refuse_pending(parts)
    return full(parts, gradients, group, device)


def refuse_pending(parts: AllParts):
    """Check that no sum is pending.

    Raises:
        ValueError: a sum is pending. All ranks know all parts, so all ranks raise together.
    """
    for own in parts.ranks:
        for part in own.values():
            if part.pending:
                raise ValueError(
                    f"the gradient of {part} is still a partial sum; call `complete` first"
                )


def full_optimizer(
    parts: AllParts,
    kept: Kept,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, object]]:
    """Gather an optimizer's state whole, by plain name. Every rank of the world calls it.

    Args:
        kept: this rank's state, by key: tensors of the part's local shape, and counts. A count is
            a number or a tensor without dims ("step"), the same on all ranks. A key without state
            may be missing.

    Returns:
        {name: {slot: value}}, in the plain optimizer's shapes; copies.

    Raises:
        ValueError: a tensor has the local shape on some ranks only, or is neither of the local
            shape nor a count; a count differs between ranks; and as `reshard` raises.
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
    """Gather parameters and optimizer state: {"model": {name: tensor}, "optimizer": {name: {…}}}.

    Every rank of the world calls it and gets a copy of everything.
    """
    return {
        "model": full(parts, local, group, device),
        "optimizer": full_optimizer(parts, kept, group, device),
    }


def moments_and_counts(
    parts: AllParts, kept: Kept, group: dist.ProcessGroup | None = None
) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, dict[str, list]]]:
    """Separate optimizer state into moments and counts. Every rank of the world calls it.

    Returns:
        The moments, slot -> key -> this rank's tensor, with the slots in the same order on every
        rank; the counts of all ranks together, plain name -> slot -> [value, dtype].

    Raises:
        ValueError: as `full_optimizer` raises.
    """
    alone = len(parts.ranks) == 1
    own = parts.ranks[0 if alone else dist.get_rank(group)]
    rows: dict[str, dict[str, torch.Tensor]] = {}
    counts: dict[str, dict[str, list]] = {}
    for key, slots in kept.items():
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor) and is_local(slot, value, own[key]):
                rows.setdefault(slot, {})[key] = value
            else:
                counts.setdefault(own[key].name, {})[slot] = written(slot, value)
    told = [[sorted(rows), counts]]
    told = told if alone else exchange(told[0], group)
    together: dict[str, dict[str, list]] = {}
    for _, theirs in told:
        for name, slots in theirs.items():
            for slot, count in slots.items():
                first = together.setdefault(name, {}).setdefault(slot, count)
                if first != count:
                    raise ValueError(
                        f"optimizer state: {slot!r} of {name} is {first} on one rank, but {count} "
                        "on another"
                    )
    every = sorted({slot for slots, _ in told for slot in slots})
    return {slot: rows.get(slot, {}) for slot in every}, together


def is_local(slot: str, value: torch.Tensor, part: Part) -> bool:
    """Whether a tensor has the parameter's layout; otherwise it is a count.

    "step" is always a count: if the parameter has no dims, the shapes are the same.
    """
    return slot != "step" and tuple(value.shape) == part.local_shape


def written(slot: str, value) -> list:
    """Encode a count for JSON: [value, dtype of its tensor; None for a plain number]."""
    if not isinstance(value, torch.Tensor):
        return [value, None]
    if value.numel() != 1:
        raise ValueError(
            f"optimizer state: {slot!r} has shape {tuple(value.shape)}; it must be one number, or "
            "have its part's local shape"
        )
    return [value.item(), str(value.dtype)]


def read(count: list):
    """Decode a count that `written` encoded."""
    value, dtype = count
    if dtype is None:
        return value
    return torch.tensor(value, dtype=getattr(torch, dtype.removeprefix("torch.")))
