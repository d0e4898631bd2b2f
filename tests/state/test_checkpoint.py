"""A checkpoint loads into another layout, another dtype, another number of ranks."""

import math
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.state import checkpoint
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.placing import cut, flat, pending, whole
from helpers.state.seal import BrokenCheckpoint, newest
from helpers.state.slicing import take
from tests.state.cases import Recipe, everyone, layouts, models, numbers

STEP = torch.tensor(3.0)


def plain_of(parts, dtype=torch.float64):
    return {name: numbers(shape, dtype) for name, shape in parts.shapes.items()}


def saves(worker, sizes, recipes, path, frozen="", dtype=torch.float64):
    layout = Layout(**sizes)
    mesh, parts = make_mesh(layout), everyone(layout, recipes)
    plain = plain_of(parts, dtype)
    local = {key: take(part, plain[part.name]) for key, part in parts.ranks[worker.rank].items()}
    kept = {
        key: {"exp_avg": tensor.float() * 2, "exp_avg_sq": tensor * 3, "step": STEP}
        for key, tensor in local.items()
        if parts.ranks[worker.rank][key].name != frozen
    }
    checkpoint.save(path, mesh, parts, local, kept)


def loads(worker, sizes, recipes, path, frozen="", dtype=torch.float64):
    layout = Layout(**sizes)
    mesh, parts = make_mesh(layout), everyone(layout, recipes)
    plain, own = plain_of(parts), parts.ranks[worker.rank]
    local = {
        key: torch.nn.Parameter(torch.zeros(p.local_shape, dtype=dtype)) for key, p in own.items()
    }
    kept = checkpoint.load(path, mesh, parts, local)
    trained = {key: part for key, part in own.items() if part.name != frozen}
    assert {key for key, part in trained.items() if part.numel} <= kept.keys() <= trained.keys()
    for key, part in own.items():
        assert torch.equal(local[key], take(part, plain[part.name]).to(dtype))
        if key in kept:
            assert torch.equal(kept[key]["exp_avg"], take(part, plain[part.name]).float() * 2)
            assert kept[key]["exp_avg"].dtype == torch.float32
            assert torch.equal(kept[key]["exp_avg_sq"], take(part, plain[part.name]) * 3)
            if part.numel:
                assert torch.equal(kept[key]["step"], STEP)


def sizes_of(layout: Layout) -> dict[str, int]:
    return dict(zip(layout.axes, layout.shape, strict=True))


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_from_any_layout_to_any_other(cluster, data):
    one, other = data.draw(layouts(4)), data.draw(layouts(4))
    recipes = data.draw(models(one))
    again = data.draw(models(other, [recipe.shape for recipe in recipes]))
    frozen = data.draw(st.sampled_from(["", "t0"]))
    folder = mkdtemp()
    try:
        path = Path(folder, "checkpoint")
        cluster.run(saves, sizes=sizes_of(one), recipes=recipes, path=path, frozen=frozen)
        cluster.run(loads, sizes=sizes_of(other), recipes=again, path=path, frozen=frozen)
    finally:
        shutil.rmtree(folder)


TENSORS = [("matrix", (10, 6)), ("norm", (7,)), ("scalar", ())]
ZERO = [Recipe(n, s, (("flat", "dp"),)) for n, s in TENSORS]
COLUMNS = [
    Recipe("matrix", (10, 6), (("cut", 1, "tp", None),)),
    *(Recipe(n, s, ()) for n, s in TENSORS[1:]),
]
STAGES = [
    Recipe("matrix", (10, 6), (("only", "pp", (0, 2)),)),
    *(Recipe(n, s, (("only", "pp", (1,)),)) for n, s in TENSORS[1:]),
]


def test_other_numbers_of_ranks(tmp_path):
    """ZeRO on 4 ranks, a tied pipeline on 3, tensor parallel on 2, then one process."""
    launch(saves, 4, sizes={"dp": 4}, recipes=ZERO, path=tmp_path / "c")
    launch(loads, 3, sizes={"pp": 3}, recipes=STAGES, path=tmp_path / "c")
    launch(saves, 3, sizes={"pp": 3}, recipes=STAGES, path=tmp_path / "d")
    launch(loads, 2, sizes={"tp": 2}, recipes=COLUMNS, path=tmp_path / "d")
    # A parameter without dims, as a flat range of zero or one number: its step stays a count.
    launch(loads, 2, sizes={"dp": 2}, recipes=ZERO, path=tmp_path / "d")
    launch(
        loads,
        1,
        sizes={"dp": 1},
        recipes=[Recipe(n, s, ()) for n, s in TENSORS],
        path=tmp_path / "d",
        dtype=torch.float32,
    )


