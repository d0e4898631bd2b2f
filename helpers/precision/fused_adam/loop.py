"""The update rule as one loop over memory, in C: the lesson of the kernel without a GPU."""

import ctypes
import math
from collections.abc import Callable

import torch

from helpers.measure.kernels.address import address
from helpers.measure.kernels.in_c import loaded

FLOPS = 14  # of the rule, for each parameter: 3 for m, 4 for v, 7 for p
BYTES = 28  # of one float32 parameter: p, g, m and v are read; p, m and v are written
SOURCE = """
#include <math.h>

void update(long n, float *restrict p, const float *restrict g,
            float *restrict m, float *restrict v,
            float new1, float beta2, float new2, float eps,
            float decay, float size, float root)
{
    for (long i = 0; i < n; i++) {
        m[i] += (g[i] - m[i]) * new1;
        v[i] = beta2 * v[i] + new2 * g[i] * g[i];
        p[i] = p[i] * decay - size * (m[i] / (sqrtf(v[i]) / root + eps));
    }
}
"""


def compiled_loop() -> Callable:
    """Compile the loop for this CPU.

    Returns:
        `update(p, g, m, v, step, lr, betas, eps, weight_decay)`. It updates the contiguous float32
        tensors p, m and v in place, on one thread. `step` is 1 in the first call.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    function = loaded(SOURCE, "the loop").update
    function.argtypes = [ctypes.c_long, *4 * [ctypes.c_void_p], *7 * [ctypes.c_float]]
    function.restype = None

    def update(p, g, m, v, step, lr, betas, eps, weight_decay):
        for tensor in (p, g, m, v):
            contiguous = tensor.is_contiguous() and tensor.device.type == "cpu"
            if tensor.dtype is not torch.float32 or tensor.shape != p.shape or not contiguous:
                raise ValueError("needs contiguous float32 tensors of one shape, on the CPU")
        beta1, beta2 = betas
        decay, size = 1 - lr * weight_decay, lr / (1 - beta1**step)
        root = math.sqrt(1 - beta2**step)
        pointers = [address(tensor) for tensor in (p, g, m, v)]
        function(p.numel(), *pointers, 1 - beta1, beta2, 1 - beta2, eps, decay, size, root)

    return update
