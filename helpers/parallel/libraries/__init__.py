"""Strategies of other libraries behind our protocol: oracles for tests, and tools for your work.

torch_ddp              PyTorch's DistributedDataParallel
zero_redundancy        and its ZeroRedundancyOptimizer
fully_shard            FSDP2
dtensor                tensor parallelism by DTensor
pipelining             torch.distributed.pipelining
accelerate_ddp         PyTorch's DDP, behind Hugging Face's Accelerator
deepspeed_zero         DeepSpeed's ZeRO, stages 0 to 3; deepspeed_settings completes its JSON,
                       and deepspeed_state moves what it trains out and in
accelerate_deepspeed   the same, behind Hugging Face's Accelerator
transformers_trainer   the same, in the Trainer of Transformers, which owns the loop

`wrapped` checks that a library made what it was asked for.
"""
