"""Strategies of other libraries behind our protocol: oracles for tests, and tools for your work.

torch_ddp       PyTorch's DistributedDataParallel
accelerate_ddp  the same, behind Hugging Face's Accelerator

A Trainer holds model, optimizer and state; only `step` is the library's.
"""
