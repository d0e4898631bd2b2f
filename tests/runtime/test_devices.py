"""Which device ranks get. Counts are made up: no GPU is needed."""

import os

import pytest
import torch

from helpers.runtime import devices
from helpers.runtime.devices import choose_device

GPUS = ("cuda", "cpu:gloo,cuda:nccl")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices, "_told", False)


def test_a_gpu_for_each_rank(two_gpus):
    assert choose_device(1, None) == GPUS
    assert choose_device(2, None) == GPUS
    assert choose_device(2, "cuda") == GPUS
    assert choose_device(2, "cpu") == ("cpu", "gloo")


def test_too_few_are_told_once_in_a_session(two_gpus, capsys):
    for _ in range(2):
        assert choose_device(4, None) == ("cpu", "gloo")
    assert choose_device(3, None) == ("cpu", "gloo")
    assert capsys.readouterr().out == "4 ranks, 2 GPUs: running on the CPU, with gloo\n"


def test_the_cpu_that_was_asked_for_is_not_told(two_gpus, capsys):
    choose_device(4, "cpu")
    assert capsys.readouterr().out == ""


def test_not_from_the_first_gpu_on(two_gpus):
    assert choose_device(1, "cuda", first_gpu=1) == GPUS
    with pytest.raises(ValueError, match="need 3 GPUs"):
        choose_device(2, "cuda", first_gpu=1)


def test_one_gpu_is_told_in_the_singular(two_gpus, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device(2, None) == ("cpu", "gloo")
    assert capsys.readouterr().out == "2 ranks, 1 GPU: running on the CPU, with gloo\n"


def test_the_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5} if pid == 0 else set())
    assert devices.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert devices.cores() == 7


@pytest.mark.parametrize(
    ("there", "calls"),
    [((), 0), (("nvidiactl",), 1), (("nvidiactl", "nvidia-uvm"), 0)],
    ids=["no driver", "a fresh machine", "later"],
)
def test_the_driver_s_files_are_made_outside_of_the_ranks_network(there, calls, monkeypatch):
    asked = []
    files = {f"/dev/{name}" for name in there}
    monkeypatch.setattr(os.path, "exists", files.__contains__)
    monkeypatch.setattr(devices.subprocess, "run", lambda command, **_: asked.append(command))
    devices.make_device_files()
    assert len(asked) == calls
    assert all("cuInit(0)" in command[-1] for command in asked)
