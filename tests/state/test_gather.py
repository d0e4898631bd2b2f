"""Every rank gathers every tensor whole, from random layouts on real ranks."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.failure import WorkerError
from helpers.state.all_parts import AllParts
from helpers.state.gather import full, full_gradients, refuse_pending
from helpers.state.norm import clip
from helpers.state.part import Part
from helpers.state.pending import complete, make_groups
from helpers.state.placing import cut, pending, whole
from helpers.state.slicing import take
from tests.state.cases import DTYPES, everyone, layouts, models, numbers


def gathers(worker, ranks, plain):
    parts = AllParts(ranks)
    local = {key: take(part, plain[part.name]) for key, part in parts.ranks[worker.rank].items()}
    found = full(parts, local)
    assert found.keys() == plain.keys()
    for name, tensor in plain.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
        assert all(
            found[name].data_ptr() != own.data_ptr() or not own.numel() for own in local.values()
        )


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_scatter_then_gather_is_the_identity(cluster, data):
    layout = data.draw(layouts(4))
    parts = everyone(layout, data.draw(models(layout)))
    plain = {n: numbers(s, data.draw(st.sampled_from(DTYPES))) for n, s in parts.shapes.items()}
    cluster.run(gathers, ranks=[dict(own) for own in parts.ranks], plain=plain)


def test_frozen_tensors_have_no_gradient(cluster):
    def gradients(worker):
        parts = AllParts(
            [{n: Part(name=n, shape=(2,), holders=range(4)) for n in ("frozen", "w")}] * 4
        )
        return full_gradients(parts, {"frozen": None, "w": torch.ones(2)})

    for found in cluster.run(gradients):
        assert list(found) == ["w"]
        assert found["w"].tolist() == [1, 1]


def test_gradients_of_the_ranks_of_a_group(cluster):
    def gradients(worker):
        group = dist.new_group([2, 3])
        if worker.rank < 2:
            return None
        parts = AllParts([{"w": Part(name="w", shape=(2,), holders=range(2))}] * 2)
        found = full_gradients(parts, {"w": torch.ones(2)}, group)
        there = full_gradients(parts, {"w": torch.ones(2)}, group, "meta")
        return found["w"].tolist(), there["w"].device.type

    assert list(cluster.run(gradients)) == [None, None, ([1, 1], "meta"), ([1, 1], "meta")]


def test_drifted_replicas_keep_their_own_numbers(cluster):
    def drift(worker):
        parts = AllParts([{"w": Part(name="w", shape=(2,), holders=range(4))}] * 4)
        return full(parts, {"w": torch.full((2,), float(worker.rank))})["w"].tolist()

    assert list(cluster.run(drift)) == [[r, r] for r in range(4)]


def test_partial_sums_are_refused(cluster):
    def gradients(worker):
        part = Part(name="w", shape=(2,), holders=range(4), pending=[range(4)])
        return full_gradients(AllParts([{"w": part}] * 4), {"w": torch.ones(2)})

    with pytest.raises(WorkerError, match=r"of w \(2,\).* is still a partial sum; call `complete`"):
        cluster.run(gradients)


def test_a_partial_sum_of_any_rank_and_tensor_is_refused():
    whole_one = Part(name="a", shape=(2,), holders=range(1))
    partial = Part(name="b", shape=(2,), holders=(1, 2), pending=[(1, 2)])
    own = {"b": partial, "c": Part(name="c", shape=(1,), holders=range(1, 3))}
    parts = AllParts([{"a": whole_one}, own, own])
    with pytest.raises(ValueError, match=r"the gradient of b \(2,\).* is still a partial sum"):
        refuse_pending(parts)
    refuse_pending(parts.completed)


@pytest.mark.gpu
def test_tensors_of_a_gpu_over_gloo(cluster):
    """Four ranks share a GPU, and gloo sends their numbers through the CPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")

    def there(worker):
        mesh = make_mesh(Layout(dp=2, tp=2))
        own = {"w": pending(mesh, cut(mesh, whole(mesh, "w", (5, 3)), 0, "tp"), "dp")}
        parts = AllParts.exchanged(own)
        plain = numbers((5, 3), torch.bfloat16).cuda()
        groups = make_groups(mesh, parts)
        done, found = complete(own, {"w": take(own["w"], plain)}, groups, "cuda")
        whole_again = full(parts.completed, found, device="cuda")["w"]
        assert torch.equal(whole_again, plain * 2)
        assert done["w"].pending == ()
        norm = clip(parts.completed, found, 1.0)
        assert norm.is_cuda
        return norm.item()

    norms = list(cluster.run(there))
    assert norms == [pytest.approx(2 * numbers((5, 3)).norm().item(), rel=1e-6)] * 4
