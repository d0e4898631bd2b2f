"""Random tensors with a placement, for the checker: B sequences, T tokens, D and F widths."""

import torch

from helpers.parallel.tensor.call import WHOLE
from helpers.parallel.tensor.checker import Log, place

LOG = Log()
B, T, D, F = 2, 4, 6, 8


def tensor(*shape, at=WHOLE):
    return place(torch.randn(*shape), at, LOG)


def x(at=WHOLE):
    return tensor(B, T, D, at=at)
