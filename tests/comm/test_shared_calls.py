"""One call through shared memory: its pieces, their places, and an error on one rank."""

import time

import pytest
import torch
from torch.distributed import ReduceOp

from helpers.comm.ledger import ledger
from helpers.comm.shared_barrier import PeerLost
from helpers.comm.shared_calls import ELSEWHERE, EMPTY, VIEWS, Call, Room, words
from helpers.runtime.launch import launch
from tests.comm.test_shared_collectives import SMALL, every, judge
from tests.comm.test_transport import linux

pytestmark = [pytest.mark.usefixtures("kept_ranks"), linux]

HALF = 48  # bytes: six numbers of float64
F64 = torch.float64


def at(one: torch.Tensor, base: torch.Tensor) -> int:
    return one.data_ptr() - base.data_ptr()


def scratch(worker):
    room, rank = Room(None, 30.0, HALF), worker.rank
    found = {
        "others": room.others,
        "place": (room.rank, room.size, room.turn, room.name == room.group.group_name),
        "bytes": [len(part) for part in room.scratch],
        "numbers": [room.numbers(dtype) for dtype in (F64, torch.float32, torch.bfloat16)],
    }
    for turn in (0, 1):
        room.turn = turn
        halves, slots = room.halves(F64), room.slots(4, F64)
        base = room.scratch[rank]
        found[f"half {turn}"] = (at(halves[rank], base), len(halves[rank]), halves[rank].dtype)
        found[f"slots {turn}"] = [
            [(at(slot, room.scratch[owner]), len(slot)) for slot in slots[owner]]
            for owner in range(3)
        ]
        halves[rank].fill_(10 * turn + rank)
        found[f"again {turn}"] = (
            room.halves(F64) is halves,
            room.slots(4, F64) is slots,
            [len(slot) for slot in room.slots(5, F64)[2]],
            room.slots(4, torch.float32)[0][0].dtype,
            len(room.halves(torch.float32)[0]),
        )
    room.segments.agree("all have written")
    for turn in (0, 1):
        room.turn = turn
        found[f"seen {turn}"] = [half.tolist() for half in room.halves(F64)]
    room.close()
    with pytest.raises(RuntimeError, match="this shared memory is closed"):
        room.segments.agree("more")
    return found | {"closed": (room.scratch, room.views, room.segments.segments)}


def test_every_rank_sees_both_halves_of_every_scratch():
    for rank, found in enumerate(launch(scratch, 3, device="cpu")):
        assert found["others"] == [[1, 2], [2, 0], [0, 1]][rank]
        assert found["place"] == (rank, 3, 0, True)
        assert found["bytes"] == [2 * HALF] * 3
        assert found["numbers"] == [6, 12, 24]
        for turn in (0, 1):
            assert found[f"half {turn}"] == (HALF * turn, 6, F64)
            chunks = [(HALF * turn + 8 * first, size) for first, size in ((0, 2), (2, 1), (3, 1))]
            assert found[f"slots {turn}"] == [chunks] * 3
            assert found[f"again {turn}"] == (True, True, [2, 2, 1], torch.float32, 12)
            assert found[f"seen {turn}"] == [[10.0 * turn + owner] * 6 for owner in range(3)]
        assert found["closed"] == ([], {}, [])


def places(worker):
    room, rank = Room(None, 30.0, HALF), worker.rank
    row = room.segments.allocate(80, "ten numbers")[rank].view(F64)
    row.copy_(torch.arange(10) + 100 * rank)
    tensors = row, row[3:5], row[:0], torch.empty(0), torch.ones(2), row[::2], row.view(2, 5).t()
    found = [room.place(tensor) for tensor in tensors]
    room.segments.agree("all have written")
    where, sizes = ((1, 8), EMPTY, (1, 24)), (2, 0, 3)
    rows = room.rows(where, sizes, F64)
    kept = [
        room.rows(where, sizes, F64) is rows,
        [len(one) for one in room.rows(where, (3, 0, 1), F64)],
        [one.tolist() for one in room.rows(((1, 0), EMPTY, EMPTY), (1, 0, 0), F64)],
        [(len(one), one.dtype) for one in room.rows(where, sizes, torch.float32)],
    ]
    seen = [one.tolist() for one in rows]
    room.segments.agree("all have read")
    room.close()
    return found, seen, kept


