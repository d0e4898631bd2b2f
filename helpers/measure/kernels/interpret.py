"""Run a Triton kernel on the CPU, in Triton's interpreter.

Triton chooses between compiler and interpreter when `@triton.jit` decorates a function, by the
variable TRITON_INTERPRET. Here both exist side by side: the compiled kernel, and this one.
"""

from types import FunctionType

import triton
from triton.runtime import JITFunction


def interpreted(kernel):
    """Make the same kernel for Triton's interpreter: NumPy computes it, one program at a time.

    It works on CPU tensors. It takes milliseconds for each program, so it is for tests and lessons.

    Args:
        kernel: a function decorated with `@triton.jit`. It may call other such functions, but none
            of those in `triton.language` that are decorated so themselves: `tl.sum`, `tl.zeros`,
            `tl.cdiv`. These need TRITON_INTERPRET=1 before the first import of Triton.

    Returns:
        A kernel that is launched in the same way: `interpreted(kernel)[grid](*arguments)`.
    """
    if not isinstance(kernel, JITFunction):  # TRITON_INTERPRET=1: it is interpreted already
        return kernel
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        return triton.jit(undecorated(kernel))


def undecorated(kernel: JITFunction, made: dict | None = None) -> FunctionType:
    """Copy the function without its decorator, and the functions that it calls.

    Args:
        made: the copies so far, by kernel.
    """
    fn, made = kernel.fn, {} if made is None else made
    names = dict(fn.__globals__)
    made[kernel] = FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__)
    made[kernel].__annotations__ = fn.__annotations__
    made[kernel].__kwdefaults__ = fn.__kwdefaults__
    made[kernel].fn = made[kernel]  # where a reduction or a scan looks for its operator
    for name in fn.__code__.co_names:
        called = names.get(name)
        if isinstance(called, JITFunction):
            names[name] = made[called] if called in made else undecorated(called, made)
    return made[kernel]
