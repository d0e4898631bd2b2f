"""The ranks' own network: one for all ranks of a call, and nothing else is different in it."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.comm.shared_memory.collectives import SharedMemory
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import network
from tests.runtime.strangers import NOBODY

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not network.possible(), reason="no networks can be made here"
)


def where(worker):
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return [os.readlink("/proc/self/ns/net"), tensor.tolist()]


def outside():
    return os.readlink("/proc/self/ns/net")


def test_the_ranks_of_a_call_share_one_that_is_nobody_elses():
    first = launch(where, 3)
    assert {tuple(sums) for _, sums in first} == {(3.0, 3.0)}
    ((net,),) = [{net for net, _ in first}]
    assert net != outside()
    assert launch(where, 1)[0][0] != outside()  # a rank alone has one too
    with Cluster(2) as one, Cluster(2) as other:
        nets = [{net for net, _ in cluster.run(where)} for cluster in (one, other)]
        assert {net for net, _ in one.run(where)} == nets[0]  # it lives on from call to call
    assert len(nets[0]) == len(nets[1]) == 1
    assert nets[0] != nets[1]


def test_a_call_that_wants_the_machines_network_has_it():
    assert {net for net, _ in launch(where, 2, network=True)} == {outside()}


def test_a_launch_in_a_rank_has_another():
    def nested(worker):
        return [where(worker)[0], [net for net, _ in launch(where, 2)]]

    outer, inner = launch(nested, 1)[0]
    assert len(set(inner)) == 1
    assert len({outer, inner[0], outside()}) == 3


def test_what_wants_a_network_and_has_none_is_told():
    def ask(worker, port):
        socket.create_connection(("127.0.0.1", port)).close()

    def download(worker):
        socket.create_connection(("198.51.100.1", 80), timeout=5)  # documentation only: RFC 5737

    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        launch(ask, 1, port=port, network=True)
        for fn, arguments in ((ask, {"port": port}), (download, {})):
            with pytest.raises(WorkerError, match=r"launch\(…, network=True\)"):
                launch(fn, 2, **arguments)
    with pytest.raises(WorkerError) as other:
        launch(lambda worker: 1 / 0, 1)
    assert network.HINT not in str(other.value)


def test_the_user_and_the_files_stay_the_same():
    """A user namespace would make root another user there."""
    for rank in launch(everything, 2):
        assert rank["user"] == [os.getuid(), os.getgid()]
        assert rank["own"] == os.getuid()
        assert rank["in their own"]


def everything(worker):
    shared = SharedMemory()
    tensor = torch.full((4,), worker.rank + 1.0)
    shared.all_reduce(tensor)
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "sum": tensor.tolist(),
        "user": [os.getuid(), os.getgid()],
        "own": Path(f"/proc/{os.getpid()}").stat().st_uid,
        "rights": int(status["CapEff"], 16),
        "threads": torch.get_num_threads(),
        "in their own": network.own(),
        "held": [name for name in map(linked, os.listdir("/proc/self/fd")) if ":[4026" in name],
    }


def linked(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the listing's own
        return ""


SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
from tests.runtime.local.test_network import everything, outside, where
from helpers.runtime.launch import launch
if __name__ == "__main__":
    nets = {{net for net, _ in launch(where, 2)}}
    print(nets != {{outside()}}, list(launch(everything, 2)))
"""


def run(*command):
    line = [*command, sys.executable, "-c", SCRIPT.format(root=str(ROOT))]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd="/")


AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def can_become_nobody() -> bool:
    """Root; and another user can start this Python, and read this project."""
    again = f"import os, sys; os.spawnv(0, sys.executable, ['', {network.__file__!r}]) and 1 / 0"
    command = [*AS_NOBODY, sys.executable, "-c", again]
    return os.getuid() == 0 and not subprocess.run(command, capture_output=True, cwd="/").returncode


def test_an_ordinary_user_stays_that_user():
    if os.getuid() == 0 and not can_become_nobody():
        pytest.skip("no other user can run this Python")
    done = run(*(AS_NOBODY if os.getuid() == 0 else []))
    assert done.returncode == 0, done.stderr
    alone, ranks = done.stdout.split(" ", 1)
    user = NOBODY if os.getuid() == 0 else os.getuid()
    assert alone == "True"
    for rank in eval(ranks):
        assert rank["sum"] == [3.0] * 4  # memory of another rank, opened by its descriptor
        assert rank["own"] == rank["user"][0] == user
        assert rank["rights"] == 0
        assert rank["in their own"]
        assert rank["held"] == []  # no descriptor of a namespace


