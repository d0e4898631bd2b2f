"""While ranks run, nothing listens beyond loopback, and nothing is unpickled from a stranger."""

import ast
import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster
from helpers.runtime.local import client

RUNTIME = Path(client.__file__).parents[1]
LISTEN = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # as /proc/net/tcp and tcp6 write it


def sockets(pid: int) -> set[str]:
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            pass
    return {m[1] for link in links if (m := re.match(r"socket:\[(\d+)\]", link))}


def tcp() -> list[tuple[str, str, str]]:
    """(local address, state, inode) of every TCP socket."""
    rows = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            rows.append((fields[1].split(":")[0], fields[3], fields[9]))
    return rows


def exposed(pids) -> list:
    """What these processes have open towards other machines."""
    ours = set().union(*(sockets(pid) for pid in pids))
    return [row for row in tcp() if row[2] in ours and row[0] not in LOOPBACK]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_nothing_listens_beyond_loopback():
    def talk(worker):
        dist.all_reduce(torch.ones(1))
        group = dist.new_group(list(range(worker.world_size)))
        dist.barrier(group)
        return os.getpid()

    with Cluster(3) as cluster:
        pids = list(cluster.run(talk))
        server = client.warm().process.pid
        assert not exposed([server, *pids])
        ours = set().union(*(sockets(pid) for pid in pids))
        assert any(row[2] in ours for row in tcp()), "gloo's own connections: is this looking?"
        assert not {row[2] for row in tcp()} & sockets(server)  # it has none at all


def test_the_look_sees_what_is_exposed():
    import socket

    with socket.socket() as open_to_all:
        open_to_all.bind(("0.0.0.0", 0))
        open_to_all.listen()
        assert exposed([os.getpid()])


def test_only_channels_and_parcels_are_unpickled():
    """Both come over unnamed socket pairs: from the own parent or child."""
    places = set()
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("loads", "load", "Unpickler"):
                owner = getattr(node.value, "id", "")
                if owner in ("pickle", "cloudpickle", "torch"):
                    places.add(path.name)
    # failure: the exception that came in a message of the channel.
    # member: what the ranks of one job under a launcher tell one another; not of launch's ranks.
    # whereabouts: PyTorch's own record, of this process.
    found = places - {"member.py", "whereabouts.py"}
    assert found == {"channel.py", "payload.py", "failure.py"}


def test_channels_are_made_of_socket_pairs_alone():
    """No path and no port: no one else can reach them."""
    words = re.compile(
        r"(?<!signature)\.bind\(|(?<!process)(?<!listener)\.listen\(|AF_INET|create_server|TCPStore\(|\.connect\(\("
    )
    for path in [*(RUNTIME / "local").glob("*.py"), *RUNTIME.glob("*.py")]:
        if path.name not in (
            "launcher.py",
            "quiet.py",
        ):  # they ask about addresses, and send nothing
            assert not words.search(path.read_text()), path.name
