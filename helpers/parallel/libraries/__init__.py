"""DDP, FSDP1, FSDP2, DTensor, DeepSpeed, Accelerate, Transformers: other libraries' strategies.

They implement our protocol: oracles for tests, and tools for your work.

strategy               the base: one step, and what each library does in it; checks of what it made
data_parallel          PyTorch's DDP, also behind Hugging Face's Accelerator, and with its
                       ZeroRedundancyOptimizer (ZeRO stage 1)
fully_shard            FSDP2, also hybrid sharding (HSDP); wrapping chooses its units
fsdp1                  FSDP1, FullyShardedDataParallel: the names in papers and old code
dtensor                tensor and sequence parallelism by DTensor
pipelining             torch.distributed.pipelining
deepspeed_zero         DeepSpeed's ZeRO, stages 0 to 3, from its JSON; deepspeed_state moves what it
                       trains out and in, and deepspeed_extension compiles what it needs
accelerate_deepspeed   the same, behind Hugging Face's Accelerator
transformers_trainer   the same, in the Trainer of Transformers, which owns the loop
"""
