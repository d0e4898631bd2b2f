"""ZeRO++: stage 3 over nodes, with fewer bytes on the slow links between them."""

from helpers.comm.transport import DirectTransport
from helpers.parallel.zero.nodes import NodesTransport
from helpers.parallel.zero.row import Alone, Gathered
from helpers.parallel.zero.stage3 import Zero3
from helpers.precision.blocks import Blocks


class ZeroPlusPlus(Zero3):
    """Shard over nodes and the ranks of a node, and choose which of three mechanisms save bytes.

    The mesh needs an axis of nodes, then one of a node's ranks, and the transform must name both:

        Recipe(
            layout=Layout(node=2, local=2),
            transform=partial(plain, data=("node", "local")),
            owner=partial(ZeroPlusPlus, secondary=True),
        )

    Without a mechanism this is stage 3, with collectives in two parts (`zero.nodes`). Let M be the
    bytes of the parameters and K the nodes: with one micro-batch, the ranks of a node together send
    3 M (K-1)/K between the nodes. `helpers.plans.slow_links` has the bytes for each mechanism.

    Args:
        weights: gather in this format (qwZ), such as Blocks(bits=8). Only the gathered copies are
            rounded, the same on every rank. The shards that the optimizer updates stay exact.
        secondary: keep a second shard inside the node (hpZ), from the first gather to the update.
            All other gathers of a step, and of other micro-batches, stay in the node. Each of its L
            ranks needs M/L bytes more. It changes no number. The paper gathers across the nodes in
            the forward of every micro-batch.
        gradients: sum in these formats (qgZ), inside the nodes and between them. The paper uses
            int4 for both.
        inside, between: make the transports of these links from a process group.
        others, raises: as for Zero3.

    Raises:
        ValueError: the transform does not name two axes; some ranks do not hold a parameter.

    Source: Wang et al. 2023, "ZeRO++", arXiv:2306.10209, section 3.
    """

    def __init__(
        self,
        model,
        parts,
        mesh,
        *,
        sums: tuple[str, ...] = (),
        weights: Blocks | None = None,
        secondary: bool = False,
        gradients: tuple[Blocks, Blocks] | None = None,
        inside=DirectTransport,
        between=DirectTransport,
        **options,
    ):
        axes = mesh.layout.known(sums) if mesh is not None else ()
        if len(axes) != 2:
            raise ValueError(
                f"ZeRO++ shards over two axes, nodes and their ranks, not over {axes}: name both "
                'in the transform, as in partial(plain, data=("node", "local"))'
            )
        self.secondary = secondary
        node, local = map(mesh.group, axes)

        def transport(group):
            return NodesTransport(group, inside(local), between(node), weights, gradients)

        super().__init__(model, parts, mesh, sums=sums, transport=transport, **options)

    def parameter_memory(self, unit, parameters, transport):
        if not self.secondary or self.used_outside(unit) or isinstance(transport, Alone):
            return super().parameter_memory(unit, parameters, transport)
        shapes = {name: self.shapes[name] for name in parameters}
        return GatheredInside(parameters, shapes, transport)

    def publish(self):
        for row in self.rows:
            if isinstance(row, GatheredInside):
                row.second = None  # it has the values before the update
        super().publish()


class GatheredInside(Gathered):
    """Gather across the nodes once, then inside the node, until the parameters change (hpZ).

    Attributes:
        second: the l-th of the row's L equal ranges on rank l of each node: (P/L,). None before the
            first gather.
    """

    second = None

    @property
    def buffers(self):
        return super().buffers + ([] if self.second is None else [self.second])

    def gather(self):
        if self.second is None:
            super().gather()
        elif self.state == "freed":
            self.whole.untyped_storage().resize_(self.nbytes)
            inside = self.transport.inside
            self.work = inside.all_gather(self.whole.view(inside.size, -1), self.second)
            self.state = "gathering"

    def use(self):
        super().use()
        if self.second is None:
            inside = self.transport.inside
            self.second = self.whole.view(inside.size, -1)[inside.rank].clone()
