"""The two kernels of a step: count the steps, then update all parameters of a group.

Both read the table (see `table`): a row of eight 64-bit words for each tensor. They also read
`hyper`, eight float64 numbers: lr, beta1, beta2, eps, weight_decay, sign, log(beta1), log(beta2).

`adamw` is the update rule, for numbers that are already in registers. `read` and `write` convert
between the format in memory and that of the computation. A GPU has instructions for all of it. But
the interpreter (of Triton 3.7 and 3.9) truncates when it converts float32 to bfloat16, and misreads
subnormal bfloat16. So bfloat16 goes through integers here. The kernel that the interpreter's tests
prove is then the kernel that a GPU runs.
"""

import triton
import triton.language as tl

WORDS = tl.constexpr(8)  # of a row
FACTORS = tl.constexpr(3)  # for each row: decay, size, root


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


@triton.jit
def pointer(row, word: tl.constexpr, kind: tl.constexpr, together: tl.constexpr):
    """Load a pointer from a row, and promise that `together` numbers may be loaded at once."""
    address = tl.load(row + word).to(tl.pointer_type(kind))
    return tl.multiple_of(address, together * kind.primitive_bitwidth // 8)


@triton.jit
def read(pointers, kind: tl.constexpr, computing: tl.constexpr, mask):
    """Load numbers of one format, and return them in another: float32 or float64."""
    if kind == tl.bfloat16:  # the upper half of a float32
        bits = tl.load(pointers.to(tl.pointer_type(tl.uint16)), mask=mask)
        return (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True).to(computing)
    else:
        return tl.load(pointers, mask=mask).to(computing)


@triton.jit
def write(pointers, x, kind: tl.constexpr, mask):
    """Round x to the nearest number of a format, ties to even, and store it."""
    if kind == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        last = (bits >> 16) & 1  # the last bit that is kept: an odd one rounds a tie up
        rounded = tl.where(x == x, (bits + 0x7FFF + last) >> 16, 0x7FC0)  # NaN stays NaN
        tl.store(pointers.to(tl.pointer_type(tl.uint16)), rounded.to(tl.uint16), mask=mask)
    else:
        tl.store(pointers, x.to(kind), mask=mask)


@triton.jit
def advance(rows, hyper, found, factors, count, BLOCK: tl.constexpr):
    """Add 1 to the step of every tensor, and compute the tensors' factors for the rule.

    It is a launch of its own: many programs of `update` need a tensor's step, so none may write it.
    It computes in float64: for beta2 = 0.999 and t = 1, 1 - beta2^t in float32 would have a
    relative error of 1e-5.

    Args:
        rows: int64, the table.
        hyper: float64, the numbers of the group.
        found: float32, one number. If it is not 0, some gradient overflowed: nothing changes.
        factors: float64, (count, 3): the result.
        count: the number of rows.
        BLOCK: the number of rows for each program.
    """
    if tl.load(found) == 0:
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = row < count
        steps = tl.load(rows + row * WORDS + 4, mask=inside).to(tl.pointer_type(tl.float32))
        t = tl.load(steps, mask=inside) + 1
        tl.store(steps, t, mask=inside)
        t = t.to(tl.float64)
        lr = tl.load(hyper)
        size = lr / (1 - tl.exp(t * tl.load(hyper + 6)))
        root = tl.sqrt(1 - tl.exp(t * tl.load(hyper + 7)))
        own = factors + row * FACTORS
        tl.store(own, 1 - lr * tl.load(hyper + 4), mask=inside)
        tl.store(own + 1, size, mask=inside)
        tl.store(own + 2, root, mask=inside)


@triton.jit
def update(
    rows,
    blocks,
    hyper,
    found,
    scale,
    factors,
    RULE: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    LOW: tl.constexpr,
    C: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one block of one tensor: each number is read once, and written once.

    A block takes one of two paths. On the first, all pointers are multiples of 16 bytes and the
    block is full: the compiler makes loads and stores of TOGETHER numbers, without masks. The
    second path works for any pointer and for a tensor's tail: a mask that the compiler cannot
    foresee leaves a load for each number, whatever `pointer` has promised.

    Args:
        blocks: int32, (programs, 2): the row of the tensor, and the block's number in the tensor.
        scale: float32, one number: the gradients are divided by it.
        RULE: the update rule, `adamw`.
        P, G, S: the formats of parameters, gradients and moments.
        LOW: the format of the parameters' low-precision copies, or None: then there are none.
        C: the format of the computation.
        TOGETHER: the numbers of a load: 128 bits of the widest format. With as many of each format,
            a thread has the same numbers of all tensors; else some go through shared memory.
        BLOCK: the numbers of a block, a power of 2.
        The others are as for `advance`.
    """
    if tl.load(found) == 0:
        program = tl.program_id(0)
        index = tl.load(blocks + 2 * program)
        number = tl.load(blocks + 2 * program + 1)
        row = rows + index * WORDS
        p_ = pointer(row, 0, P, TOGETHER)
        g_ = pointer(row, 1, G, TOGETHER)
        m_ = pointer(row, 2, S, TOGETHER)
        v_ = pointer(row, 3, S, TOGETHER)
        if LOW is not None:
            low_ = pointer(row, 5, LOW, TOGETHER)
        length = tl.load(row + 6)
        aligned = tl.load(row + 7)
        start = number.to(tl.int64) * BLOCK  # in int64: a tensor may have more than 2^31 numbers
        places = start + tl.arange(0, BLOCK)

        new1 = (1 - tl.load(hyper + 1)).to(C)
        beta2 = tl.load(hyper + 2).to(C)
        new2 = (1 - tl.load(hyper + 2)).to(C)
        eps = tl.load(hyper + 3).to(C)
        unscale = (tl.load(hyper + 5) / tl.load(scale)).to(C)
        decay = tl.load(factors + index * FACTORS).to(C)
        size = tl.load(factors + index * FACTORS + 1).to(C)
        root = tl.load(factors + index * FACTORS + 2).to(C)

        if (aligned != 0) & (start + BLOCK <= length):
            p = read(p_ + places, P, C, None)
            g = read(g_ + places, G, C, None) * unscale
            m = read(m_ + places, S, C, None)
            v = read(v_ + places, S, C, None)
            p, m, v = RULE(p, g, m, v, new1, beta2, new2, eps, decay, size, root)
            write(p_ + places, p, P, None)
            write(m_ + places, m, S, None)
            write(v_ + places, v, S, None)
            if LOW is not None:
                write(low_ + places, p, LOW, None)
        else:
            inside = places < length
            p = read(p_ + places, P, C, inside)
            g = read(g_ + places, G, C, inside) * unscale
            m = read(m_ + places, S, C, inside)
            v = read(v_ + places, S, C, inside)
            p, m, v = RULE(p, g, m, v, new1, beta2, new2, eps, decay, size, root)
            write(p_ + places, p, P, inside)
            write(m_ + places, m, S, inside)
            write(v_ + places, v, S, inside)
            if LOW is not None:
                write(low_ + places, p, LOW, inside)
