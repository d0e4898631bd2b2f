"""Ranks for messages alone have nothing else in common, and no way back."""

import os
import time

import pytest
import torch

from helpers.check.elsewhere import Failed
from helpers.check.grading import apart, post
from helpers.check.grading.sandbox import Limits, Sandbox
from helpers.check.grading.stand_in import Shut, StandIn
from helpers.check.ranks import Called
from tests.check.grading.conftest import NEEDS_SANDBOX
from tests.check.grading.test_post import Box

pytestmark = NEEDS_SANDBOX

PROBE = """
import ctypes, os, socket, torch, torch.distributed as dist

def tried(call):
    try:
        call()
        return "done"
    except OSError as error:
        return os.strerror(error.errno)

def written(folder):
    return tried(lambda: open(folder + "/mine", "w"))

def probe(worker, own):
    libc = ctypes.CDLL(None)
    seen = {}
    seen["writes"] = {folder: written(folder) for folder in ("/", "/tmp", "/dev", "/dev/shm")}
    seen["network"] = tried(lambda: socket.create_connection(("127.0.0.1", 9), 3))
    line = socket.socket(socket.AF_UNIX)
    seen["a name for both"] = tried(lambda: line.bind(chr(0) + "name"))
    seen["a terminal"] = tried(lambda: os.open("/dev/ptmx", os.O_RDWR))
    seen["memory for both"] = libc.shmget(4242, 64, 0o3600)  # made, or there already
    seen["/proc"] = [name for name in os.listdir("/proc") if name.isdigit()]
    seen["process"] = os.getpid()
    seen["another"] = tried(lambda: os.kill(2, 0))
    seen["files"] = sum(tried(lambda: os.fstat(fd)) == "done" for fd in range(3, 300))
    seen["ways back"] = [libc.unshare(0x10000000), libc.umount2(b"/proc", 2),
                         libc.mount(None, b"/tmp", None, 32 | 4096, None)]
    other = torch.zeros(1)
    for request in (dist.isend(own, 1 - worker.rank), dist.irecv(other, 1 - worker.rank)):
        request.wait()
    seen["message"] = other.item()
    return seen
"""


def on_ranks(box, source, arguments):
    run = Called(None, ("own",), (), ("calls", "unwaited"), "", None).on
    shut = Shut(box, "probe", [source], alone=True)
    return list(shut.messages(run, StandIn("probe"), arguments, 10.0))


@pytest.fixture(scope="module")
def box():
    with Sandbox(Limits(memory_bytes=900 << 20)) as one:
        yield one


def test_where_no_process_may_leave_each_rank_has_a_sandbox(box, monkeypatch):
    monkeypatch.setattr(post, "forked", lambda box, number: [])
    probe = PROBE.replace('"/dev/shm"', '"/dev/shm", "/none"')
    found = on_ranks(box, probe, [(torch.ones(1),), (torch.full((1,), 5.0),)])
    assert [type(one) for one in box.ranks] == [Sandbox, Sandbox]
    assert [one["the result"]["message"] for one in found] == [5.0, 1.0]
    assert {one["the result"]["network"] for one in found} == {"Connection refused"}
    assert {one["the result"]["a name for both"] for one in found} == {"done"}
    for one in box.ranks:
        one.end()
    box.ranks = []


def test_ranks_have_messages_and_nothing_else_in_common(box):
    found = on_ranks(box, PROBE, [(torch.ones(1),), (torch.full((1,), 5.0),)])
    assert all(isinstance(one, post.Rank) for one in box.ranks)
    for rank, trace in enumerate(found):
        seen = trace["the result"]
        assert set(seen.pop("writes").values()) == {"Read-only file system"}
        assert seen.pop("ways back") == (-1, -1, -1)
        assert seen == {
            "network": "Network is unreachable",
            "a name for both": "done",
            "a terminal": "No such file or directory",
            "memory for both": 0,
            "/proc": (),
            "process": 1,
            "another": "No such process",
            "files": 2,  # the judge's, and `line`
            "message": [5.0, 1.0][rank],
        }
        assert [call.name for call in trace["calls"]] == ["send", "recv"]
        assert trace["unwaited"] == 0


ECHO = "def probe(worker, own):\n    return own"


def test_more_ranks_are_added_and_the_first_stay(box):
    for number in (2, 3, 2):
        rows = [(torch.full((1,), float(rank)),) for rank in range(number)]
        assert [one["the result"].item() for one in on_ranks(box, ECHO, rows)] == [*range(number)]
    assert len(box.ranks) == 3


def test_too_much_memory_on_one_rank_ends_all(box):
    source = (
        "def probe(worker, own):\n    x = bytearray(1 << 30)\n    import time\n    time.sleep(20)"
    )
    with pytest.raises(Failed, match="used more than 900 MB of memory"):
        on_ranks(box, source, [(torch.ones(1),)])
    assert box.process.returncode is not None
    assert box.ranks == []


class Open:
    """Two ranks without walls."""

    def __init__(self):
        self.ranks, self.last = [Box(), Box()], time.monotonic() + 100

    def end(self):
        for one in self.ranks:
            one.end()
        self.ranks = []


@pytest.mark.parametrize(
    ("source", "error", "finding"),
    [
        ("def other(): pass", Failed, r"rank \d: .* the notebook defines no function probe"),
        ("def probe(worker, own):\n    return own @ 3", Failed, r"rank \d: .*TypeError"),
        ("def probe(worker, own):\n    raise NotImplementedError", NotImplementedError, "^$"),
    ],
)
def test_how_such_ranks_fail(source, error, finding):
    box = Open()
    with pytest.raises(error, match=finding):
        on_ranks(box, source, [(torch.ones(1),), (torch.ones(1),)])
    assert box.ranks == []


@pytest.mark.parametrize(("run", "status"), [(lambda: None, 0), (lambda: 1 / 0, 1)])
def test_a_process_that_could_not_leave_says_so(run, status):
    assert os.waitstatus_to_exitcode(os.waitpid(apart.forked(run), 0)[1]) == status
