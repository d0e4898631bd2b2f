"""The update as a loop: the same numbers as torch.optim.AdamW, and the counts of its formula."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.precision.fused_adam.loop import BYTES, FLOPS, factors, update


def test_it_equals_adamw():
    torch.manual_seed(0)
    p, g, m, v = torch.randn(4, 9).unbind()
    p, m, v = p.clone(), torch.zeros(9), torch.zeros(9)
    other = torch.nn.Parameter(p.clone())
    optimizer = torch.optim.AdamW([other], lr=0.1, betas=(0.8, 0.9), weight_decay=0.5)
    for step in range(1, 4):
        other.grad = g * step
        update(p, g * step, m, v, *factors(step, 0.1, 0.8, 0.9, 0.5), 0.8, 0.9, 1e-8)
        optimizer.step()
    torch.testing.assert_close(p, other.detach())
    torch.testing.assert_close(m, optimizer.state[other]["exp_avg"])
    torch.testing.assert_close(v, optimizer.state[other]["exp_avg_sq"])


class Arithmetic(TorchDispatchMode):
    """Count FLOPs for each number: an addition, product, quotient or root is one."""

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        several = {"lerp_": 3, "addcmul_": 3}  # m + w (g - m);  v + w g g
        self.flops += several.get(function._schema.name.removeprefix("aten::"), 1)
        return function(*args, **(kwargs or {}))


def test_the_counts():
    own, numbers = [torch.ones(4) for _ in range(4)], [torch.tensor(1.0) for _ in range(3)]
    with Arithmetic() as counted:
        update(*own, *numbers, 0.9, 0.999, 1e-8)
    assert counted.flops == FLOPS
    p, g, m, v = own
    read, written = (p, g, m, v), (p, m, v)
    assert sum(x.element_size() for x in (*read, *written)) == BYTES
