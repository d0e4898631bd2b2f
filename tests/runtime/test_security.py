"""While ranks run, nothing listens beyond loopback, and nothing is unpickled from a stranger."""

import ast
import os
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.check.week03 import mpi_rank
from helpers.runtime.cluster import Cluster
from helpers.runtime.local.forkserver import client
from tests.runtime.strangers import sockets, tcp

HELPERS = Path(client.__file__).parents[3]
RUNTIME = HELPERS / "runtime"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # as /proc/net/tcp and tcp6 write it


def exposed(pids) -> list:
    """What these processes have open towards other machines, each seen from its own network."""
    return [
        row for pid in pids for row in tcp(pid) if row[3] in sockets(pid) and row[0] not in LOOPBACK
    ]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
@pytest.mark.parametrize("network", [False, True])
def test_nothing_listens_beyond_loopback(network):
    def talk(worker):
        dist.all_reduce(torch.ones(1))
        group = dist.new_group(list(range(worker.world_size)))
        dist.barrier(group)
        return os.getpid()

    with Cluster(3, network=network) as cluster:
        pids = list(cluster.run(talk))
        server = client.warm().process.pid
        assert not exposed([server, *pids])
        seen = {row[3] for row in tcp(pids[0])}
        assert seen & sockets(pids[0]), "gloo's own connections: is this looking?"
        assert not {row[3] for row in tcp()} & sockets(server)  # it has none at all


def test_the_look_sees_what_is_exposed():
    import socket

    with socket.socket() as open_to_all:
        open_to_all.bind(("0.0.0.0", 0))
        open_to_all.listen()
        assert exposed([os.getpid()])


UNPICKLES = {("pickle", n) for n in ("load", "loads", "Unpickler")}
UNPICKLES |= {("cloudpickle", "load"), ("cloudpickle", "loads"), ("torch", "load"), ("np", "load")}
OBJECTS = re.compile(r"(all_gather|gather|scatter|broadcast|send|recv)_object(_list)?$")


@cache
def programs() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in HELPERS.rglob("*.py")]


def dangerous(program: ast.Module):
    """The names in this program that read pickles, or send objects as pickles over a group."""
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", "")
            if (owner, node.attr) in UNPICKLES or OBJECTS.match(node.attr):
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                if (node.module, name.name) in UNPICKLES or OBJECTS.match(name.name):
                    yield f"{node.module}.{name.name}"


def test_only_what_comes_from_the_own_parent_or_child_is_unpickled():
    """Over unnamed socket pairs: messages, parcels, and the exception in a message.

    mpiexec passes no descriptor on, so an exercise's function travels in a private folder.
    """
    found = {str(path.relative_to(HELPERS)) for path, tree in programs() if any(dangerous(tree))}
    assert found == {
        "runtime/local/channel.py",
        "runtime/payload.py",
        "runtime/failure.py",
        "check/week03/mpi_rank.py",
        "check/grading/inside.py",  # in the sandbox: orders of the judge, its parent
        "models/trained/__init__.py",  # np.load, with allow_pickle=False: the next test
    }


def test_the_trained_models_are_read_without_pickle():
    text = (HELPERS / "models/trained/__init__.py").read_text()
    assert text.count("np.load(") == text.count("allow_pickle=False)") > 0


def test_a_function_for_mpi_ranks_is_read_from_a_private_folder_alone(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="not this user's alone"):
        mpi_rank.main(tmp_path, 1.0)


def test_parcels_are_unpacked_where_they_come_from_the_own_process_parent_or_child():
    places = set()
    for path, tree in programs():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "unpack":
                places.add(str(path.relative_to(HELPERS)))
    assert places == {
        "runtime/local/rank/program.py",  # a call, from the notebook
        "runtime/local/call.py",  # a result, from a rank
        "runtime/report.py",  # an exception, packed in the line above
        "runtime/joined/member.py",  # function and arguments, packed in the line above
        "runtime/joined/job.py",  # a file: of this user, in a folder that no one else can write to
    }


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads",
        "torch.load('x')",
        "dist.all_gather_object(a, b)",
        "from torch.distributed import broadcast_object_list",
    ],
)
def test_the_look_for_pickles_finds_them(source):
    assert list(dangerous(ast.parse(source)))


def test_channels_are_made_of_socket_pairs_alone():
    """No path and no port: no one else can reach them."""
    words = re.compile(
        r"(?<!signature)\.bind\(|(?<!process)(?<!listener)\.listen\(|AF_INET|create_server|TCPStore\(|\.connect\(\("
    )
    for path in [*(RUNTIME / "local").rglob("*.py"), *RUNTIME.glob("*.py")]:
        # They ask about addresses, or start a loopback, and send nothing.
        if path.name not in ("launcher.py", "quiet.py", "network.py"):
            assert not words.search(path.read_text()), path.name
