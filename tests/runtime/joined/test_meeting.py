"""Where ranks of one machine meet: a folder that nobody else has made, or can enter."""

import os
import subprocess
import sys
import time

import pytest

from helpers.runtime.joined.meeting import base_folder, meet, meeting_name, open_store
from helpers.runtime.launcher import Place
from helpers.runtime.proof import KEY_BYTES
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
    with pytest.raises(OSError, match="symbolic links"):
        open_store(folder)


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
from tests.runtime.joined.test_meeting import place
from helpers.runtime.joined.key import share_key
from helpers.runtime.joined.meeting import meet
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


@pytest.mark.parametrize("stale", [False, True])
def test_ranks_meet_there_without_a_socket_and_leave_nothing(folder, tmp_path, stale):
    if stale:  # of ranks that were killed
        folder.mkdir(mode=0o700)
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
