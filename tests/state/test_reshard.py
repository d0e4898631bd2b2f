"""Any layout converts to any other: first without processes, then on ranks."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout
from helpers.state import reshard as module
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.pieces import slices
from helpers.state.placing import Seat, cut, flat, whole
from helpers.state.reshard import agreed, batches, moves, reshard
from helpers.state.slicing import take
from tests.state.cases import DTYPES, everyone, layouts, models, numbers, put

WORLD = 4


@st.composite
def pairs(draw, world=None):
    """Two layouts of one model, in worlds of any sizes or of exactly this size."""
    one, other = draw(layouts(world)), draw(layouts(world))
    recipes = draw(models(one))
    shapes = [recipe.shape for recipe in recipes]
    size = max(one.world_size, other.world_size)
    return everyone(one, recipes, size), everyone(other, draw(models(other, shapes)), size)


def locals_of(parts: AllParts, rank: int, plain) -> dict[str, torch.Tensor]:
    return {key: take(part, plain[part.name]) for key, part in parts.ranks[rank].items()}


@settings(deadline=None)
@given(pairs())
def test_all_moves_together_are_the_other_layout(pair):
    source, target = pair
    plain = {name: numbers(shape) for name, shape in source.shapes.items()}
    before = [locals_of(source, rank, plain) for rank in range(len(source.ranks))]
    after = [
        {key: torch.full(part.local_shape, -1.0, dtype=torch.float64) for key, part in own.items()}
        for own in target.ranks
    ]
    for name, shape in source.shapes.items():
        for rank in range(len(source.ranks)):
            held = torch.zeros(shape, dtype=torch.bool)
            for key in source.keys[rank].get(name, ()):
                put(source.ranks[rank][key], torch.ones_like(before[rank][key]).bool(), held)
            seen = list(moves(source, target, name, rank))
            assert all(rank in (move.sender, move.receiver) for move in seen)
            for move in seen:
                if move.receiver == rank != move.sender:
                    assert not held[slices(move.box)].any()  # nothing that it holds is sent
                if move.receiver == rank:
                    place = move.received(after[rank])
                    assert (place == -1).all()  # each number arrives once
                    place.copy_(move.sent(before[move.sender]))
                # sender and receiver process their messages in the same order
                both = {move.sender, move.receiver}
                between = [m for m in seen if {m.sender, m.receiver} == both]
                (other,) = both - {rank} or {rank}
                theirs = moves(source, target, name, other)
                assert between == [m for m in theirs if {m.sender, m.receiver} == both]
    for rank in range(len(target.ranks)):
        for key, wanted in locals_of(target, rank, plain).items():
            assert torch.equal(after[rank][key], wanted)


def test_the_holders_take_turns_as_senders():
    """Two of four ranks hold the tensor: each sends it to one of the others."""
    two = Part(name="w", shape=(3,), holders=(0, 1))
    source = AllParts([{"w": two}, {"w": two}, {}, {}])
    for rank in range(4):
        seen = [(m.sender, m.receiver) for m in moves(source, source.whole, "w", rank)]
        sends = {0: [(0, 0), (0, 2)], 1: [(1, 1), (1, 3)], 2: [(0, 2)], 3: [(1, 3)]}
        assert seen == sends[rank]


def on_ranks(worker, cases):
    """Reshard each (source, target, plain), and compare with slices of the plain tensors."""
    for source, target, plain in cases:
        source, target = AllParts(source), AllParts(target)
        mine = {k: take(p, plain[p.name]) for k, p in source.ranks[worker.rank].items()}
        found = reshard(source, mine, target)
        assert found.keys() == target.ranks[worker.rank].keys()
        for key, part in target.ranks[worker.rank].items():
            assert found[key].dtype == plain[part.name].dtype
            assert torch.equal(found[key], take(part, plain[part.name])), part


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_on_ranks(cluster, data):
    cases = []
    for _ in range(3):
        source, target = data.draw(pairs(WORLD))
        plain = {
            name: numbers(shape, data.draw(st.sampled_from(DTYPES)))
            for name, shape in source.shapes.items()
        }
        ranks = [[dict(own) for own in every.ranks] for every in (source, target)]
        cases.append((*ranks, plain))
    cluster.run(on_ranks, cases=cases)


def sent(worker, kinds):
    """Bytes that this rank sends to reshard a (16, 16) float32 tensor."""
    place = {
        "rows": lambda seat, part: cut(seat, part, 0, "tp"),
        "columns": lambda seat, part: cut(seat, part, 1, "tp"),
        "flat": lambda seat, part: flat(seat, part, "tp"),
        "whole": lambda seat, part: part,
    }
    seats = [Seat(Layout(tp=WORLD), rank) for rank in range(WORLD)]
    source, target = (
        AllParts({"w": place[kind](s, whole(s, "w", (16, 16)))} for s in seats) for kind in kinds
    )
    local = {"w": take(source.ranks[worker.rank]["w"], numbers((16, 16), torch.float32))}
    payload = []
    for wanted in (source, target):
        with ledger() as log:
            reshard(source, local, wanted)
        payload.append(log.of("send").payload)
    return payload[1] - payload[0]  # the first call sends facts but no numbers


def test_only_missing_numbers_are_sent(cluster):
    block = 4 * 4 * 4  # bytes: a quarter of the rows, a quarter of the columns
    assert list(cluster.run(sent, kinds=("rows", "columns"))) == [3 * block] * WORLD
    assert list(cluster.run(sent, kinds=("rows", "flat"))) == [0] * WORLD  # the same numbers
    assert list(cluster.run(sent, kinds=("whole", "columns"))) == [0] * WORLD
    assert list(cluster.run(sent, kinds=("flat", "whole"))) == [3 * 4 * block] * WORLD


def in_a_group(worker):
    """Ranks 1 and 3 of four: their rows become columns."""
    group = dist.new_group([1, 3])
    if worker.rank % 2 == 0:
        return None
    seats = [Seat(Layout(tp=2), rank) for rank in range(2)]
    source, target = (
        AllParts({key: cut(s, whole(s, "w", (4, 6)), dim, "tp")} for s in seats)
        for dim, key in enumerate(("rows", "columns"))  # keys of their own
    )
    mine = {"rows": take(source.ranks[worker.rank // 2]["rows"], numbers((4, 6)))}
    found = reshard(source, mine, target, group)["columns"]
    there = reshard(source, mine, source, group, "meta")["rows"]
    return found.tolist(), there.device.type, tuple(there.shape)


def test_the_ranks_of_a_group(cluster):
    plain = numbers((4, 6))
    expected = [(plain[:, 3 * r : 3 * r + 3].tolist(), "meta", (2, 6)) for r in range(2)]
    assert list(cluster.run(in_a_group)) == [None, expected[0], None, expected[1]]


def plain_parts(world=WORLD, shape=(3,)):
    every = tuple(range(world))
    return [{"w": Part(name="w", shape=shape, holders=every)} for _ in every]


def tries(worker, source, target, local):
    return reshard(AllParts(source), local[worker.rank], AllParts(target))


def why_not(worker, **given):
    try:
        tries(worker, **given)
    except ValueError as error:
        return str(error)


def test_invalid_reshards(cluster):
    good, value = plain_parts(), {"w": torch.zeros(3)}
    more = [own | {"v": replace(own["w"], name="v")} for own in good]
    refusals = {
        "layouts have 4 and 3 ranks": (good, plain_parts(3), [value] * 4),
        "parts are of 5 ranks, but the group has 4": (plain_parts(5), plain_parts(5), [value] * 4),
        "are of different models: compare 'w'": (good, plain_parts(shape=(4,)), [value] * 4),
        "compare 'v'": (good, more, [value] * 4),
        r"rank 2: the tensor of w \(3,\) .* has shape \(4,\)": (
            good,
            good,
            [value, value, {"w": torch.zeros(4)}, value],
        ),
        r"w: .* no tensor: \['None', 'torch.float32'\]": (good, good, [value, {}, value, value]),
        r"w: .* different dtypes, .*\['torch.float32', 'torch.float64'\]": (
            good,
            good,
            [value, value, value, {"w": torch.zeros(3).double()}],
        ),
        "rank 3: 'v' has no part": (good, good, [value, value, value, {"v": value["w"]}]),
    }
    for message, (source, target, local) in refusals.items():
        for why in cluster.run(why_not, source=source, target=target, local=local):
            assert re.search(message, why)


def test_large_models_go_in_rounds(monkeypatch):
    """A round ends as soon as it has enough bytes, and each tensor is in one round."""
    assert module.TOGETHER == 2**26
    monkeypatch.setattr(module, "TOGETHER", 24)
    shapes = {"a": (1,), "b": (2, 2), "c": (), "d": (9,), "e": (2,)}  # 8, 32, 8, 72, 16 bytes
    parts = AllParts([{n: Part(name=n, shape=s, holders=(0,)) for n, s in shapes.items()}])
    dtypes = dict.fromkeys(shapes, torch.float64)
    assert list(batches(parts, dtypes)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(batches(parts, {})) == []


def test_a_tensor_that_no_rank_has_is_left_out(cluster):
    assert (
        list(cluster.run(tries, source=plain_parts(), target=plain_parts(), local=[{}] * 4))
        == [{}] * 4
    )


def test_tensors_with_strides(cluster):
    """The source is a column of a larger tensor, and requires grad."""

    def transposed(worker):
        seats = [Seat(Layout(tp=WORLD), rank) for rank in range(WORLD)]
        rows = AllParts({"w": cut(s, whole(s, "w", (4, 6)), 0, "tp")} for s in seats)
        plain = numbers((4, 6))
        own = take(rows.ranks[worker.rank]["w"], plain).t().contiguous().t().requires_grad_()
        found = reshard(rows, {"w": own}, rows.whole)
        assert torch.equal(found["w"], plain)
        assert not found["w"].requires_grad

    cluster.run(transposed)


def test_what_ranks_without_numbers_say_counts_if_they_say_something():
    """An empty part may have no tensor; its dtype must be that of the others."""
    parts = AllParts(
        {"w": Part(name="w", shape=(2,), flat=(2 * rank, 2), holders=(rank,))} for rank in range(2)
    )
    full = {"w": "torch.float32"}
    for other in ({}, full):
        assert agreed(parts, [full, other]) == {"w": torch.float32}
    with pytest.raises(ValueError, match="w: the ranks that hold it have different dtypes"):
        agreed(parts, [full, {"w": "torch.float64"}])
    nothing = AllParts([{"w": Part(name="w", shape=(0, 4), holders=(0, 1))}] * 2)
    assert agreed(nothing, [full, full]) == {"w": torch.float32}
    assert agreed(nothing, [{}, {}]) == {}
