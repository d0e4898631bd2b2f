"""Where ranks meet, on one machine in a folder that nobody else can enter; and their key."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from helpers.runtime.joined import rendezvous as meeting
from helpers.runtime.joined.rendezvous import (
    base_folder,
    meet,
    meeting_name,
    open_store,
    read_key,
    share_key,
    write_key,
)
from helpers.runtime.launcher import Place
from helpers.runtime.proof import KEY_BYTES, new_key
from tests.runtime.strangers import NOBODY, stranger

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a second user act")


def place(rank: int = 1, **changes) -> Place:
    given = {"launcher": "srun", "local_size": 2, "one_machine": True, "start": "srun 7.0"}
    ranks = {"rank": rank, "world_size": 2, "local_rank": rank}
    return Place(**{**given, **ranks, "address": "127.0.0.1", "port": 29500, **changes})


def squat(folder, mode):
    os.mkdir(folder, mode)
    os.chmod(folder, mode)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the ranks of `place` would meet, in a temporary folder that all may write to."""
    tmp_path.chmod(0o1777)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"helpers-{os.getuid()}-{meeting_name(place())}"


def refused(folder):
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"another user may have made it\. Set XDG"):
        meet(place(), timeout=30)
    assert time.monotonic() < began + 10  # at once, not after the timeout
    assert not (folder / "store").exists()


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_folder_that_another_user_has_made_is_refused_at_once(folder, mode):
    for parent in list(folder.parents)[1:-2]:  # pytest's own are closed to others
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    with stranger(squat, folder, mode):
        limit = time.monotonic() + 20
        while not folder.exists() or folder.stat().st_mode & 0o777 != mode:
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert folder.stat().st_uid == NOBODY
        refused(folder)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_folder_that_others_can_enter_is_refused(folder, mode):
    squat(folder, mode)
    refused(folder)


def test_a_link_is_refused(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    refused(folder)


def test_a_link_in_the_place_of_the_store_is_refused(folder, tmp_path):
    folder.mkdir(mode=0o700)
    (tmp_path / "file").write_text("mine")
    (folder / "store").symlink_to(tmp_path / "file")
    with pytest.raises(RuntimeError, match="cannot meet in"):
        open_store(folder)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_runtime_folder_comes_first_if_it_is_private(tmp_path, monkeypatch):
    own = tmp_path / "run"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert base_folder() == own
    own.chmod(0o750)
    assert base_folder() != own
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "not there"))
    assert base_folder() != tmp_path / "not there"


MEET = """
import os, sys
sys.path.insert(0, {root!r})
from tests.runtime.joined.test_rendezvous import place
from helpers.runtime.joined.rendezvous import meet, share_key
rank = int(sys.argv[1])
here = place(rank)
store = meet(here, 60)
key = share_key(here, store, 60)
store.set(f"said/{{rank}}", key.hex())
other = store.get(f"said/{{1 - rank}}").decode()
inodes = {{os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if
          os.path.exists(f"/proc/self/fd/{{fd}}")}}
store.add("over", 1)
while store.add("over", 0) < 2:
    pass
print(len(key), other == key.hex(), any("socket" in inode for inode in inodes))
"""


def test_ranks_meet_there_without_a_socket_and_leave_nothing(folder, tmp_path):
    folder.mkdir(mode=0o700)  # of ranks that were killed
    (folder / "store").write_bytes(b"")
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
    environ = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
    environ["TMPDIR"] = str(tmp_path)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", MEET.format(root=root), str(rank)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.communicate(timeout=100)[0] == f"{KEY_BYTES} True False\n"
    assert list(tmp_path.iterdir()) == []


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("start", ["srun 7.0", "srun 7.1", "srun 17.0"])
def test_each_step_of_slurm_has_its_own_name(start):
    assert meeting.meeting_name(place(start=start)) == start.replace(" ", "-")


def test_ranks_of_an_mpiexec_share_the_process_that_made_their_sockets(monkeypatch):
    """It is the parent's parent, if a script stands between."""
    monkeypatch.delenv("PMIX_NAMESPACE", raising=False)
    before = descriptors()
    with socket.socketpair()[0] as made_here:
        monkeypatch.setenv("PMI_FD", str(made_here.fileno()))
        assert meeting.meeting_name(place(launcher="mpiexec")) == f"mpiexec-{os.getpid()}"
        os.fstat(made_here.fileno())  # it is mpiexec's, and stays open
    assert descriptors() == before
    for fd in (str(made_here.fileno()), "999999", "none", None):
        monkeypatch.setenv("PMI_FD", fd) if fd else monkeypatch.delenv("PMI_FD")
        assert meeting.meeting_name(place(launcher="mpiexec")) == f"mpiexec-{os.getppid()}"
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-node1-77@1")
    assert meeting.meeting_name(place(launcher="mpiexec")) == "prterun-node1-77-1"
    assert meeting.meeting_name(place()) == "srun-7.0"