def test_rows_are_found_at_their_places():
    found = [(1, 0), (1, 24), EMPTY, EMPTY, ELSEWHERE, ELSEWHERE, ELSEWHERE]
    seen = [[1.0, 2.0], [], [203.0, 204.0, 205.0]]
    f32 = torch.float32
    kept = [True, [3, 0, 1], [[0.0], [], []], [(2, f32), (0, f32), (3, f32)]]
    assert list(launch(places, 3, device="cpu")) == [(found, seen, kept)] * 3


def test_views_are_made_once_and_do_not_grow_for_ever():
    room, made = object.__new__(Room), []
    room.views = {}

    def view(key):
        return room.kept(key, lambda: made.append(key) or [key])

    for key in range(VIEWS):
        assert view(key) == [key]
        assert view(0) == [0]
    assert made == list(range(VIEWS))
    assert view(VIEWS) == [VIEWS]
    assert (len(room.views), view(0), made[VIEWS:]) == (1, [0], [VIEWS, 0])


def calls(worker, shared):
    """A call of three pieces, with the rows of the ranks `shared` in shared memory."""
    room, rank = Room(None, 30.0, HALF), worker.rank
    row = room.segments.allocate(40, "five numbers")[rank].view(F64)
    row.copy_(torch.arange(5) + 100 * rank)
    if rank not in shared:
        row = row.clone()
    found = []
    for _ in range(2):  # the second call begins with the other half
        puts, seen = [], []

        def put(start, puts=puts):
            puts.append((start, room.turn))
            if rank == 1:
                time.sleep(0.02)  # the others must wait for its part
            halves = room.halves(F64)
            halves[rank][0] = start + 100 * rank
            return start, halves

        how = {"starts": (0, 7, 9), "put": put}
        with ledger() as log, Call(room, "a call", row, 77, "somehow", **how) as call:
            about = call.places, call.sizes, call.dtype
            if call.rows is None:
                for start, halves in call.pieces():
                    seen.append((start, [half[0].item() for half in halves]))
            else:
                again = call.chunks()
                seen = [[block.tolist() for block in blocks] for blocks in again]
                assert call.chunks() is again
            call.meet()
        found.append((about, puts, seen, room.turn == room.segments.turn))
        entries = [(e.call, e.group, e.ranks, e.rank, e.payload, e.wire) for e in log.entries]
        assert entries == [("a call", room.name, 3, rank, 77, 0.0)]
    if len(shared) == 3:  # fewer numbers at the same place are other chunks
        with Call(room, "fewer", row[:3], 24, starts=(), put=None) as call:
            assert [len(block) for block, *_ in call.chunks()] == [1, 1, 1]
    uneven = {"starts": (), "put": None, "sizes": (5, 1, 0)}
    with Call(room, "sizes", row[: (5, 1, 0)[rank]], 8, **uneven) as call:
        found.append((call.sizes, call.rows is None or [len(one) for one in call.rows]))
    room.close()
    return found


def pieces_of(rank: int) -> list:
    return [(start, [float(start), start + 100.0, start + 200.0]) for start in (0, 7, 9)]


def test_ordinary_rows_go_piece_by_piece():
    """The first piece is there when the ranks agree, so `put` is called once for each."""
    for rank, (one, other, sizes) in enumerate(launch(calls, 3, device="cpu", shared=())):
        assert one[0] == other[0] == ((ELSEWHERE,) * 3, (5,) * 3, F64)
        assert one[1:] == ([(0, 1), (7, 0), (9, 1)], pieces_of(rank), True)
        assert other[1:] == ([(0, 0), (7, 1), (9, 0)], pieces_of(rank), True)
        assert sizes == ((5, 1, 0), True)


