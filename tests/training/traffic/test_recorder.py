"""What was running when a message started: the layer, if one calls another, and the phase."""

import pytest
import torch
from torch import nn

from helpers.comm.ledger import Entry
from helpers.parallel.units import units
from helpers.training.traffic.contents import Fingerprints
from helpers.training.traffic.record import watch
from helpers.training.traffic.recorder import Recorder, Seen, name_of

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


def test_sends_to_each_rank_are_one_collective():
    """Rank 0 of 3 sends its shard of the layer to two others; and then once more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    state = dict(model.named_parameters())
    recorder = Recorder(units(model), state, ranks=3)
    entry = Entry(call="send", group="world", ranks=3, rank=0, payload=16, wire=16.0, axes="dp")
    shard = [state["0.weight"].detach().flatten()[4:8]]
    for _ in range(3):
        recorder.saw(entry, shard)
        recorder.saw(Entry(**vars(entry) | {"call": "recv", "wire": None}), shard)
        recorder.saw(Entry(**vars(entry) | {"call": "barrier"}), [])
    first, second = recorder.messages(Fingerprints(state))
    assert (first.call, first.kind, first.axes) == ("all_gather by send", "parameters", "dp")
    assert (first.payload, first.wire, first.ranks, first.order) == (48, 32, 3, 0)
    assert first.layers == {"0": 48}
    assert (second.payload, second.wire, second.order) == (48, 16, 1)
    assert first.sent() == {"0": 32}


def test_numbers_that_are_few_or_whole_are_no_layer_s():
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    recorder = Recorder(units(model), dict(model.named_parameters()), ranks=1)
    recorder.model_begins()
    recorder.backward_begins("0")
    for content in (torch.rand(2), torch.arange(3), torch.rand(3)):
        nbytes = content.numel() * content.itemsize
        entry = Entry(call="all_reduce", group="w", ranks=1, rank=0, payload=nbytes, wire=None)
        recorder.saw(entry, [content])
    made = recorder.messages(Fingerprints(dict(model.named_parameters())))
    assert [m.kind for m in made] == ["other", "other", "activations"]
    assert [m.layers for m in made[:2]] == [{}, {}]
    assert made[2].sent() == {"": 12}  # an unknown wire counts as the payload
    assert made[2].wire is None


def test_each_backward_begins_before_its_first_layer():
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    recorder = Recorder(units(model), dict(model.named_parameters()), ranks=1)

    def send(_):
        recorder.saw(ENTRY, [torch.rand(8)])
        recorder.backward_begins("0")
        recorder.saw(ENTRY, [torch.rand(8)])

    for _ in range(2):
        recorder.model_begins()
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.register_hook(send)
        recorder.model_ends()
        y.sum().backward()
    assert [(one.where, one.during) for one in recorder.seen] == 2 * [
        ("backward", ""), ("backward", "0"),
    ]  # fmt: skip


def entry(call, numbers, ranks=3):
    return Entry(call=call, group="w", ranks=ranks, rank=0, payload=4 * numbers, wire=1.0)


def recorded(model, *calls, ranks=3, backward=()):
    """The messages of these (entry, numbers) after the backward of some layers."""
    recorder = Recorder(units(model), dict(model.named_parameters()), ranks=ranks)
    recorder.model_begins()
    recorder.model_ends()
    for layer in backward:
        recorder.backward_begins(layer)
    for one, content in calls:
        recorder.saw(one, [content])
    return recorder.messages(Fingerprints(dict(model.named_parameters())))


def test_a_library_may_pad_each_parameter_by_a_row_for_each_other_rank():
    """5 rows of 3 numbers on 3 ranks: up to two more rows, and no more."""
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(2, 2, bias=False))
    for numbers, kind, layers in (
        (15, "gradients", ["0"]),
        (21, "gradients", ["0"]),
        (22, "other", []),
    ):
        call = entry("reduce_scatter", numbers), torch.rand(numbers)
        (one,) = recorded(model, call, backward=["0"])
        assert (one.kind, list(one.layers)) == (kind, layers)
        assert one.phase == ("backward" if layers else "update")


def test_a_gather_of_a_layer_contains_its_biases_of_zeros_too():
    """Zeros have no fingerprint; so the size of the layer tells. A part alone is a part."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].bias.zero_()
    weight, bias = model[0].parameters()
    whole = torch.cat([weight.detach().flatten(), bias.detach()])
    one, part = recorded(
        model, (entry("all_gather", 20), whole), (entry("all_gather", 15), whole[:15]), ranks=1
    )
    assert (one.kind, one.layers, part.layers) == ("parameters", {"0": 80}, {"0": 60})
    both = torch.cat([p.detach().flatten() for p in model.parameters()])
    (one,) = recorded(model, (entry("all_gather", 40), both), ranks=1)
    assert one.layers == {"0": 80, "1": 80}  # by their sizes


def test_norms_of_ones_are_known_by_their_size_and_the_largest_fits():
    model = nn.Sequential(nn.LayerNorm(6), nn.LayerNorm(4), nn.LayerNorm(5))
    (one,) = recorded(model, (entry("all_gather", 12), torch.ones(6)), ranks=2)
    assert (one.kind, one.layers) == ("parameters", {"0": 48})
    two = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(5), nn.LayerNorm(6))
    (one,) = recorded(two, (entry("all_gather", 12), torch.ones(6)), ranks=3)
    assert one.layers == {"2": 48}  # the others with their padding are as large
    (one,) = recorded(two, (entry("all_reduce", 12), torch.ones(6)), ranks=3)
    assert one.kind != "parameters"  # no sum is a gather


@pytest.mark.parametrize(("held", "sent"), [(4, 4), (0, 12)])  # DeepSpeed frees its parameters
def test_a_part_of_a_layer_and_its_tokens_are_told_apart(held, sent):
    """The rank has 4 of 12 numbers of the weight. Its backward sends the tokens back first."""
    model, state = nn.Sequential(nn.Linear(2, 2, bias=False)), {"0.weight": torch.rand(6, 2)}
    model[0].weight.data = torch.empty(held)
    recorder = Recorder(units(model), state, ranks=1)

    def send(*calls):
        for call in calls:
            recorder.saw(entry(call, sent, ranks=1), [torch.rand(sent)])

    recorder.begins("0")
    send("all_to_all")
    recorder.ends("0")
    y = torch.ones(3, requires_grad=True) * 2
    y.register_hook(lambda _: recorder.backward_begins("0") or send("all_to_all", "all_reduce"))
    y.sum().backward()
    kinds = [m.kind for m in recorder.messages(Fingerprints(state))]
    assert kinds == ["activations", "activations", "gradients"]


@pytest.mark.parametrize(
    ("call", "kind", "name"),
    [
        ("all_to_all", "gradients", "reduce_scatter by all_to_all"),
        ("all_to_all", "parameters", "all_gather by all_to_all"),
        ("send", "gradients", "reduce_scatter by send"),
        ("send", "activations", "send"),
        ("all_reduce", "gradients", "all_reduce"),
    ],
)
def test_the_collective_that_several_calls_make(call, kind, name):
    seen = Seen(entry(call, 4), "", 1, True, "", None, 4, kind=kind)
    assert name_of(seen) == name
