"""The selective scan as one Triton kernel, forward only.

`kernel` is the kernel, `launch` runs it on tensors, `compiled` shows what a GPU would run.
"""
