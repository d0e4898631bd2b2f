"""What was running when a message started: the layer, if one calls another, and the phase."""

import torch
from torch import nn

from helpers.comm.ledger import Entry
from helpers.parallel.units import units
from helpers.training.traffic.fingerprints import Fingerprints
from helpers.training.traffic.record import watch
from helpers.training.traffic.recorder import Recorder

ENTRY = Entry(call="all_reduce", group="world", ranks=2, rank=0, payload=32, wire=32.0)


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

    def send():
        recorder.saw(ENTRY, [torch.rand(8)])

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


def test_only_what_follows_the_last_backward_belongs_to_the_update():
    """Between two micro-batches, a message prepares the next forward. A sum of 4 is gradients."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(3, 3, bias=False))
    found = units(model)
    recorder = Recorder(found, dict(model.named_parameters()), ranks=1)
    gradients = Entry(call="all_reduce", group="world", ranks=1, rank=0, payload=16, wire=0.0)

    def between():
        recorder.saw(ENTRY, [torch.rand(8)])

    between()
    for _ in range(2):
        recorder.model_begins()
        between()
        recorder.model_ends()
        between()
        recorder.backward_begins("0")
        recorder.saw(gradients, [torch.rand(4)])
        between()
    messages = recorder.messages(Fingerprints(dict(model.named_parameters())))
    pass_ = ["forward", "forward", "backward"]
    assert [m.phase for m in messages] == ["forward", *pass_, "forward", *pass_, "update"]
    kinds = ["activations", "other", "gradients", "other"]
    assert [m.kind for m in messages] == ["other", *kinds, *kinds]