def test_pytorch_reads_it_alone(cluster, tmp_path):
    """One process without a process group reads plain names and plain shapes."""
    cluster.run(saves, sizes={"dp": 2, "tp": 2}, recipes=COLUMNS, path=tmp_path / "c")
    state = {f"model.{name}": torch.zeros(shape, dtype=torch.float64) for name, shape in TENSORS}
    state |= {f"optimizer.exp_avg.{name}": torch.zeros(shape) for name, shape in TENSORS}
    dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
    for name, shape in TENSORS:
        assert torch.equal(state[f"model.{name}"], numbers(shape))
        assert torch.equal(state[f"optimizer.exp_avg.{name}"], numbers(shape).float() * 2)


def test_each_number_is_written_once(cluster, tmp_path):
    """Four replicas hold one megabyte each, and the files together have one megabyte."""

    def save(worker, path):
        mesh = make_mesh(Layout(dp=2, tp=2))
        own = {
            "a": pending(mesh, whole(mesh, "a", (256, 512)), "dp"),
            "b": flat(mesh, cut(mesh, whole(mesh, "b", (256, 512)), 1, "tp"), "dp"),
        }
        local = {key: torch.ones(part.local_shape) for key, part in own.items()}
        checkpoint.save(path, mesh, AllParts.exchanged(own), local)

    cluster.run(save, path=tmp_path / "c")
    written = sum(file.stat().st_size for file in (tmp_path / "c").glob("*.distcp"))
    assert 2**20 <= written < 2**20 + 30_000


def synced(worker, sizes, recipes, path):
    """Save; return the names of the files whose bytes this rank waited for."""
    names, fsync = set(), os.fsync

    def noted(handle):
        number = handle if isinstance(handle, int) else handle.fileno()
        names.add(Path(f"/proc/self/fd/{number}").readlink().name)
        fsync(handle)

    os.fsync = noted
    try:
        saves(worker, sizes, recipes, path)
    finally:
        os.fsync = fsync
    return sorted(names)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_every_rank_waits_for_its_own_bytes(cluster, tmp_path):
    """On several machines, the first rank's wait says nothing of what the others' systems hold."""
    found = cluster.run(synced, sizes={"dp": 4}, recipes=ZERO, path=tmp_path / "c")
    for rank, names in enumerate(found):
        assert any(name.startswith(f"__{rank}_") for name in names), (rank, names)


def test_names_with_dots_and_no_optimizer(cluster, tmp_path):
    recipes = [Recipe("blocks.0.mlp.up.weight", (4, 4), (("flat", "dp"),))]

    def both(worker, recipes, path):
        mesh, parts = make_mesh(Layout(dp=4)), everyone(Layout(dp=4), recipes)
        [(key, part)] = parts.ranks[worker.rank].items()
        local = {key: take(part, numbers((4, 4)))}
        checkpoint.save(path, mesh, parts, local)
        zeros = {key: torch.zeros_like(local[key])}
        digested, digest = [], checkpoint.seal.digest
        checkpoint.seal.digest = lambda file: digested.append(file.name) or digest(file)
        assert checkpoint.load(path, mesh, parts, zeros) == {}
        checkpoint.seal.digest = digest
        assert torch.equal(zeros[key], local[key])
        return digested

    digested = cluster.run(both, recipes=recipes, path=tmp_path / "c")
    # Each file is read by one rank: a large checkpoint is not checked once per rank.
    assert sorted(name for own in digested for name in own) == checkpoint.seal.files(tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "slot"), [("trained", ""), ("frozen", ""), ("trained", "exp_avg")]
)
def test_numbers_that_are_not_finite_are_refused_with_and_without_moments(tmp_path, name, slot):
    """One process. The frozen tensor has no optimizer state."""
    own = {key: Part(name=key, shape=(3,), holders=(0,)) for key in ("frozen", "trained")}
    local = {key: torch.ones(3) for key in own}
    kept = {"trained": {"exp_avg": torch.ones(3), "step": STEP}}
    (kept[name][slot] if slot else local[name])[2] = math.nan
    checkpoint.save(tmp_path / "c", None, AllParts([own]), local, kept)
    fresh = {key: torch.zeros(3) for key in own}
    words = f"^{slot} of {name} has NaN" if slot else f"^{name} has NaN"
    with pytest.raises(ValueError, match=words):
        checkpoint.load(tmp_path / "c", None, AllParts([own]), fresh)
    assert not any(tensor.any() for tensor in fresh.values())


