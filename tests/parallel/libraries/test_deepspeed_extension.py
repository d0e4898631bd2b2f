"""DeepSpeed's extension is compiled once, by one process; killed compilations leave no trap."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

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


HOLD = """
import sys, time
from pathlib import Path
from helpers.parallel.libraries.deepspeed_extension import locked
with locked(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""


def test_the_lock_ends_with_its_process(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=extension.PROJECT)
    assert holder.stdout.readline() == b"in\n"
    passed = threading.Event()

    def enter():
        with extension.locked(path):
            passed.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not passed.wait(0.3)
    holder.kill()
    assert passed.wait(10)
    thread.join()
    holder.wait()
    holder.stdout.close()


def interrupted():
    with extension.signs_of_life():
        raise ZeroDivisionError


def test_the_signs_of_life_end_whatever_happens():
    before = threading.active_count()
    with extension.signs_of_life():
        assert threading.active_count() == before + 1
    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert threading.active_count() == before


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
    fields = {f"{field.section}.{field.name}": field.default for field in OFFLOAD}
    compared = fields.keys() & run["defaults"].keys()
    assert len(compared) == 9
    for name in compared:
        value = run["defaults"][name]
        if fields[name]:
            ours = {"true": True, "false": False}.get(fields[name], fields[name])
            assert (float(ours) == value) if isinstance(value, int | float) else ours == value, name
