"""DeepSpeed through Hugging Face Accelerate, as a Strategy.

Accelerate chooses by the device, and does not say so. With 2 ranks on the CPU (Accelerate 1.15):

    Accelerator(…)                                    made                       ranks it counts
    deepspeed_plugin=plugin                           DeepSpeedEngine            1
    deepspeed_plugin=plugin, cpu=True                 DistributedDataParallel    2
    PartialState(cpu=True) before, and the plugin     DeepSpeedEngine            2
    fsdp_plugin=plugin (version 2), cpu=True          DistributedDataParallel    2

The third line is right: in the first, a prepared DataLoader gives every rank the same data. So the
types and the ranks are checked here. `test_accelerate_deepspeed.py` holds the table.
"""

import copy
import os

import torch

from helpers.parallel.libraries.deepspeed_zero import DeepSpeedZero
from helpers.parallel.libraries.strategy import expect, expect_ranks


class AccelerateDeepSpeed(DeepSpeedZero):
    """DeepSpeed's engine, made and stepped by an `Accelerator`.

    `Accelerator.backward` runs DeepSpeed's update too; the prepared optimizer's `step` and
    `zero_grad` do nothing. Accelerate has one state per process, so a process can make only one
    of these.

    Args:
        config, seed, mesh, options: as for DeepSpeedZero; stages 1 to 3, without an "optimizer" in
            the settings: Accelerate wants a DummyOptim in its place.

    Raises:
        ValueError: stage 0, or settings with an optimizer.
        NotImplementedError: from Accelerate, for a second one in a process.
        WrongWrapper: Accelerate made something else than DeepSpeed's engine.
    """

    def initialize(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer):
        if self.stage == 0 or "optimizer" in self.settings:
            raise ValueError("use DeepSpeedZero itself for stage 0, or with DeepSpeed's optimizer")
        from accelerate import Accelerator, DeepSpeedPlugin, PartialState

        # Otherwise Accelerate chooses the number of threads, and warns.
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        PartialState(cpu=self.device.type == "cpu")
        self.accelerator = Accelerator(
            deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=copy.deepcopy(self.settings)),
            gradient_accumulation_steps=self.micro_batches,
        )
        expect_ranks(self.accelerator.num_processes, self.data_size, "Accelerator")
        engine, _ = self.accelerator.prepare(module, optimizer)
        return expect(engine, self.library.DeepSpeedEngine, "Accelerator.prepare")

    def backward(self, loss: torch.Tensor):
        with self.accelerator.accumulate(self.engine):  # it divides by the number of micro-batches
            self.accelerator.backward(loss * self.micro_batches)
