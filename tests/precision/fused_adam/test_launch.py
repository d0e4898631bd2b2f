"""Which programs are launched, with which arguments; and one step in the interpreter."""

import math
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.precision.fused_adam import launch
from helpers.precision.fused_adam.kernel import adamw, advance, update
from helpers.precision.fused_adam.launch import launch_both, launch_step, on_cpu
from helpers.precision.fused_adam.table import Table, Tensors
from tests.cuda import Cuda

HYPER = [0.01, 0.9, 0.999, 1e-8, 0.1, 1.0, math.log(0.9), math.log(0.999)]


class Kernel:
    """Notes its launches."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, args, options))


def own(length):
    return Tensors(*(torch.rand(length) for _ in range(4)), torch.zeros(()))


def filled(lengths, block=8):
    table = Table(torch.device("cpu"), block)
    table.fill(HYPER, [own(length) for length in lengths])
    return table


@pytest.mark.parametrize(("tensors", "programs"), [(1, 1), (128, 1), (129, 2), (300, 3)])
def test_a_program_for_128_tensors_and_one_for_each_block(tensors, programs):
    table = filled([9] * tensors)  # two blocks of 8 each
    one, two = Kernel(), Kernel()
    launch_both(one, two, table, "found", "scale", "factors", {"P": 1, "C": 2})
    [(grid, args, options)] = one.launches
    assert grid == (programs,)
    assert args[0] is table.rows
    assert args[1] is table.hyper
    assert args[2:] == ("found", "factors", tensors)
    assert options == {"BLOCK": 128, "num_warps": 4, "enable_fp_fusion": True}
    [(grid, args, options)] = two.launches
    assert grid == (2 * tensors,)
    assert all(a is b for a, b in zip(args, (table.rows, table.blocks, table.hyper), strict=False))
    assert args[3:] == ("found", "scale", "factors")
    assert options == {"P": 1, "C": 2, "BLOCK": 8, "num_warps": 4, "enable_fp_fusion": True}


def test_empty_tensors_count_their_step_and_need_no_update():
    one, two = Kernel(), Kernel()
    launch_both(one, two, filled([0, 0]), None, None, None, {})
    assert (len(one.launches), two.launches) == (1, [])


def test_on_a_gpu_the_compiled_kernels_run_on_the_tensors_device(monkeypatch):
    """A tensor may be on another GPU than the current one."""
    cuda, made, seen = Cuda(monkeypatch), [], []
    fake = SimpleNamespace(
        empty=lambda *shape, **options: made.append((shape, options)), float64=torch.float64
    )
    table = SimpleNamespace(device=torch.device("cuda", 1), rows=[1, 2])

    def launched(*args):
        cuda.work()
        seen.append(args)

    monkeypatch.setattr(launch, "torch", fake)
    monkeypatch.setattr(launch, "launch_both", launched)
    launch_step(table, "found", "scale", constants := {"RULE": adamw})
    assert cuda.calls == [("enter", 1), ("work", 1), ("leave", 1)]
    assert made == [((2, 3), {"dtype": torch.float64, "device": table.device})]
    [(*kernels, its, found, scale, _, given)] = seen
    assert kernels == [advance, update]
    assert (its, found, scale, given) == (table, "found", "scale", constants)


def test_a_block_is_two_loads_of_128_bits_for_each_thread():
    threads = 32 * launch.OPTIONS["num_warps"]
    assert launch.BLOCK * torch.float32.itemsize == threads * 2 * 128 // 8


def test_the_interpreted_kernels_are_made_once():
    assert on_cpu() is on_cpu()
    first, second = on_cpu()
    assert (first.fn.__name__, second.fn.__name__) == ("advance", "update")
