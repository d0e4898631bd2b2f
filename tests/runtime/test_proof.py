"""Ranks prove themselves: with the same key they go on; with another the rank is named."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime import proof
from helpers.runtime.launch import launch

KEY = bytes(range(32))


def try_to_prove(group=None):
    try:
        proof.prove(group)
    except RuntimeError as error:
        return str(error)
    return "proved"


def test_a_mark_is_good_for_one_key_group_direction_and_pair_only():
    about = ["0", [0, 1, 2]]
    given = [(KEY, about, 0, 1), (b"other" * 7, about, 0, 1), (KEY, ["1", [0, 1, 2]], 0, 1)]
    given += [(KEY, ["0", [0, 1, 3]], 0, 1), (KEY, about, 1, 0), (KEY, about, 0, 2)]
    marks = [proof.mark(*each) for each in given]
    assert len(set(marks)) == len(marks)
    assert {len(each) for each in marks} == {32}
    assert proof.new_key() != proof.new_key()


def test_ranks_that_know_the_key_go_on_in_every_group():
    def talk(worker):
        proof.keep(KEY)
        group = dist.new_group([0, 2])  # rank 1 is not in it
        before = dist.get_rank(), [try_to_prove(), try_to_prove(group)]
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return [*before[1], tensor.item()]

    assert list(launch(talk, 3)) == [["proved", "proved", 3.0]] * 3


def test_a_rank_without_the_key_is_named_by_each_other():
    """So is a rank of which a single byte is wrong."""

    def talk(worker):
        proof.keep(KEY if worker.rank != 1 else bytes(32))
        without = try_to_prove()
        proof.keep(KEY)
        if worker.rank == 1:
            mark = proof.mark
            proof.mark = lambda *given: mark(*given)[:-1] + bytes([mark(*given)[-1] ^ 1])
        return without, try_to_prove()

    said = "another process answered in place of rank {}".format
    for wrong in zip(*launch(talk, 3), strict=True):
        assert wrong == (said(1), said(0), said(1))


def test_a_silent_rank_is_not_waited_for_without_end():
    def talk(worker):
        proof.keep(KEY)
        proof.PROOF_SECONDS = 0.5
        said = try_to_prove() if worker.rank == 0 else ""
        return said

    answer = launch(talk, 2, timeout=30)[0]
    assert "some rank of [0, 1] has not shown within 0.5 s" in answer


def test_ranks_in_the_machines_network_have_a_key_and_those_in_their_own_need_none():
    def has_key(worker):
        return proof._key

    (one, other) = launch(has_key, 2, network=True)
    assert one == other
    assert len(one) == proof.KEY_BYTES
    assert launch(has_key, 2, network=True)[0] != one  # another for each call


def test_the_groups_of_a_mesh_and_of_pending_sums_are_proved():
    def talk(worker):
        from types import SimpleNamespace

        from helpers.comm import mesh as meshes
        from helpers.state import pending

        proved = []
        meshes.prove = pending.prove = lambda group: proved.append(
            dist.get_process_group_ranks(group)
        )
        layout = meshes.Layout(dp=2, tp=2)
        mesh = meshes.make_mesh(layout)
        part = SimpleNamespace(pending=[(0, 3)])
        pending.make_groups(mesh, SimpleNamespace(ranks=[{"w": part}]))
        return [ranks for ranks in proved if worker.rank in ranks]

    dp, tp, pending = launch(talk, 4)[0]
    assert (dp, tp, pending) == ([0, 2], [0, 1], [0, 3])


def test_another_error_of_the_exchange_is_told_as_it_is():
    def fails(_):
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match=r"^Connection closed by peer$"):
        proof.wait(SimpleNamespace(wait=fails), [0, 1])


@pytest.mark.parametrize(
    ("key", "backends", "ranks"),
    [
        (None, "cpu:gloo", [0, 1]),
        (KEY, "cuda:nccl", [0, 1]),  # NCCL checks a number of its own
        (KEY, "cpu:gloo,cuda:nccl", [0]),
    ],
)
def test_where_nothing_is_to_be_proved_nothing_is_sent(monkeypatch, key, backends, ranks):
    monkeypatch.setattr(proof, "_key", key)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: ranks)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    proof.prove(SimpleNamespace(group_name="0"))  # it has no backend to send with
