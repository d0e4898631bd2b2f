"""DeepSpeed's extension is compiled once, by one process; killed compilations leave no trap."""

import fcntl
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from helpers.parallel.libraries import deepspeed_extension as extension
from helpers.plans.deepspeed_config import BATCH, OFFLOAD, read
from helpers.runtime.launch import launch


def test_without_a_compiler_it_says_what_to_do(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"no `no-such-compiler` here. Install one"):
        extension.compile_extension()


def test_without_deepspeed_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(RuntimeError, match=r"cannot be imported here .*Linux.*make setup"):
        extension.deepspeed()


def test_the_folder_is_of_this_pytorch_and_in_build(monkeypatch):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    folder = extension.extensions_folder()
    assert folder.relative_to(extension.PROJECT).parts[:2] == ("build", "torch_extensions")
    assert torch.__version__ in folder.name
    assert f"python3.{sys.version_info.minor}" in folder.name
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/elsewhere")
    assert str(extension.extensions_folder()) == "/elsewhere"


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """A DeepSpeed without code; its builder's `load` is replaced by each test."""

    class ShareMemCommBuilder:
        NAME = "shared"

    builders = ModuleType("deepspeed.ops.op_builder.cpu")
    builders.ShareMemCommBuilder = ShareMemCommBuilder
    for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.op_builder"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, builders.__name__, builders)
    monkeypatch.setenv("CXX", "true")  # a program that is everywhere
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "by variable"))
    monkeypatch.setattr(extension, "_prepared", set())
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("DS_ACCELERATOR", "")
    monkeypatch.delenv("DS_ACCELERATOR")
    return ShareMemCommBuilder


def test_only_a_cpu_needs_the_extension_and_once(monkeypatch, stub):
    compiled = []
    monkeypatch.setattr(extension, "compile_extension", lambda: compiled.append(1))
    assert extension.deepspeed("cuda:1") is sys.modules["deepspeed"]
    assert compiled == []
    assert os.environ["DS_ACCELERATOR"] == "cuda"
    for _ in range(2):
        extension.deepspeed()
        assert compiled == [1]
    assert os.environ["DS_ACCELERATOR"] == "cuda"  # what is set stays


def test_it_compiles_under_the_lock_without_the_mark_of_a_killed_process(stub, tmp_path):
    seen = []

    def load(self, verbose):
        own = Path(os.environ["TORCH_EXTENSIONS_DIR"])
        with (own / "shared.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        seen.append((own, (own / "shared" / "lock").exists()))

    stub.load = load
    for folder in (tmp_path / "by variable", tmp_path / "a" / "given"):
        (folder / "shared").mkdir(parents=True)
        (folder / "shared" / "lock").touch()
        extension.compile_extension(None if "by" in folder.name else folder)
        with (folder / "shared.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again
    assert seen == [(tmp_path / "by variable", False), (tmp_path / "a" / "given", False)]


def test_a_compilation_that_fails_names_its_folder(stub, tmp_path):
    def load(self, verbose):
        raise OSError("no space")

    stub.load = load
    words = rf"by `true` into {tmp_path / 'x' / 'shared'}: no space\. Remove that folder"
    with pytest.raises(RuntimeError, match=words):
        extension.compile_extension(tmp_path / "x")


class Impatient:
    """An event that sets itself at the fourth wait."""

    def __init__(self, waits):
        self.waits = waits

    def wait(self, seconds):
        self.waits.append(seconds)
        return len(self.waits) > 3

    def set(self):
        pass


@pytest.mark.parametrize("there", [False, True])
def test_a_long_compilation_shows_signs_of_life(monkeypatch, capsys, stub, tmp_path, there):
    """A library that is there is only loaded: on a busy machine, this takes longer than two s."""
    waits: list[float] = []
    named = SimpleNamespace(Event=lambda: Impatient(waits), Thread=threading.Thread)
    monkeypatch.setattr(extension, "threading", named)
    stub.load = lambda self, verbose: None
    (tmp_path / "shared").mkdir()
    if there:
        (tmp_path / "shared" / "shared.so").touch()
    extension.compile_extension(tmp_path)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("compiling an extension of DeepSpeed")
    assert others == 2 * ["still compiling"]
    assert waits == [20.0 if there else 2.0, 20.0, 20.0, 20.0]


def prepare(worker, settings, other) -> dict:
    """Load the compiled extension although a killed process left PyTorch's mark behind."""
    folder = extension.extensions_folder() / "deepspeed_shm_comm"
    tools = str(Path(sys.executable).parent)
    before = os.environ["PATH"].split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(place for place in before if place != tools)
    began = time.monotonic()
    extension.deepspeed("cpu")
    assert os.environ["PATH"].split(os.pathsep) == [tools, *(p for p in before if p != tools)]
    found = {"first": time.monotonic() - began, "compiled": [*folder.glob("*.so")] != []}
    extension._prepared.clear()
    (folder / "lock").touch()
    late = threading.Timer(20.0, (folder / "lock").unlink)  # so that this test fails and ends
    late.start()
    extension.deepspeed("cpu")
    found["waited"] = not late.is_alive()
    late.cancel()
    found["mark left"] = (folder / "lock").exists()
    extension.compile_extension(Path(other))  # it is loaded already, so nothing is compiled
    found["other folder"] = os.environ["TORCH_EXTENSIONS_DIR"]
    found["accelerator"] = os.environ["DS_ACCELERATOR"]
    return found | theirs(settings)


def theirs(settings) -> dict:
    """What DeepSpeed itself reads in the settings; and its defaults."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero import offload_config

    sizes = []
    for one in settings:
        try:
            config = DeepSpeedConfig(dict(one))
            steps = config.gradient_accumulation_steps
            sizes.append((config.train_micro_batch_size_per_gpu, steps, config.train_batch_size))
        except AssertionError:
            sizes.append(None)
    models = {
        "offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    }
    defaults = {f"{section}.{name}": field.default for section, model in models.items()
                for name, field in model.model_fields.items()}  # fmt: skip
    return {"sizes": sizes, "defaults": defaults}


SETTINGS = [
    {**{k: v for k, v in zip(BATCH, sizes, strict=True) if v is not None}}
    for sizes in [(24, None, None), (None, 3, None), (24, 3, None), (24, None, 3), (None, 2, 5),
                  (20, 2, 5), (25, None, None), (24, 3, 5)]
]  # fmt: skip


def test_it_loads_and_reads_as_we_do(tmp_path):
    """After a killed compilation too; and DeepSpeed's own batch sizes and defaults are ours."""
    other = str(tmp_path / "other")
    [run] = launch(prepare, 1, device="cpu", settings=SETTINGS, other=other, timeout=300)
    assert run["compiled"]
    assert run["other folder"] == other
    assert not run["waited"]
    assert not run["mark left"]
    assert run["accelerator"] == "cpu"
    for settings, theirs in zip(SETTINGS, run["sizes"], strict=True):
        try:
            ours = read(settings, 1)
        except ValueError:
            assert theirs is None, settings
        else:
            assert theirs == (ours.micro_batch, ours.accumulation, ours.batch), settings
    fields = {name: default for name, *_, default in OFFLOAD}
    compared = fields.keys() & run["defaults"].keys()
    assert len(compared) == 9
    for name in compared:
        value = run["defaults"][name]
        if fields[name]:
            ours = {"true": True, "false": False}.get(fields[name], fields[name])
            assert (float(ours) == value) if isinstance(value, int | float) else ours == value, name
