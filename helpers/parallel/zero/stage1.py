"""ZeRO stage 1: each rank has 1/N of the optimizer's state, and updates 1/N of the parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from helpers.comm.mesh import Mesh
from helpers.comm.transport import DirectTransport, GroupTransport
from helpers.measure.memory import bytes_of, storages
from helpers.parallel.ddp.replicas import refuse_odd, refuse_unused
from helpers.parallel.owners.local import Local, said_by
from helpers.parallel.units import units
from helpers.parallel.zero.film import Film
from helpers.parallel.zero.gradients import Kept
from helpers.parallel.zero.refusals import marks, refuse_changes, refuse_mixing
from helpers.parallel.zero.row import Alone, Whole
from helpers.state.part import Part, Range
from helpers.state.placing import flat, index

Together = tuple[str, list[str], tuple[int, ...]]  # a unit, names in one row, ranks that shard it


class Zero1(Local):
    """Hold all parameters and gradients; of the optimizer's state and master copies, 1/N.

    During the last micro-batch's backward, a row is reduce-scattered when all of its gradients are
    complete. Then each rank updates its shards, and all ranks gather the updated parameters. A rank
    sends 2 (N-1)/N bytes per byte of parameters and step, like an all-reduce of the gradients.

    Args:
        model, parts, mesh, sums, precision, dtype, device: as for Local. N ranks along `sums` hold
            a parameter, and shard it; an expert has its own N. What one rank holds is not cut.
        rule: of the update; element-wise.
        transport: DirectTransport, GroupTransport or SharedTransport: makes the transport of the
            messages from a process group. It may be lossy: see `said_by`.
        in_flight: how many rows may still be sent while the next row is filled. More rows hide more
            of the messages behind the backward, and need more memory for the parts that arrive.

    Attributes:
        transports: the ranks that share rows -> the transport of their messages.
        rows: of the sharded parameters, in the order of definition.
        unit_of: the units of these rows.
        row_of: name of a sharded parameter -> its row's number.
        gradients_of: row number -> the memory of its gradients; not for frozen rows.
        sending: numbers of the rows with a running reduce-scatter, oldest first.
        film: records what happens with each row's bytes; None for no record.

    Raises:
        ValueError: there is no mesh.
        NotElementWise: the rule cannot update shards.
        UnusedParameters: from a step, if a parameter got no gradient on this rank.
        NotImplementedError: from a step, if a gradient is sparse.
        RuntimeError: from a step, if a parameter changed outside of the steps.
    """

    wants = frozenset({"gradients"})
    film: Film | None = None

    def __init__(
        self, model, parts, mesh, *, rule, transport=DirectTransport, in_flight: int = 2, **seams
    ):
        if mesh is None:
            raise ValueError("ZeRO shards over ranks: make a mesh")
        refuse_mixing(rule)
        self.model, self.in_flight, self.made_by = model, in_flight, transport
        super().__init__(model, parts, mesh, rule=rule, **seams)
        self.trained = {name for name, p in self.parameters.items() if p.requires_grad}
        self.row_of = {name: i for i, row in enumerate(self.rows) for name in row.parameters}
        self.gradients_of = {
            self.row_of[name]: self.gradient_memory(self.rows[self.row_of[name]])
            for name in self.row_of
            if name in self.trained
        }
        self.came: set[str] = set()
        self.sending: list[int] = []
        self.marks: dict[str, tuple[int, int]] = {}

    # the layout

    def hold(self, parts, mesh):
        """Make the rows. The optimizer updates views into their shards."""
        self.rows, self.unit_of = [], []
        values, held = dict(self.parameters), dict(parts)
        together = list(sharded_together(self.model, parts, self.replicas_of))
        groups = sorted({ranks for *_, ranks in together} - {()})
        self.transports = {ranks: self.made_by(self.groups[ranks]) for ranks in groups}
        self.transports[()] = Alone()
        self.lossy, self.bound = said_by(self.transports.values())
        for unit, names, ranks in together:
            own = {name: self.parameters[name] for name in names}
            if not self.shards(own):
                continue
            row = self.parameter_memory(unit, own, self.transports[ranks])
            self.rows.append(row)
            self.unit_of.append(unit)
            for name, p in own.items():
                where = [row.row.held(name, rank) for rank in range(row.transport.size)]
                held[name] = sharded(mesh, parts[name], ranks, where)
                place = row.row.inside(name, row.transport.rank)
                values[name] = row.shard[place].requires_grad_(p.requires_grad)
        return values, held

    @property
    def transport(self) -> GroupTransport:
        """Of the parameters that the most ranks share."""
        return self.transports[max(self.transports, key=len)]

    def shards(self, parameters: Mapping[str, torch.nn.Parameter]) -> bool:
        """Whether to shard these parameters. Frozen parameters have no state to shard."""
        return all(p.requires_grad for p in parameters.values())

    def parameter_memory(self, unit: str, parameters, transport: GroupTransport):
        return Whole(parameters, transport)

    def gradient_memory(self, row):
        return Kept(row.row, row.parameters, row.transport)

    # a step

    def begin(self):
        self.rest()  # after a step that failed
        refuse_changes(self.marks, marks(self.parameters))
        super().begin()
        self.came = set()
        self.left = list(self.gradients_of)  # rows to send, from the end, as the backward runs
        self.sending = []
        for i, gradients in self.gradients_of.items():
            gradients.begin()
            self.note(i, "gradient shard", "freed")

    def gradient(self, name, last):
        if name not in self.row_of:
            return
        refuse_odd(name, self.parameters[name].grad)
        self.came.add(name)
        i = self.row_of[name]
        self.make_room(i)
        self.gradients_of[i].take(name)
        self.note(i, "gradients", "filling", self.gradients_of[i].whole)
        if last:
            self.send_complete(i, name)

    def make_room(self, i: int):
        """Prepare row i for a gradient."""

    def send_complete(self, i: int, name: str):
        """Send the rows whose gradients are complete, in the same order on all ranks."""
        self.gradients_of[i].missing.discard(name)
        while self.left and not self.gradients_of[self.left[-1]].missing:
            self.send(self.left.pop())
            self.land(self.in_flight)

    def send(self, i: int):
        self.note(i, "gradients", "sending", self.gradients_of[i].whole)
        self.gradients_of[i].send()
        self.sending.append(i)

    def land(self, most: int):
        """Wait until at most so many rows are being sent."""
        while len(self.sending) > most:
            self.finish(self.sending.pop(0))

    def finish(self, i: int):
        """Wait for the reduce-scatter of row i."""
        self.gradients_of[i].finish()

    def complete(self):
        unused = (name for name in self.row_of if name in self.trained and name not in self.came)
        advice = "call requires_grad_(False) on them in the recipe's transform"
        refuse_unused(unused, self.transport.rank, advice)
        self.rest()
        self.send_what_is_left()
        self.land(0)
        own: dict[str, torch.Tensor] = {}
        for i, gradients in self.gradients_of.items():
            own |= self.own_gradients(i, gradients.result())
        for p in self.parameters.values():
            p.grad = None
        self.collect(self.world.complete(own, done=()))

    def own_gradients(self, i: int, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        """Cut this rank's shard of row i's gradients into tensors, by name."""
        gradients, row = self.gradients_of[i], self.rows[i].row
        rank = gradients.transport.rank
        return {name: shard[row.inside(name, rank)] for name in gradients.parameters}

    def send_what_is_left(self):
        while self.left:
            self.send(self.left.pop())

    def collect(self, own: Mapping[str, torch.Tensor]):
        """Move the shards' gradients to the tensors that the optimizer updates."""
        carriers: dict[str, object] = dict(self.values)
        for name, gradient in own.items():
            if gradient.dtype == self.values[name].dtype:
                self.values[name].grad = gradient
            else:  # several micro-batches were added in a wider dtype
                carriers[name] = SimpleNamespace(grad=gradient)
        self.precision.collect(carriers, {name: self.masters[name] for name in own})

    def update(self, rule, factor):
        for i in range(len(self.rows)):
            self.note_states(i, "updating")
        super().update(rule, factor)
        for i in range(len(self.rows)):
            self.note_states(i, "held")

    def publish(self):
        for row in self.rows:
            row.publish()
        for row in self.rows:
            row.wait()
        self.marks = marks(self.parameters)

    # memory

    def kinds(self):
        kinds = super().kinds()
        whole = [p for name, p in self.parameters.items() if name not in self.row_of]
        kinds["parameters"] = [*whole, *(buffer for row in self.rows for buffer in row.buffers)]
        kinds["gradients"] += [b for own in self.gradients_of.values() for b in own.buffers]
        return kinds

    def open_film(self):
        """Add the bytes of every row to the film."""
        for i in range(len(self.rows)):
            self.note_states(i, "held")
        for i, gradients in self.gradients_of.items():
            self.note(i, "gradients", "held", *gradients.buffers)

    def note_states(self, i: int, state: str):
        if self.film is None:
            return
        row = self.rows[i]
        self.note(i, "parameters", state, row.buffers[0])
        masters = {name: self.masters[name] for name in row.parameters}
        copies = [m for name, m in masters.items() if m is not self.values[name]]
        if copies:
            self.note(i, "master copies", state, *copies)
        moments = [self.optimizer.state.get(m, {}) for m in masters.values()]
        self.note(i, "optimizer", state, *moments)
        if i in self.gradients_of:
            shards = [m.grad for m in masters.values()]
            inside = storages(self.gradients_of[i].buffers)  # stage 1: a shard of the gradients
            nbytes = sum(size for k, size in storages(shards).items() if k not in inside)
            self.film.note(self.unit_of[i], i, "gradient shard", state, nbytes)

    def note(self, i: int, kind: str, state: str, *things):
        """Tell the film that `kind` of row i consists of these tensors from now on."""
        if self.film is not None:
            self.film.note(self.unit_of[i], i, kind, state, bytes_of(list(things)))

    def close(self):
        for transport in self.transports.values():
            transport.close()


