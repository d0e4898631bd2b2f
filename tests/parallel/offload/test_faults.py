"""Full disks, torn files, read-only folders, killed ranks: an error that says it, nothing lost."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.settings import ExpertSettings
from helpers.parallel.offload import versions
from helpers.parallel.offload.blocks import BlockFile
from helpers.parallel.offload.disk import on_disk, recover
from helpers.parallel.offload.versions import Versions
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.precision.scaling import LossScale
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.state.seal import BrokenCheckpoint
from tests.parallel.beside import ODD, RULE, apart, flat, frozen

GIVEN = {"dtype": torch.float64, "optimizer": RULE}


def make(folder, mesh=None, precision=None, **options):
    owner = (
        on_disk(Zero1, folder=folder, block=4096) if mesh else on_disk(folder=folder, block=4096)
    )
    recipe = Recipe(owner=owner, precision=precision or Plain())
    return recipe(ODD, 3, mesh, **{**GIVEN, **options})


def step(trained, k):
    batch = random_batch(k, 4, ODD.context, ODD.vocab)
    return trained.step(batch.shard(trained.data_rank, trained.data_size))


def alone(steps):
    one = Single(ODD, 3, **GIVEN)
    for k in range(steps):
        step(one, k)
    return one.full_state()


def equal(state, steps) -> bool:
    twin = alone(steps)
    far = apart(state["model"], twin["model"])
    return max(far, apart(flat(state["optimizer"]), flat(twin["optimizer"]))) < 1e-12


# a rank is killed while it writes

KILLS = {  # what rank 1 does in its third update, and the updates that all ranks then have
    "in the middle of the blocks": ("write", 2),
    "before its record": ("commit", 2),
    "after its record": ("done", 2),
}


def dies(worker, folder, moment):
    torch.set_num_threads(1)
    trained = make(folder, make_mesh(Layout(dp=2)))
    for k in range(2):
        step(trained, k)
    if worker.rank == 1:
        own, names = (BlockFile, "write") if moment == "write" else (Versions, "commit")
        before = getattr(own, names)

        def killed(self, *args):
            if moment == "done":
                before(self, *args)
            if moment != "write" or args[0] == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return before(self, *args)

        setattr(own, names, killed)
    step(trained, 2)
    step(trained, 3)


def goes_on(worker, folder, until):
    torch.set_num_threads(1)
    trained = make(folder, make_mesh(Layout(dp=2)))
    updates = recover(trained)
    states = [trained.full_state()]
    for k in range(updates, until):
        step(trained, k)
    states.append(trained.full_state())
    trained.close()
    return updates, states


@pytest.mark.parametrize(("moment", "least"), KILLS.values(), ids=KILLS)
def test_a_killed_rank_loses_no_whole_step(in_memory, moment, least):
    with pytest.raises(WorkerError, match="SIGKILL"):
        launch(dies, 2, device="cpu", folder=in_memory, moment=moment)
    for updates, (at_once, later) in launch(goes_on, 2, device="cpu", folder=in_memory, until=5):
        # the other rank may have been ended before, or after, its own third update was whole
        assert updates == least or (moment == "done" and updates == 3)
        assert equal(at_once, updates)
        assert equal(later, 5)


def test_the_ranks_agree_on_the_last_update_that_all_have(in_memory):
    """Rank 1's last version is torn, so rank 0 goes back too."""
    launch(goes_far, 2, device="cpu", folder=in_memory)
    damage(newest(in_memory, 1).with_suffix(".state"), "cut")
    for updates, (at_once, _) in launch(goes_on, 2, device="cpu", folder=in_memory, until=2):
        assert updates == 2
        assert equal(at_once, 2)
    for path in in_memory.glob("rank1-*.state"):
        damage(path, "cut")
    for said in launch(is_refused, 2, device="cpu", folder=in_memory):
        assert re.search(r"no update that all ranks have\. rank 1: .*rank1-a.*rank1-b", said)


def is_refused(worker, folder):
    try:
        recover(make(folder, make_mesh(Layout(dp=2))))
    except BrokenCheckpoint as error:
        return str(error)


def goes_far(worker, folder):
    torch.set_num_threads(1)
    trained = make(folder, make_mesh(Layout(dp=2)))
    for k in range(3):
        step(trained, k)
    trained.close()


# a file is torn


def newest(folder, rank=0):
    """The record of a rank's last version."""
    records = folder.glob(f"rank{rank}-*.json")
    return max(records, key=lambda path: json.loads(path.read_text())["updates"])


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[:-4096]
    elif how == "a bit":
        data[5000] ^= 1
    else:
        data[:4096] = bytes(4096)
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "a bit", "zeros"])
def test_a_torn_file_is_found_and_the_version_before_it_is_whole(in_memory, how):
    trained = make(in_memory)
    for k in range(3):
        step(trained, k)
    trained.close()
    damage(newest(in_memory).with_suffix(".state"), how)
    opened = len(os.listdir("/proc/self/fd"))
    anew = make(in_memory)
    assert recover(anew) == 2
    assert equal(anew.full_state(), 2)
    for k in (2, 3):
        step(anew, k)
    assert equal(anew.full_state(), 4)
    anew.close()
    assert len(os.listdir("/proc/self/fd")) == opened
    for path in in_memory.glob("*.state"):
        damage(path, how)
    with pytest.raises(BrokenCheckpoint, match=r"rank 0: .*rank0-a.state .*torn.*rank0-b.state"):
        recover(make(in_memory))