MAKE = """
import os, socket, sys
sys.path.insert(0, {root!r})
from helpers.runtime.local import network

def state():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return os.getuid(), os.readlink("/proc/self/ns/net"), int(lines["CapEff"], 16)

before, (here, there) = state(), socket.socketpair()
if (other := os.fork()) == 0:
    network.join(socket.recv_fds(there, 16, 2)[1])
    here.close()
    there.sendall(repr(state()).encode())
    os._exit(0)
there.close()
socket.send_fds(here, [b"own"], network.make())
print([before, state(), eval(here.recv(1000))])
"""


def test_a_user_without_rights_makes_a_network_and_gains_no_rights():
    """Root under another number is such a user."""
    mapped = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] * (os.getuid() == 0)
    command = [*mapped, sys.executable, "-c", MAKE.format(root=str(ROOT))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    before, one, other = eval(done.stdout)
    assert one == other
    assert one[0] == before[0] != 0
    assert one[1] != before[1]
    assert one[2] == 0


REFUSE = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$0" "$@"'


def test_where_the_system_refuses_the_ranks_stay_and_work():
    """In a user namespace of its own, whose limit of networks is none."""
    done = run("unshare", "--map-root-user", "--user", "sh", "-c", REFUSE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False [{'sum': [3.0, 3.0, 3.0, 3.0]"), done.stdout
    assert "'in their own': True" not in done.stdout  # so the ranks prove themselves
    assert done.stderr == ""


@pytest.mark.parametrize("possible", [True, False])
def test_each_other_rank_hears_of_the_network(monkeypatch, possible):
    """One message for each, with the way in, or without one where there is none."""
    way = [os.open(os.devnull, os.O_RDONLY)] if possible else []
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(network, "_own", False)
    monkeypatch.setattr(network, "try_to_make", lambda: list(way))
    one, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with others:
        network.take_place(("make", 3), one.detach())
        for _ in range(3):
            word, found, _, _ = socket.recv_fds(others, 16, 2)
            assert (word, len(found)) == ((b"own", 1) if possible else (b"none", 0))
            for descriptor in found:
                os.close(descriptor)
        assert others.recv(16) == b""
    assert network.own() == possible
    assert len(os.listdir("/proc/self/fd")) == before - len(way)


@pytest.mark.parametrize(
    ("error", "hinted"),
    [
        (OSError(101, "Network is unreachable"), True),
        (OSError(-3, "Temporary failure in name resolution"), True),
        (OSError(-2, "Name or service not known"), True),
        (OSError(-5, "No address associated with hostname"), True),
        (ConnectionRefusedError(111, "so"), True),
        (ConnectionResetError(104, "so"), False),
        (ValueError("a network of 3 layers"), False),
    ],
)
def test_only_errors_of_the_network_get_the_hint_and_only_in_their_own(monkeypatch, error, hinted):
    monkeypatch.setattr(network, "_own", True)
    assert network.hint(error) == (network.HINT if hinted else "")
    outer = RuntimeError("the data set is missing")
    outer.__cause__ = error
    assert network.hint(outer) == (network.HINT if hinted else "")
    monkeypatch.setattr(network, "_own", False)
    assert network.hint(error) == ""


def test_a_rank_that_stays_closes_nothing_and_one_that_joins_enters_all(monkeypatch):
    joined, before = [], len(os.listdir("/proc/self/fd"))
    assert network.own() is False  # this process is no rank
    monkeypatch.setattr(network, "_own", False)
    monkeypatch.setattr(network, "join", lambda found: joined.append(len(found)))
    network.take_place(("stay", 3), None)
    assert (network.own(), joined) == (False, [])
    for way in (2, 0):  # rank 0 has sent two descriptors, or none
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one:
            socket.send_fds(one, [b"own" if way else b"none"], [0] * way)
            network.take_place(("join", 3), other.detach())
        assert (network.own(), joined.pop()) == (bool(way), way)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_network_is_tried_where_the_server_could_make_none(monkeypatch):
    made = []
    monkeypatch.setattr(network, "make", lambda: made.append(True) or [7])
    monkeypatch.delenv(network.POSSIBLE, raising=False)
    assert network.try_to_make() == []
    assert not made
    monkeypatch.setenv(network.POSSIBLE, "1")
    assert network.try_to_make() == [7]

    def refused():
        raise OSError("the limit of networks is reached")

    monkeypatch.setattr(network, "make", refused)
    assert network.try_to_make() == []


def test_what_the_system_refuses_is_an_error(monkeypatch):
    refuses = SimpleNamespace(unshare=lambda _: -1, setns=lambda *_: -1, capset=lambda *_: -1)
    monkeypatch.setattr(network, "C", refuses)
    for act in (network.make, lambda: network.join([0]), network.drop_capabilities):
        with pytest.raises(OSError, match=r"can be made here|cannot be joined|should not have"):
            act()
    assert network.possible() is False
