"""What the scans are compared with: plain loops, differentiated by PyTorch, and random inputs."""

import torch

F64 = torch.float64
TIGHT = {"rtol": 0, "atol": 1e-12}


def loop(a, b, h0):
    """h_t = a_t h_(t-1) + b_t: the states (B, L, …) and the last one."""
    h, every = h0, []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        every.append(h)
    return (torch.stack(every, 1) if every else torch.zeros_like(b)), h


def selective(x, delta, A, B, C, D, h0):
    """One token after the other, as algorithm 2 of Gu and Dao 2023 has it."""
    h, y = h0, []
    for t in range(x.shape[1]):
        decay = torch.exp(delta[:, t, :, None] * A)
        h = decay * h + delta[:, t, :, None] * B[:, t, None, :] * x[:, t, :, None]
        y.append(torch.einsum("bdn,bn->bd", h, C[:, t]) + D * x[:, t])
    return (torch.stack(y, 1) if y else torch.zeros_like(x)), h


def dual(x, delta, A, B, C, D, h0):
    """One token after the other, as section 2 of Dao and Gu 2024 has it."""
    h, y, shared = h0, [], x.shape[2] // B.shape[2]
    for t in range(x.shape[1]):
        read, write = (m[:, t].repeat_interleave(shared, 1) for m in (C, B))
        decay = torch.exp(delta[:, t] * A)[..., None, None]
        h = decay * h + torch.einsum("bh,bhp,bhn->bhpn", delta[:, t], x[:, t], write)
        y.append(torch.einsum("bhpn,bhn->bhp", h, read) + D[:, None] * x[:, t])
    return (torch.stack(y, 1) if y else torch.zeros_like(x)), h


def recurrence_inputs(length, shape=(3,), sequences=2, seed=0, dtype=F64):
    """a, b and h0. Some decays are 0, some negative, some above 1."""
    g = torch.Generator().manual_seed(seed)
    a = torch.rand(sequences, length, *shape, generator=g, dtype=dtype) * 1.4 - 0.3
    a[torch.rand(a.shape, generator=g) < 0.1] = 0
    b = torch.randn(sequences, length, *shape, generator=g, dtype=dtype)
    return leaves(a, b, torch.randn(sequences, *shape, generator=g, dtype=dtype))


def selective_inputs(length, sequences=2, channels=5, state=3, seed=0, dtype=F64):
    """x, delta, A, B, C, D and h0. The first sequence ends in two tokens of padding."""
    g = torch.Generator().manual_seed(seed)
    x, u, B, C = (
        torch.randn(sequences, length, size, generator=g, dtype=dtype)
        for size in (channels, channels, state, state)
    )
    delta = torch.nn.functional.softplus(u)
    delta[:1, max(0, length - 2) :] = 0
    A = -torch.rand(channels, state, generator=g, dtype=dtype) * 2
    D = torch.randn(channels, generator=g, dtype=dtype)
    h0 = torch.randn(sequences, channels, state, generator=g, dtype=dtype)
    return leaves(x, delta, A, B, C, D, h0)


def dual_inputs(length, sequences=2, heads=4, width=3, groups=2, state=5, seed=0, dtype=F64):
    """x, delta, A, B, C, D and h0. The first sequence ends in two tokens of padding."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(sequences, length, heads, width, generator=g, dtype=dtype)
    B, C = (torch.randn(sequences, length, groups, state, generator=g, dtype=dtype) for _ in "BC")
    delta = torch.rand(sequences, length, heads, generator=g, dtype=dtype) * 2
    delta[:1, max(0, length - 2) :] = 0
    A = -torch.rand(heads, generator=g, dtype=dtype) * 2
    D = torch.randn(heads, generator=g, dtype=dtype)
    h0 = torch.randn(sequences, heads, width, state, generator=g, dtype=dtype)
    return leaves(x, delta, A, B, C, D, h0)


def leaves(*tensors):
    return [tensor.requires_grad_() for tensor in tensors]


def with_gradients(function, inputs):
    """[the two results, and the gradients of all inputs], from a loss that uses all numbers."""
    y, last = function(*inputs)
    g = torch.Generator().manual_seed(9)
    ways = [torch.randn(t.shape, generator=g, dtype=t.dtype) for t in (y, last)]
    loss = (y * ways[0]).sum() + (last * ways[1]).sum() + (last * last).sum() / 2
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    filled = [
        torch.zeros_like(t) if g is None else g for g, t in zip(gradients, inputs, strict=True)
    ]
    return [y, last, *filled]


def assert_same(ours, theirs, **tolerance):
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.shape == wanted.shape
        torch.testing.assert_close(mine, wanted, **(tolerance or TIGHT))
