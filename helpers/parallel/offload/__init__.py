"""Offload: the optimizer's state in host memory or on disk, updates that do not wait.

link       copies between a device and the host, counted; pinned memory and a stream on CUDA
host       a precision: the optimizer and its master copies are in host memory (ZeRO-Offload)
blocks     a file past the page cache, in equal blocks; reads ahead, writes behind
versions   two files in turn, so that one of them is whole whenever a rank is killed
state      the state of AdamW in such files: an update passes through few buffers
front      classes in front of an owner or an engine
disk       owners that keep their state in files (ZeRO-Infinity)
speculate  owners that update while the backward runs, and roll back what was wrong (SuperOffload)
delay      owners whose updates run beside the next step, one step late (ZeRO-Offload)
activations  engines whose activations wait in host memory

Sources: Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC;
Rajbhandari et al. 2021, "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep
Learning", SC; Lian et al. 2025, "SuperOffload: Unleashing the Power of Large-Scale LLM Training on
Superchips", arXiv:2509.21271.
"""
