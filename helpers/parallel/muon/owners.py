"""Owners for Muon: each matrix is whole on one rank, which orthogonalises it and sends the result.

Replicated and Local can train with Muon too: then every rank orthogonalises every matrix.
"""

from collections.abc import Mapping

import torch

from helpers.comm.transport import DirectTransport, GroupTransport
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.muon.rows import Undivided
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.zero.stage1 import Zero1, sharded
from helpers.plans.muon import hidden_matrix


class MuonReplicated(Replicated):
    """Data parallel: gradients are all-reduced, and each hidden matrix is updated on one rank.

    That rank alone has the matrix's momentum (and its master copy). All ranks then gather the
    updated matrices, in one row for the ranks that hold them. They update all other parameters
    themselves.

    Args:
        model, parts, mesh, sums, rule, precision, dtype, device, options: as for Replicated. The
            rule is a MuonConfig.

    Attributes:
        rows: of the matrices.

    Source: Jordan et al. 2024, the distributed Muon of their code.
    """

    def hold(self, parts, mesh):
        values, held = dict(self.parameters), dict(parts)
        matrices: dict[tuple[int, ...], dict[str, torch.nn.Parameter]] = {}
        for name, p in self.parameters.items():
            part = parts[name]
            if self.replicas_of[name] and p.requires_grad and hidden_matrix(part.name, part.shape):
                matrices.setdefault(self.replicas_of[name], {})[name] = p
        self.rows = []
        for ranks, own in sorted(matrices.items()):
            transport = DirectTransport(self.groups[ranks])
            row = Undivided(own, transport, [0.0] * transport.size)
            self.rows.append(row)
            for name in own:
                where = [row.row.held(name, rank) for rank in range(transport.size)]
                held[name] = sharded(mesh, parts[name], ranks, where)
                values[name] = row.shard[row.row.inside(name, transport.rank)].requires_grad_()
        return values, held

    def sum_what_is_left(self, done):
        sent = {name for row in self.rows for name in row.parameters}
        own = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        rest = {name: gradient for name, gradient in own.items() if name not in sent}
        for name, gradient in self.world.complete(rest, done).items():
            self.parameters[name].grad = gradient
        for name in sent & own.keys():
            place = slice(*self.world.own[name].flat)
            self.values[name].grad = own[name].reshape(-1)[place]

    def publish(self):
        for row in self.rows:
            row.publish()
        for row in self.rows:
            row.wait()


class MuonZero1(Zero1):
    """ZeRO 1 by whole tensors: a unit's row has a section of whole tensors for each rank.

    The reduce-scatter brings a matrix's gradient to the one rank that needs it, so this sends as
    much as AdamW under ZeRO 1, but for padding. Units without hidden matrices (the embedding) are
    cut into flat shards, as there.

    Args:
        model, parts, mesh, transport, in_flight, sums, precision, dtype, device: as for Zero1.
        rule: a MuonConfig.

    Attributes:
        loads: transport of some rows -> FLOPs of Newton-Schulz on each rank.

    Source: Liu et al. 2025, section 2.3, but with whole tensors in the shards.
    """

    def __init__(self, model, parts, mesh, *, rule: OptimizerConfig, **seams):
        self.parts_of, self.loads = parts, {}
        # The base refuses rules that mix numbers, as Muon does. Here no matrix is cut.
        super().__init__(model, parts, mesh, rule=OptimizerConfig(), **seams)
        trained = {name: master for name, master in self.masters.items() if master.requires_grad}
        self.optimizer = rule.make(trained, self.world.own)

    def parameter_memory(
        self, unit: str, parameters: Mapping[str, torch.nn.Parameter], transport: GroupTransport
    ):
        named = ((self.parts_of[name].name, p.shape) for name, p in parameters.items())
        if not any(hidden_matrix(name, shape) for name, shape in named):
            return super().parameter_memory(unit, parameters, transport)
        loads = self.loads.setdefault(transport, [0.0] * transport.size)
        return Undivided(parameters, transport, loads)
