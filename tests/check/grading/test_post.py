"""Messages between ranks that have nothing in common: what arrives, and what is counted."""

import itertools
import os
import threading
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from helpers.check.grading import frames, inside, messages, plain, post
from helpers.check.grading.post import Stopped, carry
from helpers.check.grading.sandbox import Broken, Late
from helpers.check.traffic import Call


class Box:
    """A rank's program in a process of its own, without walls."""

    def __init__(self):
        orders, self.orders = os.pipe()
        self.answers, answers = os.pipe()
        self.pid, self.broken = os.fork(), False
        if not self.pid:
            torch.set_num_threads(1)  # OpenMP hangs in a fork of a process that has used it
            inside.serve(orders, answers)
            os._exit(0)
        os.close(orders)
        os.close(answers)

    def tell(self, order, end):
        frames.write(self.orders, order, end)

    def hear(self, end):
        return frames.read(self.answers, end)

    def check_limits(self):
        if self.broken:
            raise Broken("used too much")

    def end(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.orders)
        os.close(self.answers)


def run(worker, fn, arguments):
    return {"found": fn(worker, *arguments)}


@pytest.fixture
def on(request):
    """on(fn, ranks): what it returns on ranks, and each rank's calls."""
    boxes = []

    def start(fn, ranks, silence=120.0, seconds=150.0):
        boxes.extend(Box() for _ in range(ranks))
        given = [("rank", (run, fn, (), rank, ranks)) for rank in range(ranks)]
        orders = [cloudpickle.dumps(one) for one in given]
        answers, *seen = carry(boxes, orders, seconds, silence)
        return [found["found"] for ((found, _),) in answers], *seen

    yield start
    for box in boxes:
        box.end()


def swap(worker):
    mine, other = torch.full((2, 3), 1.5 + worker.rank), torch.empty(2, 3)
    for request in (dist.isend(mine, 1 - worker.rank), dist.irecv(other, 1 - worker.rank)):
        request.wait()
    return other.sum().item()


def test_two_ranks_swap_a_tensor_and_the_judge_has_counted(on):
    answers, calls, unwaited = on(swap, 2)
    assert (answers, unwaited) == ([15.0, 9.0], [0, 0])
    assert calls == [[Call("send", 1 - rank, 24), Call("recv", 1 - rank, 24)] for rank in (0, 1)]


def test_tags_order_and_whoever_comes_first(on):
    def program(worker):
        if worker.rank == 2:
            one, two = torch.empty(2, dtype=torch.int64).unbind()  # without dims
            dist.recv(two, 0, tag=7)
            dist.recv(one, 0)
            source = dist.recv(three := torch.zeros((), dtype=torch.bfloat16))
            return one.item(), two.item(), three.item(), source
        if worker.rank == 0:
            requests = [dist.isend(torch.tensor(5), 2), dist.isend(torch.tensor(6), 2, tag=7)]
            for request in requests:
                request.wait()
        else:
            dist.send(torch.tensor(2.5, dtype=torch.bfloat16), 2)
        return None

    answers, calls, _ = on(program, 3)
    assert answers == [None, None, (5, 6, 2.5, 1)]
    assert calls[2][-1] == Call("recv", None, 2)


def test_a_batch_threads_and_a_message_of_a_megabyte_in_both_directions(on):
    def program(worker):
        other, size = 1 - worker.rank, 1 << 18
        large, room = torch.full((size,), 1.0 + worker.rank), torch.empty(size)
        pair = [dist.P2POp(dist.isend, large, other), dist.P2POp(dist.irecv, room, other)]
        for request in dist.batch_isend_irecv(pair):
            request.wait()
        small = torch.zeros(1)
        thread = threading.Thread(target=dist.recv, args=(small, other))
        thread.start()
        dist.send(torch.ones(1), other)
        thread.join()
        return room.sum().item() / size + small.item()

    assert on(program, 2)[0] == [3.0, 2.0]


def test_a_request_that_nobody_waits_for(on):
    def program(worker):
        tensor = torch.ones(1)
        return dist.isend(tensor, 1).is_completed() if worker.rank == 0 else None

    answers, _, unwaited = on(program, 2)
    assert (answers[0], unwaited) == (False, [1, 0])


def test_a_tensor_that_changes_before_it_is_sent(on):
    def program(worker):
        if worker.rank == 0:
            request = dist.isend(tensor := torch.ones(1), 1)
            tensor += 1
            request.wait()
        else:
            dist.recv(torch.zeros(1), 0)

    with pytest.raises(Stopped, match="had not sent yet"):
        on(program, 2)


def test_sizes_that_differ_are_counted_and_write_nothing_behind_the_tensor(on):
    def program(worker):
        row = torch.zeros(4)
        if worker.rank == 0:
            dist.send(torch.ones(3), 1)
            dist.send(torch.ones(1), 1)
            dist.send(torch.ones(0), 1)
        else:
            dist.recv(row[:2], 0)
            dist.recv(row[2:], 0)
            dist.recv(row[:0], 0)
        return row.tolist()

    answers, calls, _ = on(program, 2)
    assert answers[1] == [1.0, 1.0, 1.0, 0.0]
    assert [call.nbytes for call in calls[1]] == [8, 8, 0]
    assert [call.nbytes for call in calls[0]] == [12, 4, 0]


