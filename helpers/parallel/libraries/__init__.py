"""Ways to train of others, behind the protocol of ours: oracles, and what one uses at work.

torch_ddp       PyTorch's DistributedDataParallel
accelerate_ddp  the same, behind Hugging Face's Accelerator

A Trainer holds model, optimizer and state; the library has a `step` of its own.
"""