def together(store, ranks, timeout=20.0):
    """What each of these ranks has of the store, by rank; all at one time."""
    found = {}

    def join(rank):
        found[rank] = meeting.fresh(store, place(rank, world_size=3), timeout)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_each_attempt_has_its_own_part_of_the_store_and_all_its_ranks_share_it():
    store = dist.HashStore()
    first, second = (together(store, range(3)) for _ in range(2))
    first[2].set("key", "of the first")
    assert [first[rank].check(["key"]) for rank in range(3)] == [True] * 3
    assert [second[rank].check(["key"]) for rank in range(3)] == [False] * 3


def test_the_hello_of_a_rank_that_was_killed_does_not_stand_for_its_successor():
    store = dist.HashStore()
    store.set("hello/1", "stale")
    found = {}
    first = threading.Thread(target=lambda: found.update(together(store, [0])))
    first.start()
    limit = time.monotonic() + 20
    while not store.check(["welcome/stale"]):
        assert time.monotonic() < limit
        time.sleep(0.01)
    found |= together(store, [1, 2])
    first.join(60)
    assert set(found) == {0, 1, 2}


@pytest.mark.timeout(60)  # each waits for 0.05 s
def test_the_first_rank_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(meeting.secrets, "token_hex", lambda _: "attempt")
    store = dist.HashStore()
    for rank, missing in ((1, 0), (0, 1), (0, 2)):
        with pytest.raises(TimeoutError, match=rf"^rank {missing} is missing$"):
            meeting.fresh(store, place(rank, world_size=3), 0.05)
        if rank == 0:
            store.set("here/attempt/1", "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_alone_is_told_and_rank_0_takes_the_folder_away(folder, rank):
    with pytest.raises(RuntimeError) as caught:
        meeting.meet(place(rank), 0.05)
    assert str(caught.value) == (
        f"rank {rank} of 2 did not meet the others within 0.05 s; does every rank reach this "
        f"launch? (rank {1 - rank} is missing)"
    )
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert folder.exists() == (rank == 1)


@pytest.mark.parametrize("proc", [True, False])
def test_the_store_waits_as_long_as_the_caller_and_one_rank_removes_it(folder, monkeypatch, proc):
    ended, isdir = [], os.path.isdir
    monkeypatch.setattr(meeting, "fresh", lambda store, *given: (store, given))
    monkeypatch.setattr(meeting.atexit, "register", lambda *of, **how: ended.append((of[1], how)))
    monkeypatch.setattr(os.path, "isdir", lambda path: isdir(path) and (proc or "/fd" not in path))
    for rank in (1, 0):
        here = place(rank)
        store, given = meeting.meet_in_folder(here, 12.5)
        assert given == (here, 12.5)
        assert store.timeout == timedelta(seconds=12.5)
        assert folder.exists() == (rank == 1 or not proc)
    assert ended == [(folder, {"ignore_errors": True})] * (not proc)


def test_the_folder_and_the_file_in_it_are_this_users_alone(folder):
    before = descriptors()
    first, second = meeting.open_store(folder), meeting.open_store(folder)
    assert os.fstat(first).st_ino == os.fstat(second).st_ino
    assert os.fstat(first).st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert descriptors() == before + 2
    os.close(first)
    os.close(second)


def test_a_relative_runtime_folder_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert meeting.base_folder() == tmp_path


@pytest.mark.parametrize(
    ("address", "rank", "listens"),
    [
        ("10.77.0.1", 0, "10.77.0.1"),
        ("127.0.1.1", 0, ""),  # the machine's own name for itself
        ("10.77.0.1", 2, None),
    ],
)
def test_rank_0_listens_where_the_others_look_for_it(monkeypatch, address, rank, listens):
    asked, stores = [], []

    def listen(*where):
        asked.append(where)
        return SimpleNamespace(detach=lambda: 77)

    monkeypatch.setattr(meeting, "listen", listen)
    monkeypatch.setattr(meeting, "fresh", lambda store, here, timeout: (store, here.rank, timeout))
    monkeypatch.setattr(
        meeting.dist, "TCPStore", lambda *of, **how: stores.append((of, how)) or "store"
    )
    here = place(rank, one_machine=False, address=address, port=4321, world_size=5)
    assert meeting.meet(here, 7.0) == ("store", rank, 7.0)
    assert asked == ([] if listens is None else [(listens, 4321)])
    how = {"is_master": rank == 0, "timeout": timedelta(seconds=7), "wait_for_workers": True}
    assert stores == [((address, 4321, 5), how | {"master_listen_fd": None if rank else 77})]


def test_it_listens_on_one_address():
    with meeting.listen("127.0.0.1", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        socket.create_connection(listening.getsockname()).close()


def test_ranks_of_torchrun_meet_in_its_store(monkeypatch):
    asked, here = [], place(3, launcher="torchrun", one_machine=True, world_size=5)
    monkeypatch.setattr(meeting, "fresh", lambda *given: given)
    monkeypatch.setattr(
        meeting, "rendezvous", lambda *of, **how: asked.append((of, how)) or iter([("store", 0, 0)])
    )
    assert meeting.meet(here, 7.0) == ("store", here, 7.0)
    assert asked == [(("env://", 3, 5), {"timeout": timedelta(seconds=7)})]

    def refuses(*_, **how):
        raise dist.DistError("no store\nand much more")

    monkeypatch.setattr(meeting, "rendezvous", refuses)
    with pytest.raises(RuntimeError, match=r"rank 3 of 5 did not .* within 7 s.*\(no store\)$"):
        meeting.meet(here, 7.0)


def test_without_an_address_several_machines_are_told_how_to_name_it():
    with pytest.raises(RuntimeError, match=r"^mpiexec started .* -genv MASTER_ADDR") as caught:
        meeting.meet(place(launcher="mpiexec", one_machine=False, address=None), 60)
    assert "did not meet" not in str(caught.value)


@pytest.mark.parametrize(
    ("one_machine", "address", "leads", "gloo", "nccl"),
    [
        (True, "node1", "eth7", "lo", "lo"),
        (False, "node1", "eth7", "eth7", None),
        (False, "node1", "lo", None, None),  # the other machines cannot reach it
        (False, "node1", None, None, None),
        (False, None, "eth7", None, None),
    ],
)
def test_which_interface_is_listened_on(monkeypatch, one_machine, address, leads, gloo, nccl):
    names, asked = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), []
    monkeypatch.setattr(meeting.sys, "platform", "linux")
    monkeypatch.setattr(meeting, "interface_towards", lambda *to: asked.append(to) or leads)
    here = place(one_machine=one_machine, address=address, port=4321)
    monkeypatch.setattr(os, "environ", {})
    meeting.choose_interfaces(here)
    assert [os.environ.get(name) for name in names] == [gloo, nccl]
    assert asked == [("node1", 4321)] * (not one_machine and address is not None)
    monkeypatch.setattr(os, "environ", dict.fromkeys(names, "mine"))
    meeting.choose_interfaces(here)
    assert [os.environ[name] for name in names] == ["mine", "mine"]


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The folder for temporary files, for this user alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path


def member(rank: int, one_machine: bool = True) -> Place:
    return place(rank, world_size=3, one_machine=one_machine)


@pytest.mark.parametrize("one_machine", [True, False])
def test_all_ranks_get_one_key_and_each_call_another(one_machine, private):
    calls = []
    for _ in range(2):
        store = dist.HashStore()
        with ThreadPoolExecutor(3) as ranks:
            keys = list(
                ranks.map(lambda r, s=store: share_key(member(r, one_machine), s, 60), range(3))
            )
        assert len(set(keys)) == 1
        assert len(keys[0]) == KEY_BYTES
        # on one machine the store holds the name of the folder alone
        assert (keys[0].hex() in store.get("key").decode()) != one_machine
        calls.append(keys[0])
    assert calls[0] != calls[1]
    assert list(private.iterdir()) == []


def test_the_folder_stays_until_the_last_rank_has_read(private):
    store, found = dist.HashStore(), []
    first = threading.Thread(target=lambda: found.append(share_key(member(0), store, 60)))
    first.start()
    key = share_key(member(1), store, 60)
    time.sleep(0.1)  # rank 0 looks every 5 ms
    assert first.is_alive()
    assert share_key(member(2), store, 60) == key
    first.join(60)
    assert found == [key]
    assert list(private.iterdir()) == []


def test_a_rank_that_never_reads_ends_the_wait(private):
    store = dist.HashStore()
    store.add("key/read", 1)  # one of two
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="not every rank has read the key"):
        share_key(member(0), store, 0.05)
    assert 0.05 <= time.monotonic() - began < 30
    assert list(private.iterdir()) == []


