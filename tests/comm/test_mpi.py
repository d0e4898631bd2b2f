"""MPITransport on real ranks of mpiexec: sums, copies, and inputs that it refuses."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.comm.mpi import as_array

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
# One mpiexec runs all checks: transports of 3, 1 and 2 ranks, one after another.
PROGRAM = """
import torch
from mpi4py import MPI
from helpers.comm.mpi import MPITransport
from helpers.comm.transport import replicate

def check(transport):
    rank, size = transport.rank, transport.size
    for dtype in (torch.float64, torch.float32, torch.int64, torch.int8):
        buffers = [torch.arange(n).to(dtype) + rank for n in (0, 1, 7)]
        works = [transport.all_reduce(buffer) for buffer in buffers]  # all in flight at once
        for work in works:
            work.wait()
        for n, buffer in zip((0, 1, 7), buffers):
            assert torch.equal(buffer, size * torch.arange(n).to(dtype) + sum(range(size))), buffer

    drawn = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(3, 4, generator=drawn).t(), torch.randn(5, generator=drawn).bfloat16()]
    replicate(tensors, transport, source=size - 1)
    room = transport.empty(3, torch.int64, torch.device("cpu"))
    assert (room.shape, room.dtype) == ((3,), torch.int64)
    assert transport.empty(3, torch.int64, torch.device("meta")).is_meta
    flag = torch.tensor([rank == 0, False])
    transport.broadcast(flag)
    assert flag.tolist() == [True, False]  # from rank 0 unless another is named
    transport.broadcast(torch.empty(0))
    drawn = torch.Generator().manual_seed(size - 1)
    assert torch.equal(tensors[0], torch.randn(3, 4, generator=drawn).t())
    assert torch.equal(tensors[1], torch.randn(5, generator=drawn).bfloat16())
    print(f"right among {size};", flush=True)

check(MPITransport())
world = MPI.COMM_WORLD
for ranks in (1, 2):
    some = world.Split(int(world.rank < ranks))
    if world.rank < ranks:
        check(MPITransport(some))
"""


@pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")
def test_sums_and_copies(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # mpiexec may join the lines of two ranks that print at the same time
    assert [done.stdout.count(f"right among {ranks};") for ranks in (1, 2, 3)] == [1, 2, 3]


def test_what_mpi_cannot_add_is_refused():
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(TypeError, match=f"{dtype}: convert the buffer to float32"):
            as_array(torch.zeros(2, dtype=dtype))
    with pytest.raises(ValueError, match="contiguous"):
        as_array(torch.zeros(2, 3).t())
