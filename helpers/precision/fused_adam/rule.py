"""The update rule of AdamW, for numbers that are already in registers."""

import triton
import triton.language as tl


@triton.jit
def adamw(p, g, m, v, new1, beta2, new2, eps, decay, size, root):
    """Update parameters and moments. All are blocks of one length, or scalars.

    Kingma and Ba 2015, algorithm 1; the decoupled decay is line 12 of algorithm 2 in Loshchilov and
    Hutter 2019, in the form that PyTorch uses: the decay is multiplied by the learning rate.

    Args:
        p, g: parameters and their gradients.
        m, v: the running averages of g and of g². Kingma and Ba name them moments.
        new1, new2: 1 - beta1 and 1 - beta2, the weights of the new gradient. They are arguments,
            because 1 - 0.999, computed in float32, has a relative error of 1e-5.
        decay: 1 - lr · weight_decay.
        size: lr / (1 - beta1^t), the step size with the first moment's bias correction.
        root: sqrt(1 - beta2^t), the second moment's bias correction.

    Returns:
        The new (p, m, v).
    """
    m += (g - m) * new1
    v = beta2 * v + new2 * g * g
    p = p * decay - size * (m / (tl.sqrt(v) / root + eps))
    return p, m, v