def test_another_run_s_files_are_neither_overwritten_nor_mixed_up(in_memory):
    trained = make(in_memory)
    step(trained, 0)
    trained.close()
    with pytest.raises(FileExistsError, match=r"continue from it with recover\(\)"):
        step(make(in_memory), 0)
    with pytest.raises(FileExistsError, match="earlier run"):
        make(in_memory).load(alone(1))
    other = make(in_memory, dtype=torch.float32)
    with pytest.raises(BrokenCheckpoint, match="has other dtype than this training"):
        recover(other)
    with pytest.raises(BrokenCheckpoint, match=r"rank0-a.json is missing"):
        recover(make(in_memory / "new"))
    again = make(in_memory)
    assert recover(again) == 1
    assert equal(again.full_state(), 1)


def test_what_has_no_gradient_comes_back(in_memory):
    """Frozen parameters of a state that was loaded; a router's balance."""
    config = replace(ODD, experts=ExpertSettings(count=4, bias_rate=0.1))
    recipe = Recipe(owner=on_disk(folder=in_memory, block=4096), transform=frozen("attention"))
    first, trained = Single(config, 9, **GIVEN), recipe(config, 3, **GIVEN)
    step(first, 0)
    trained.load(first.full_state())
    step(trained, 1)
    anew = recipe(config, 3, **GIVEN)
    assert recover(anew) == 2
    assert apart(anew.full_state()["model"], trained.full_state()["model"]) == 0


@pytest.mark.parametrize("back_to", [0, 2, None])
def test_the_loss_scale_comes_back(in_memory, back_to):
    """After updates; and after the load of an earlier state, which ends the later ones."""
    scaled = Mixed(torch.float64, scale=LossScale(scale=4.0, interval=2))
    trained, states = make(in_memory, precision=scaled), []
    for k in range(3):
        states.append(trained.full_state())
        step(trained, k)
    if back_to is not None:
        trained.load(states[back_to])
    anew = make(in_memory, precision=scaled)
    updates = 3 if back_to is None else back_to
    assert recover(anew) == updates
    assert anew.scale_state() == trained.scale_state()
    assert equal(anew.full_state(), updates)


# the disk refuses


@contextmanager
def no_file_above(size):
    """Let the system refuse writes beyond this place of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def refusing(owner, name):
    """Let a function of this module or class refuse."""

    def refuse(*_):
        raise OSError(errno.EIO, "no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, refuse)
        yield


REFUSALS = {  # where the disk refuses the third update
    "a block": lambda: no_file_above(8192),
    "the flush": lambda: refusing(BlockFile, "flush"),
    "the record": lambda: refusing(versions, "to_disk"),
    "its name": lambda: refusing(os, "replace"),
}


@pytest.mark.parametrize("precision", [Plain(), Mixed(torch.float64)], ids=["plain", "mixed"])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refused_write_leaves_the_last_step(in_memory, precision, refusal):
    trained = make(in_memory, precision=precision)
    for k in range(2):
        step(trained, k)
    words = r"update 3 was not written to .*files and parameters are those of update 2"
    with refusal(), pytest.raises(OSError, match=words):
        step(trained, 2)
    assert equal(trained.full_state(), 2)
    step(trained, 2)  # there is room again
    assert equal(trained.full_state(), 3)
    trained.close()
    anew = make(in_memory, precision=precision)
    assert recover(anew) == 3


def test_a_full_disk_is_found_before_the_first_update(in_memory):
    trained = make(in_memory)
    before = trained.full_state()
    with no_file_above(8192), pytest.raises(OSError, match=r"rank0-a.state needs .* bytes"):
        step(trained, 0)
    assert apart(trained.full_state()["model"], before["model"]) == 0
    assert not list(in_memory.glob("*.state"))
    step(trained, 0)
    assert equal(trained.full_state(), 1)


def test_a_full_disk_at_a_recovery_deletes_no_version(in_memory):
    trained = make(in_memory)
    for k in range(2):
        step(trained, k)
    trained.close()
    assert newest(in_memory).name == "rank0-a.json"
    (in_memory / "rank0-b.state").unlink()
    with no_file_above(8192), pytest.raises(OSError, match=r"rank0-b.state needs .* bytes"):
        recover(make(in_memory))
    anew = make(in_memory)
    assert recover(anew) == 2
    assert equal(anew.full_state(), 2)


def mounted(folder, options) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return (
        bool(shutil.which("mount")) and not subprocess.run(command, capture_output=True).returncode
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [("ro", "choose a folder that this process may write to"), ("size=128k", "free some room")],
    ids=["read-only", "room for one of two files"],
)
def test_a_real_file_system_that_refuses(in_memory, options, words):
    if not mounted(in_memory, options):
        pytest.skip("needs the right to mount a file system")
    try:
        for _ in range(2):  # it says the same again
            with pytest.raises(OSError, match=words):
                step(make(in_memory / "state"), 0)
        assert not list(in_memory.rglob("*.state"))
    finally:
        subprocess.run(["umount", "-l", str(in_memory)], check=True)