def test_another_model(cluster, tmp_path):
    cluster.run(saves, sizes={"dp": 4}, recipes=ZERO[:2], path=tmp_path / "c")
    with pytest.raises(WorkerError, match=r"does not contain scalar \(\)"):
        cluster.run(loads, sizes={"dp": 4}, recipes=ZERO, path=tmp_path / "c")
    with pytest.raises(WorkerError, match=r"does not contain matrix \(6, 10\)"):
        cluster.run(
            loads, sizes={"dp": 4}, recipes=[Recipe("matrix", (6, 10), ())], path=tmp_path / "c"
        )


def test_a_rank_is_killed_while_it_writes(tmp_path):
    """Then there is no checkpoint under this name; the next try writes a whole one."""

    def save(worker, path, kill):
        def killed(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        if kill and worker.rank == 1:
            checkpoint.seal.measured = killed  # the data is written, the seal is not
        saves(worker, {"dp": 2}, ZERO, path)

    path = tmp_path / "step_1"
    with pytest.raises(WorkerError, match="SIGKILL"):
        launch(save, 2, path=path, kill=True)
    assert not path.exists()
    assert newest(tmp_path) is None
    launch(save, 2, path=path, kill=False)
    assert newest(tmp_path) == path
    assert [file.name for file in tmp_path.iterdir()] == ["step_1"]


def test_every_rank_refuses(cluster, tmp_path):
    """A checkpoint is never overwritten, and a changed byte is found by the rank that reads it."""

    def both(worker, path):
        errors = []
        for act in (saves, loads):
            try:
                act(worker, {"dp": 4}, ZERO, path)
            except (FileExistsError, BrokenCheckpoint) as error:
                errors.append(f"{type(error).__name__}: {error}")
        return errors

    path = tmp_path / "c"
    cluster.run(saves, sizes={"dp": 4}, recipes=ZERO, path=path)
    data = max(path.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    runs = cluster.run(both, path=path)
    for exists, broken in runs:
        assert exists.startswith("FileExistsError")
        assert broken.startswith("BrokenCheckpoint")
        assert data.name in broken


def test_a_disk_that_refuses_is_an_error_on_every_rank(cluster, tmp_path):
    """One rank makes the folder; the others would wait for it."""

    def save(worker, path):
        try:
            saves(worker, {"dp": 4}, ZERO, path)
        except OSError as error:
            return str(error)

    (tmp_path / "file").write_text("")
    for told in cluster.run(save, path=tmp_path / "file" / "c"):
        assert "file" in told


def test_a_full_disk_is_one_sentence_and_the_checkpoint_before_stays(cluster, tmp_path):
    """While folder, tensors or table of contents are written; also in the middle of a file."""

    def save(worker, path):
        try:
            saves(worker, {"dp": 4}, ZERO, path)
        except OSError as error:
            return str(error)

    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    words = "was not saved: .*(No space left|disk is full).* are whole$"
    try:
        assert set(cluster.run(save, path=tmp_path / "1")) == {None}
        for pages in (0, 2, 4):
            room = shutil.disk_usage(tmp_path).free - 4096 * pages
            (tmp_path / "filler").write_bytes(bytes(room))
            for told in cluster.run(save, path=tmp_path / "2"):
                assert re.search(words, told)
            (tmp_path / "filler").unlink()
            assert [path.name for path in tmp_path.iterdir()] == ["1"]
        assert newest(tmp_path) == tmp_path / "1"
        alone = AllParts([{"t": Part(name="t", shape=(2000,), holders=(0,))}])
        (tmp_path / "filler").write_bytes(bytes(shutil.disk_usage(tmp_path).free - 4096))
        threads = threading.active_count()
        with pytest.raises(OSError, match=words):
            checkpoint.save(tmp_path / "2", None, alone, {"t": torch.ones(2000)})
        assert threading.active_count() == threads
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_that_cannot_be_read_again_is_an_error_on_every_rank(cluster, tmp_path):
    """The other ranks would wait for the checksums of the rank that failed."""

    def save(worker, path):
        def refuses(*_):
            raise OSError(5, "Input/output error")

        measured = checkpoint.seal.measured
        if worker.rank == 2:
            checkpoint.seal.measured = refuses
        try:
            saves(worker, {"dp": 4}, ZERO, path)
        except OSError as error:
            return str(error)
        finally:
            checkpoint.seal.measured = measured

    for told in cluster.run(save, path=tmp_path / "c"):
        assert re.search("was not saved: .*Input/output error", told)
    assert list(tmp_path.iterdir()) == []


def test_what_stops_the_first_rank_stops_all(cluster):
    """An error that is none of the disk's has its own kind, there where it happened."""

    def act(worker):
        def end():
            if worker.rank == 2:
                raise BrokenCheckpoint("torn\nin two lines")

        try:
            checkpoint.together(end)
        except BrokenCheckpoint as error:
            return str(error)

    assert list(cluster.run(act)) == ["torn\nin two lines"] * 4