def test_a_key_is_read_from_a_private_folder_only(private):
    key = write_key(private, new_key())
    assert (private / "key").stat().st_mode & 0o777 == 0o600
    before = len(os.listdir("/proc/self/fd"))
    assert read_key(private) == key
    private.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"can enter .* another user may have named it"):
        read_key(private)
    with pytest.raises(RuntimeError, match="no key"):
        read_key(private / "nowhere")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.timeout(60)  # nobody writes into the pipe
def test_half_a_key_and_links_are_no_keys(private):
    private, folders = private / "private", private
    private.mkdir(mode=0o700)
    write_key(private, new_key()[:-1])
    with pytest.raises(RuntimeError, match="Start again"):
        read_key(private)
    with pytest.raises(FileExistsError):
        write_key(private, new_key())
    (private / "key").rename(folders / "elsewhere")
    (private / "key").symlink_to(folders / "elsewhere")
    (folders / "link").symlink_to(private)
    pipe = folders / "pipe"
    pipe.mkdir(mode=0o700)
    os.mkfifo(pipe / "key")
    with pytest.raises(RuntimeError, match="Start again"):
        read_key(pipe)
    for folder in (private, folders / "link"):
        with pytest.raises(RuntimeError, match="no key of these ranks"):
            read_key(folder)
