"""Save and load with `torch.distributed.checkpoint`, from any layout and into any other.

Tensors that DTensor can say are saved as they lie. The others (flat ranges, chosen or uneven cuts)
are resharded first to even rows over all ranks, which it can. Either way each number is written
once, and the files name plain tensors only: any layout loads them, and so does PyTorch alone.

PyTorch keeps a checkpoint's table of contents as a pickle, and its own planning sends pickles over
the process group: load only checkpoints that you trust.
"""

import json
from collections.abc import Iterable, Mapping
from os import PathLike

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh

from helpers.comm.mesh import Layout, Mesh
from helpers.state.all_parts import AllParts
from helpers.state.dtensor import as_dtensor, even, placements
from helpers.state.full_state import Kept, moments_and_counts, read
from helpers.state.part import Cut, Part
from helpers.state.reshard import existing, reshard

COUNTS = "counts"


def save(
    path: str | PathLike,
    mesh: Mesh,
    parts: AllParts,
    local: Mapping[str, torch.Tensor],
    kept: Kept | None = None,
):
    """Write a checkpoint. Every rank of the world calls it.

    Args:
        path: a folder, the same on all ranks.
        local, kept: this rank's tensors and optimizer state, by key, as for `full_state`.

    Raises:
        ValueError: as `full_state`.
    """
    moments, counts = moments_and_counts(parts, kept or {})
    state = {f"model.{name}": t for name, t in stored(mesh, parts, local).items()}
    for slot, tensors in moments.items():
        for name, tensor in stored(mesh, parts, tensors).items():
            state[f"optimizer.{slot}.{name}"] = tensor
    data = bytearray(json.dumps(counts).encode())
    state[COUNTS] = torch.frombuffer(data, dtype=torch.uint8)
    dcp.save(state, checkpoint_id=path)


@torch.no_grad()
def load(
    path: str | PathLike, mesh: Mesh, parts: AllParts, local: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, object]]:
    """Read a checkpoint into this rank's tensors, in place, cast to their dtype. Every rank of the
    world calls it; the layout may be another than the one that saved.

    Returns:
        This rank's optimizer state, {key: {slot: value}}, in the dtype that was saved.

    Raises:
        ValueError: a tensor is missing, or has another shape.
    """
    reader = dcp.FileSystemReader(path)
    contents = reader.read_metadata().state_dict_metadata
    for name, shape in parts.shapes.items():
        found = contents.get(f"model.{name}")
        if not isinstance(found, TensorStorageMetadata) or tuple(found.size) != shape:
            raise ValueError(f"{path} does not hold {name} {shape}")
    raw = torch.empty(contents[COUNTS].size, dtype=torch.uint8)
    dcp.load({COUNTS: raw}, storage_reader=reader)
    counts = json.loads(bytes(raw.tolist()))
    for key, value in read_slot("model.", reader, contents, mesh, parts).items():
        local[key].copy_(value)
    own, kept = parts.ranks[mesh.rank], {}
    for key, part in own.items():
        if part.name in counts:
            kept[key] = {slot: read(count) for slot, count in counts[part.name].items()}
    slots = {name.split(".")[1] for name in contents if name.startswith("optimizer.")}
    for slot in sorted(slots):
        for key, value in read_slot(f"optimizer.{slot}.", reader, contents, mesh, parts).items():
            kept.setdefault(key, {})[slot] = value
    return kept


def read_slot(prefix: str, reader, contents, mesh: Mesh, parts: AllParts):
    """This rank's tensors, by key, of all names under a prefix."""
    names = [name for name in parts.shapes if prefix + name in contents]
    parts = parts.named(names)
    layout = storage(mesh.layout, parts)
    local = {
        key: torch.empty(
            part.local_shape,
            dtype=contents[prefix + part.name].properties.dtype,
            device=mesh.device_mesh.device_type,
        )
        for key, part in layout.ranks[mesh.rank].items()
    }
    state = {prefix + name: t for name, t in named(mesh, parts, layout, local).items()}
    dcp.load(state, storage_reader=reader)
    return reshard(layout, local, parts, device=mesh.device_mesh.device_type)