def test_rows_in_shared_memory_are_read_where_they_are():
    for rank, found in enumerate(launch(calls, 3, device="cpu", shared=(0, 1, 2))):
        *both, sizes = found
        first, size = ((0, 2), (2, 2), (4, 1))[rank]
        mine = [[[100.0 * r + k for k in range(first, first + size)]] for r in range(3)]
        assert both == [((((1, 0),) * 3, (5,) * 3, F64), [], mine, True)] * 2
        assert sizes == ((5, 1, 0), [5, 1, 0])


@pytest.mark.parametrize("shared", [(0,), (2,), (0, 1)])
def test_some_rows_in_shared_memory(shared):
    """Those ranks have put nothing when the ranks agree: all put the first piece then."""
    for rank, (one, other, _) in enumerate(launch(calls, 3, device="cpu", shared=shared)):
        where = tuple((1, 0) if r in shared else ELSEWHERE for r in range(3))
        assert one[0] == other[0] == (where, (5,) * 3, F64)
        twice = 1 if rank in shared else 2
        assert one[1:] == ([(0, 1)] * twice + [(7, 0), (9, 1)], pieces_of(rank), True)
        assert other[1:] == ([(0, 0)] * twice + [(7, 1), (9, 0)], pieces_of(rank), True)


def failures(worker, where):
    room, rank = Room(None, 30.0, HALF), worker.rank
    row, puts = room.segments.allocate(8, "a number")[rank].view(F64), []
    how = {"starts": (0,), "put": puts.append}
    told = []
    with pytest.raises(ValueError, match="needs a tensor on the CPU, not on meta"):
        Call(room, "this", torch.ones(1, device="meta"), 8, **how)
    with pytest.raises(
        ValueError, match=f"rank {rank} calls this of 8 bytes, torch.float64, [012],"
    ):
        Call(room, "this", row, 8, rank, **how).__enter__()
    if rank == 1 and where == "at its beginning":
        room.rows = lambda *_: 1 / 0
    for name in ("this", "that"):
        try:
            with Call(
                room, name, row if name == "this" else torch.ones(1, dtype=F64), 8, **how
            ) as c:
                if rank == 1:
                    1 / 0  # noqa: B018
                c.meet()
        except (ZeroDivisionError, PeerLost, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    return told, puts


@pytest.mark.parametrize("where", ["at its beginning", "within it"])
def test_a_call_that_fails_on_a_rank_is_over_on_all(where):
    runs = launch(failures, 3, device="cpu", where=where)
    later = "RuntimeError: that of 8 bytes, torch.float64 cannot run: an earlier call in this sha"
    for rank, (told, puts) in enumerate(runs):
        if rank == 1:
            assert told[0].startswith("ZeroDivisionError")
        else:
            lost = "PeerLost: rank 1 has failed, and did not reach the end of a collective"
            assert told[0] == lost
        assert told[1].startswith(later)
        assert puts == []  # nothing is written to a scratch that others may still read


def test_a_call_in_words():
    f32 = torch.float32
    assert words("gather", 12, f32, "") == "gather of 12 bytes, torch.float32"
    assert words("reduce", 8, F64, ReduceOp.MAX) == "reduce of 8 bytes, torch.float64, MAX"
    assert words("send", 4, f32, "from rank 2") == "send of 4 bytes, torch.float32, from rank 2"
    assert words("send", 4, f32, 0) == "send of 4 bytes, torch.float32, 0"


def test_collectives_in_pieces():
    """Against one process and PyTorch, also of few numbers, and with strides."""
    drawn = [(case, where) for case, where in every((0, 1, 2)) if where != "shared"]
    runs = launch(judge, 3, device="cpu", drawn=drawn, half=SMALL)
    assert [wrong for wrong, _ in runs] == [[]] * 3
