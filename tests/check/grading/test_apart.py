"""Ranks for messages alone have nothing else in common, and no way back."""

import os

import pytest
import torch

from helpers.check.elsewhere import Failed
from helpers.check.grading import apart, post, sandbox
from helpers.check.grading.sandbox import Limits, Sandbox
from helpers.check.grading.stand_in import Shut, StandIn
from helpers.check.ranks import Called

pytestmark = pytest.mark.skipif(
    sandbox.bubblewrap() is None, reason="no sandbox: bubblewrap (bwrap) is missing or forbidden"
)

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


@pytest.fixture
def box():
    with Sandbox() as one:
        yield one


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


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("def other(): pass", r"rank \d: .* the notebook defines no function probe"),
        ("import os\ndef probe(worker, own):\n    os._exit(3)", "ended the process"),
        ("def probe(worker, own):\n    return own @ 3", "TypeError"),
        ("def probe(worker, own):\n    x = bytearray(1 << 30)\n    import time\n    time.sleep(20)",
         "used more than 700 MB of memory"),
    ],
)  # fmt: skip
def test_how_such_ranks_fail(source, finding):
    with Sandbox(Limits(memory_bytes=700 << 20)) as box:
        with pytest.raises(Failed, match=finding):
            on_ranks(box, source, [(torch.ones(1),), (torch.ones(1),)])
        assert box.process.returncode is not None
        assert box.ranks == []


def test_a_stub_is_not_written_yet(box):
    with pytest.raises(NotImplementedError):
        on_ranks(box, "def probe(worker, own):\n    raise NotImplementedError", [(torch.ones(1),)])


def test_where_no_process_may_leave_each_rank_has_a_sandbox(box, monkeypatch):
    monkeypatch.setattr(post, "forked", lambda box, number: [])
    probe = PROBE.replace('"/dev/shm"', '"/dev/shm", "/none"')
    found = on_ranks(box, probe, [(torch.ones(1),), (torch.full((1,), 5.0),)])
    assert [type(one) for one in box.ranks] == [Sandbox, Sandbox]
    assert [one["the result"]["message"] for one in found] == [5.0, 1.0]
    assert {one["the result"]["network"] for one in found} == {"Connection refused"}
    assert {one["the result"]["a name for both"] for one in found} == {"done"}


@pytest.mark.parametrize(("run", "status"), [(lambda: None, 0), (lambda: 1 / 0, 1)])
def test_a_process_that_could_not_leave_says_so(run, status):
    assert os.waitstatus_to_exitcode(os.waitpid(apart.forked(run), 0)[1]) == status