def sharded_together(
    model: torch.nn.Module, parts: Mapping[str, Part], replicas_of: Mapping[str, tuple[int, ...]]
) -> Iterator[Together]:
    """Yield the parameters of each unit that lie in one row: all of its ranks have the same row.

    Frozen parameters have a row of their own, and so has each dtype. So have parameters that are on
    other ranks than the rest of their unit: on two stages of a pipeline, or on some ranks (an
    expert).
    """
    for unit in units(model):
        together: dict[tuple, list[str]] = {}
        for name, p in unit.parameters.items():
            key = replicas_of[name], parts[name].holders, p.requires_grad, p.dtype
            together.setdefault(key, []).append(name)
        for (ranks, *_), names in together.items():
            yield unit.name, names, ranks


def sharded(mesh: Mesh, part: Part, ranks: tuple[int, ...], where: Sequence[Range]) -> Part:
    """The part of one rank's flat range, after the sum over the ranks that share it.

    Args:
        where: the range of each of these ranks, in their order.
    """
    if not ranks:
        return replace(part, flat=where[0])
    layout = mesh.layout
    places = [layout.coordinates(rank) for rank in ranks]
    axes = tuple(axis for axis in layout.axes if len({place[axis] for place in places}) > 1)
    at = {index(layout, rank, axes): own for rank, own in zip(ranks, where, strict=True)}
    # other ranks along these axes do not hold it: they have no range of their own
    every = [at.get(place, where[0]) for place in range(layout.size(*axes))]
    return flat(mesh, part.completed(ranks), *axes, where=every)
