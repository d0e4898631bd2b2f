"""An interleaved layout: a rank holds two parts of one tensor, under two keys."""

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.state import checkpoint
from helpers.state.all_parts import AllParts
from helpers.state.full_state import full_state
from helpers.state.part import Part
from helpers.state.pending import complete, global_norm, make_groups
from helpers.state.slicing import first_values, load, load_optimizer
from tests.state.cases import numbers

LAYOUT, PLAIN = Layout(dp=2, pp=2), numbers((5, 4))


def quarters(rank: int) -> dict[str, Part]:
    """Four flat ranges of 20 numbers, with gradients that are sums over dp.

    Stage 0 holds the first and the third range. The order of its keys differs between replicas.
    """
    dp, pp = divmod(rank, 2)
    own = {}
    for chunk in (0, 1) if dp else (1, 0):
        start = 10 * chunk + 5 * pp
        own[f"chunk{chunk}"] = Part(
            name="w",
            shape=(5, 4),
            flat=(start, start + 5),
            holders=(pp, 2 + pp),
            pending=[(pp, 2 + pp)],
        )
    return own


def whole_life(worker, path):
    mesh, own = make_mesh(LAYOUT), quarters(worker.rank)
    parts = AllParts.exchanged(own)
    local = {key: torch.empty(part.local_shape, dtype=PLAIN.dtype) for key, part in own.items()}
    first_values(own, local, lambda name, shape: PLAIN)
    row = PLAIN.flatten()
    for key, part in own.items():
        assert torch.equal(local[key], row[slice(*part.flat)])
    gradients = {key: tensor.clone() for key, tensor in local.items()}
    _, gradients = complete(own, gradients, make_groups(mesh, parts))
    norm = global_norm(parts.completed, gradients)
    assert abs(norm - 2 * PLAIN.norm()) < 1e-12
    kept = {key: {"exp_avg": g, "step": torch.tensor(1.0)} for key, g in gradients.items()}
    state = full_state(parts, local, kept)
    assert torch.equal(state["model"]["w"], PLAIN)
    assert torch.equal(state["optimizer"]["w"]["exp_avg"], 2 * PLAIN)
    checkpoint.save(path, mesh, parts, local, kept)
    for source in ("state", "files"):
        zeros = {key: torch.zeros_like(tensor) for key, tensor in local.items()}
        if source == "files":
            back = checkpoint.load(path, mesh, parts, zeros)
        else:
            load(own, zeros, state["model"])
            back = load_optimizer(own, state["optimizer"])
        for key in own:
            assert torch.equal(zeros[key], local[key])
            assert torch.equal(back[key]["exp_avg"], kept[key]["exp_avg"])
            assert back[key]["step"] == 1.0


def test_from_first_values_to_a_checkpoint(cluster, tmp_path):
    cluster.run(whole_life, path=tmp_path / "c")