COLLECTIVES = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "all_gather": lambda x: dist.all_gather([x, x], x),
    "all_gather_object": lambda x: dist.all_gather_object([None, None], 3),
    "broadcast": lambda x: dist.broadcast(x, 0),
    "reduce": lambda x: dist.reduce(x, 0),
    "gather": lambda x: dist.gather(x, [x, x], 0),
    "scatter": lambda x: dist.scatter(x, [x, x], 0),
    "reduce_scatter": lambda x: dist.reduce_scatter(x, [x, x]),
    "all_to_all_single": lambda x: dist.all_to_all_single(x, x),
    "barrier": lambda x: dist.barrier(),
    "the group's method": lambda x: dist.ProcessGroup.allreduce(dist.group.WORLD, [x]),
    "the backend's": lambda x: dist.group.WORLD._get_backend(x.device).allreduce([x]),
    "the operator": lambda x: torch.ops.c10d.barrier(x, dist.group.WORLD.boxed(), [], True, 1),
    "another group": lambda x: dist.new_group([0, 1]),
}


@pytest.mark.parametrize("how", COLLECTIVES)
def test_a_collective_has_nothing_to_run_on(how):
    tensor = torch.ones(2)
    nobody = messages.Post(*os.pipe())
    with (
        messages.joined(nobody, 0, 2),
        pytest.raises(RuntimeError, match=r"collective|No backend|one group alone"),
    ):
        COLLECTIVES[how](tensor)
    os.close(nobody.orders)
    os.close(nobody.answers)
    assert tensor.tolist() == [1.0, 1.0]
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: dist.isend(torch.ones(1), 2), "there is no rank 2"),
        (lambda: dist.irecv(torch.ones(1), 0), "no rank can send to itself"),
        (lambda: dist.isend(torch.ones(2, 2).T, 1), "must be contiguous"),
    ],
)
def test_messages_that_cannot_be(call, error):
    nobody = messages.Post(*os.pipe())
    with messages.joined(nobody, 0, 2), pytest.raises(ValueError, match=error):
        call()
    os.close(nobody.orders)
    os.close(nobody.answers)


def wait_for_each_other(worker):
    dist.recv(torch.zeros(1), 1 - worker.rank)


def wait_for_nobody(worker):
    if worker.rank:
        dist.send(torch.zeros(1), 0)


def sleep(worker):
    if worker.rank:
        threading.Event().wait(30)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (wait_for_each_other, "rank 0 waits to receive from 1; rank 1 waits to receive from 0"),
        (wait_for_nobody, "rank 0 has returned; rank 1 waits to send to 0"),
        (sleep, "rank 0 has returned; rank 1 neither sends, receives nor returns"),
    ],
)
def test_where_ranks_stand_that_make_no_progress(on, monkeypatch, program, told):
    monkeypatch.setattr(post, "BLOCKED", 0.5)
    with pytest.raises(Late) as late:
        on(program, 2, silence=3.0 if program is sleep else 60.0)
    assert str(late.value) == told


def test_a_rank_that_fails_stops_the_others(on):
    def program(worker):
        if worker.rank == 1:
            raise IndexError("none left")
        dist.recv(torch.zeros(1), 1)

    with pytest.raises(Stopped) as stopped:
        on(program, 2)
    rank, found = stopped.value.args
    assert (rank, found[0]) == (1, "raised")
    assert "IndexError: none left" in found[2]


@pytest.mark.parametrize(("limit", "most"), [("KEPT", 1000), ("MOST", 50)])
def test_messages_that_nobody_receives_have_a_limit(on, monkeypatch, limit, most):
    monkeypatch.setattr(post, limit, most)

    def program(worker):
        for _ in range(100):
            dist.isend(torch.zeros(10), 1 - worker.rank)
        threading.Event().wait(30)

    with pytest.raises(ValueError, match="sent more than any answer needs"):
        on(program, 2)


def test_a_rank_is_told_nothing_of_the_others():
    """A reply goes to the rank that waits for it, and says no more than the message."""
    office = post.Post(3)
    assert office.takes(0, ["send", 0, 1, 0, b"secret"])
    assert office.takes(2, ["recv", 0, 0, 0, 6])
    assert office.takes(2, ["wait", 0])
    assert list(office.replies()) == []
    assert office.takes(1, ["recv", 4, None, 0, 6])
    assert office.takes(1, ["wait", 4])
    assert [(rank, plain.unpack(data)) for rank, data in office.replies()] == [
        (1, [4, 0, b"secret"])
    ]
    assert list(office.replies()) == []
    for peer in (-1, 0, 3):
        assert not office.takes(0, ["send", 1, peer, 0, b"no rank's"])
    for other in (["send", 0, "1", 0, b""], ["wait"], ["returned", None], 3, ["recv", 0, 1, 0]):
        assert not office.takes(0, other)
    assert (office.open, office.kept) == ([1, 0, 1], 0)


class Said:
    """A rank that has said all of its words already."""

    def __init__(self, *words):
        self.answers, into = os.pipe()
        for one in words:
            frames.write(into, plain.pack(one))
        os.close(into)

    def tell(self, order, end):
        pass

    def hear(self, end):
        return frames.read(self.answers)

    def check_limits(self):
        pass


def test_with_each_word_the_silence_begins_anew(monkeypatch):
    """Each look at the clock takes ten seconds, so all words together take longer than 25."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(post, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    sent = [["send", number, 1, 0, b"x"] for number in range(9)]
    boxes = [Said(*sent, ["returned", 3]), Said(["returned", 4])]
    answers, calls, _ = carry(boxes, [b"", b""], seconds=1000, silence=25)
    assert (answers, len(calls[0])) == ([[3], [4]], 9)
    for box in boxes:
        os.close(box.answers)
