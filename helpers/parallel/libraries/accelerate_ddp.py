"""Hugging Face Accelerate as a Strategy: PyTorch's DDP, behind `Accelerator.prepare`."""

from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel

from helpers.parallel.libraries.loss import Loss
from helpers.parallel.libraries.torch_ddp import TorchDataParallel
from helpers.parallel.libraries.wrapped import expect


class AccelerateDataParallel(TorchDataParallel):
    """The single process's model, prepared by an `Accelerator`, which detects the ranks.

    It uses PyTorch's DDP. `Accelerator` has one state per process: its group is the whole world.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh has
            one axis, "dp".

    Raises:
        WrongWrapper: Accelerate made something else.
    """

    def wrap(self, module: Loss):
        from accelerate import Accelerator  # imported here because the import takes a second

        self.accelerator = Accelerator(cpu=self.device.type == "cpu")
        self.replica, self.prepared = self.accelerator.prepare(module, self.optimizer)
        expect(self.replica, DistributedDataParallel, "Accelerator.prepare")

    def turn(self, last):
        return nullcontext() if last else self.accelerator.no_sync(self.replica)

    def backward(self, loss):
        self.accelerator.backward(loss)

    def norm(self):
        return self.accelerator.clip_grad_norm_(self.replica.parameters(), self.most)

    def apply(self):
        self.prepared.step()
