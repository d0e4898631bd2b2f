"""One key for all ranks: through a private folder on one machine, else through the store."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from helpers.runtime.joined.key import read_key, share_key, write_key
from helpers.runtime.launcher import Place
from helpers.runtime.proof import KEY_BYTES, new_key


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path


def place(rank: int, one_machine: bool = True) -> Place:
    ranks = {"rank": rank, "world_size": 3, "local_rank": rank, "local_size": 3}
    return Place(launcher="srun", start="srun 7.0", one_machine=one_machine, **ranks)


@pytest.mark.parametrize("one_machine", [True, False])
def test_all_ranks_get_one_key_and_each_call_another(one_machine, folders):
    calls = []
    for _ in range(2):
        store = dist.HashStore()
        with ThreadPoolExecutor(3) as ranks:
            keys = list(
                ranks.map(lambda r, s=store: share_key(place(r, one_machine), s, 60), range(3))
            )
        assert len(set(keys)) == 1
        assert len(keys[0]) == KEY_BYTES
        # on one machine the store holds the name of the folder alone
        assert (keys[0].hex() in store.get("key").decode()) != one_machine
        calls.append(keys[0])
    assert calls[0] != calls[1]
    assert list(folders.iterdir()) == []


def test_the_folder_stays_until_the_last_rank_has_read(folders):
    store, found = dist.HashStore(), []
    first = threading.Thread(target=lambda: found.append(share_key(place(0), store, 60)))
    first.start()
    key = share_key(place(1), store, 60)
    time.sleep(0.1)  # rank 0 looks every 5 ms
    assert first.is_alive()
    assert share_key(place(2), store, 60) == key
    first.join(60)
    assert found == [key]
    assert list(folders.iterdir()) == []


def test_a_rank_that_never_reads_ends_the_wait(folders):
    store = dist.HashStore()
    store.add("key/read", 1)  # one of two
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="not every rank has read the key"):
        share_key(place(0), store, 0.05)
    assert 0.05 <= time.monotonic() - began < 30
    assert list(folders.iterdir()) == []


def test_a_key_is_read_from_a_private_folder_only(folders):
    key = write_key(folders, new_key())
    assert (folders / "key").stat().st_mode & 0o777 == 0o600
    before = len(os.listdir("/proc/self/fd"))
    assert read_key(folders) == key
    folders.chmod(0o755)
    with pytest.raises(RuntimeError, match="another user may have named it"):
        read_key(folders)
    with pytest.raises(RuntimeError, match="no key"):
        read_key(folders / "nowhere")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.timeout(60)  # nobody writes into the pipe
def test_half_a_key_and_links_are_no_keys(folders):
    private = folders / "private"
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
