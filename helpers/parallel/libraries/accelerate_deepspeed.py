"""DeepSpeed through Hugging Face Accelerate, as a Strategy; and Accelerate's FSDP2, on GPUs.

Accelerate chooses the wrapper by the device, and does not say so:

                                      ranks on GPUs          ranks on CPUs
    DeepSpeedPlugin                   DeepSpeedEngine        DeepSpeedEngine
    DeepSpeedPlugin and cpu=True      error, or plain DDP    DistributedDataParallel
    FSDP plugin, version 2            FSDPModule             DistributedDataParallel

So each of these classes checks the type that it got. The right column was seen with Accelerate
1.15: `tests/parallel/libraries/test_deepspeed_through.py` holds it.
"""

import copy

import torch
from torch.distributed.fsdp import FSDPModule

from helpers.parallel.libraries.accelerate_ddp import AccelerateDataParallel
from helpers.parallel.libraries.deepspeed_zero import DeepSpeedZero, stage_of
from helpers.parallel.libraries.wrapped import expect


class AccelerateDeepSpeed(DeepSpeedZero):
    """DeepSpeed's engine, made and stepped by an `Accelerator`.

    `Accelerator.backward` runs DeepSpeed's update too; the prepared optimizer's `step` and
    `zero_grad` do nothing.

    Args:
        config, seed, mesh, options: as for DeepSpeedZero; stages 1 to 3, without an "optimizer" in
            the settings: Accelerate wants a DummyOptim in its place.

    Raises:
        ValueError: stage 0, or settings with an optimizer.
        WrongWrapper: Accelerate made something else than DeepSpeed's engine.
    """

    def initialize(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer):
        if stage_of(self.settings) == 0 or "optimizer" in self.settings:
            raise ValueError("use DeepSpeedZero itself for stage 0, or with DeepSpeed's optimizer")
        from accelerate import Accelerator, DeepSpeedPlugin

        plugin = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(self.settings))
        # Not cpu=True on a CPU: Accelerate would ignore the plugin.
        self.accelerator = Accelerator(deepspeed_plugin=plugin)
        engine, _ = self.accelerator.prepare(module, optimizer)
        return expect(engine, self.library.DeepSpeedEngine, "Accelerator.prepare")

    def backward(self, loss: torch.Tensor):
        with self.accelerator.accumulate(self.engine):  # it divides by the number of micro-batches
            self.accelerator.backward(loss * self.micro_batches)


class AccelerateFullyShard(AccelerateDataParallel):
    """PyTorch's `fully_shard`, behind Accelerate's FSDP plugin. For GPUs.

    Raises:
        WrongWrapper: Accelerate made something else, for example DDP on a CPU.
    """

    wrapper = FSDPModule

    def plugins(self):
        from accelerate import FullyShardedDataParallelPlugin

        return {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}
