"""The kernel: every program scans some channels of one sequence, some tokens at a time.

Inputs and outputs move once between memory and the chip. The states never do: they exist in
registers, and only the state between two tiles of tokens is stored. Within a tile, the tokens are
scanned by a tree, with the associative operator of `combine`.

Source: Gu and Dao 2023, arXiv:2312.00752, section 3.3.2 and appendix D.
"""

import triton
import triton.language as tl


@triton.jit
def combine(decay1, state1, decay2, state2):
    """The earlier steps, then the later steps."""
    return decay2 * decay1, decay2 * state1 + state2


@triton.jit
def selective(
    x_,
    delta_,
    A_,
    B_,
    C_,
    skip_,
    y_,
    state_,
    length,
    channels,
    STATE: tl.constexpr,
    FORMAT: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute y, and replace the state before the first token by the one after the last.

    Program (b, k) works on sequence b, and on the CHANNELS channels from k CHANNELS. All tensors
    are contiguous.

    Args:
        x_, delta_, y_: (B, L, D).
        A_: (N, D).
        B_, C_: (B, N, L).
        skip_: (D,).
        state_: (B, N, D).
        length, channels: L and D.
        STATE: N.
        FORMAT: of the computation, and of the state.
        TOKENS, CHANNELS: of a tile, powers of 2.
    """
    sequence = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    rows = tl.arange(0, TOKENS)
    real = d < channels
    skip = tl.load(skip_ + d, mask=real, other=0).to(FORMAT)
    first = (rows == 0)[:, None] & real[None, :]
    last = (rows == TOKENS - 1)[:, None] & real[None, :]
    for start in range(0, length, TOKENS):
        t = start + rows
        inside = t < length
        both = inside[:, None] & real[None, :]
        places = (sequence * length + t)[:, None] * channels + d[None, :]
        x = tl.load(x_ + places, mask=both, other=0).to(FORMAT)
        # Beyond the end Δ is 0: such a token leaves the state as it is.
        delta = tl.load(delta_ + places, mask=both, other=0).to(FORMAT)
        scaled = delta * x
        y = skip[None, :] * x
        for n in range(STATE):
            row = sequence * STATE + n
            A = tl.load(A_ + n * channels + d, mask=real, other=0).to(FORMAT)
            B = tl.load(B_ + row * length + t, mask=inside, other=0).to(FORMAT)
            C = tl.load(C_ + row * length + t, mask=inside, other=0).to(FORMAT)
            decay = tl.exp(delta * A[None, :])
            # The state before the tile enters with the first token. Only the last token stores the
            # state. It depends on what the first token loaded: so the store cannot be too early.
            states = state_ + (row * channels + d)[None, :] + (rows * 0)[:, None]
            before = tl.load(states, mask=first, other=0)
            step = B[:, None] * scaled + decay * before
            _, h = tl.associative_scan((decay, step), 0, combine)
            tl.store(states, h, mask=last)
            y += C[:, None] * h
        tl.store(y_ + places, y, mask=both)
        tl.debug_barrier()  # the next tile loads what other threads have stored
