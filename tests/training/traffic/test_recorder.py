"""The layer that was running when a message started, also where one layer calls another."""

import torch
from torch import nn

from helpers.comm.ledger import Entry
from helpers.parallel.units import units
from helpers.training.traffic.record import watch
from helpers.training.traffic.recorder import Recorder


class Calling(nn.Module):
    """Send a message, call another layer, and send a message again."""

    def __init__(self, send, inner=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.send, self.inner = send, [inner]  # in a list: no child, so a layer by itself

    def forward(self, x):
        self.send()
        if self.inner[0] is not None:
            x = self.inner[0](x)
        self.send()
        return x * self.weight


def test_a_message_belongs_to_the_innermost_layer_that_runs():
    model = nn.Module()
    entry = Entry(call="all_reduce", group="world", ranks=2, rank=0, payload=32, wire=32.0)

    def send():
        recorder.saw(entry, [torch.rand(8)])

    model.shared = Calling(send)
    model.outer = Calling(send, model.shared)
    found = units(model)
    recorder = Recorder(found, dict(model.named_parameters()), ranks=2)
    for unit in found:
        watch(unit, recorder)
    send()
    model.outer(torch.ones(4))
    model.shared(torch.ones(4))
    assert [one.during for one in recorder.seen] == [
        *("", "outer", "shared", "shared", "outer", "shared", "shared")
    ]
    assert [one.where for one in recorder.seen] == ["", *6 * ["forward"]]
    assert recorder.running == []
