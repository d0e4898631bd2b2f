"""The path to the GPUs: run on the first machine that has one, it proves the path in minutes."""

import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.forkserver import client

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def sum_ranks(worker, x=0.0):
    tensor = torch.full((4,), x + worker.rank, device=worker.device)
    dist.all_reduce(tensor)
    return {"sum": tensor[0].item(), "device": str(worker.device)}


def step(worker):
    """A whole step of training: it asks for the accelerator, as the server must not."""
    model = torch.nn.Linear(8, 8, device=worker.device)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8, device=worker.device)).square().mean().backward()
    optimizer.step()
    return os.getppid(), model.weight.grad.norm().item()


@pytest.fixture
def fresh_server():
    server = client.Server()
    current, client._server = client._server, server
    yield server
    client._server = current
    server.stop()


def test_launches_in_a_row_across_the_generations(fresh_server):
    """The first generation's ranks, the second's, and each after a step on CPU and on GPU."""
    parents, deadline = [], time.monotonic() + 120
    while len(set(parents)) < 2:
        for device in ("cuda", "cpu"):
            parent, norm = launch(step, workers=1, device=device)[0]
            assert norm > 0
            parents.append(parent)
        assert time.monotonic() < deadline
    assert parents[-1] == fresh_server.process.pid
    assert launch(step, workers=1, device="cuda")[0][1] > 0


def test_nccl_on_all_there_are():
    gpus = torch.cuda.device_count()
    runs = launch(sum_ranks, workers=gpus)
    assert runs.column("sum") == [gpus * (gpus - 1) / 2] * gpus
    assert runs.column("device") == [f"cuda:{rank}" for rank in range(gpus)]
    assert runs.backend == "cpu:gloo,cuda:nccl"


def test_more_ranks_than_gpus_run_on_the_cpu_and_see_none(capsys):
    gpus = torch.cuda.device_count()

    def look(worker):
        return str(worker.device), torch.cuda.is_available(), os.environ["CUDA_VISIBLE_DEVICES"]

    for _ in range(2):
        assert set(launch(look, workers=gpus + 1)) == {("cpu", False, "")}
    assert capsys.readouterr().out.count("running on the CPU, with gloo") <= 1


def test_ranks_on_the_cpu_make_no_context():
    """Several contexts on GPU 0, of ranks that do not use it, are what costs memory there."""
    before = torch.cuda.mem_get_info()[0]
    with Cluster(2, device="cpu") as cluster:
        cluster.run(step)
        assert before - torch.cuda.mem_get_info()[0] < 100e6


def test_an_error_of_cuda_is_told_and_the_next_call_works():
    def out_of_range(worker):
        table = torch.zeros(4, device=worker.device)
        return table[torch.tensor([10**6], device=worker.device)].tolist()

    with pytest.raises(WorkerError, match="rank 0"):
        launch(out_of_range, workers=1, device="cuda")
    assert launch(sum_ranks, workers=1)[0]["sum"] == 0.0


def test_the_memory_is_given_back_when_launch_returns():
    def hold(worker):
        worker.state.held = torch.ones(256 << 20, dtype=torch.uint8, device=worker.device)
        torch.cuda.synchronize()

    launch(hold, workers=1)
    before = torch.cuda.mem_get_info()[0]
    launch(hold, workers=1)
    assert before - torch.cuda.mem_get_info()[0] < 64e6


def run_script(text: str, **environ) -> str:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": root, **environ},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_kernel_that_has_used_cuda_before_its_first_launch():
    out = run_script(
        """
import torch
torch.ones(3, device="cuda").sum().item()
from helpers import launch
print(launch(lambda worker: str(worker.device), workers=1)[0])
print(launch(lambda worker: torch.ones(2, device=worker.device).sum().item(), workers=1)[0])
"""
    )
    assert out.split() == ["cuda:0", "2.0"]


def names_of_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES takes them; MIG instances where the machine is cut into such."""
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    names = [line.split("UUID: ")[1].rstrip(")") for line in listing.splitlines() if "UUID" in line]
    return [name for name in names if name.startswith("MIG")] or names


LAST = """
from helpers import launch
import torch
def look(worker):
    x = torch.ones(2, device=worker.device)
    return str(worker.device), torch.cuda.device_count(), x.sum().item()
print(launch(look, workers=1)[0])
"""


def test_the_gpus_that_are_shown_are_those_that_are_used():
    """By name, as a MIG instance has one too; by index; and none."""
    for shown in (names_of_gpus()[-1], str(torch.cuda.device_count() - 1)):
        assert run_script(LAST, CUDA_VISIBLE_DEVICES=shown) == "('cuda:0', 1, 2.0)"
    assert run_script(LAST, CUDA_VISIBLE_DEVICES="") == "('cpu', 0, 2.0)"


def test_a_cluster_keeps_its_context_and_its_tensors():
    def build(worker):
        worker.state.x = torch.ones(3, device=worker.device)

    def use(worker):
        dist.all_reduce(worker.state.x)
        return worker.state.x.tolist(), str(worker.state.x.device)

    with Cluster(1) as cluster:
        cluster.run(build)
        assert cluster.run(use)[0] == ([1.0] * 3, "cuda:0")
        assert cluster.run(use)[0] == ([1.0] * 3, "cuda:0")
