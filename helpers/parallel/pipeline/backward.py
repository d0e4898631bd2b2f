"""A backward in two parts: the gradient of the input now, the gradients of the weights later.

Autograd's graph is a path from the output back to the input, with branches to the weights. The
first part follows the path alone, and keeps the gradient at each **junction**: a node of the path
from which a branch leads to weights. The second part follows the branches from there. So nothing
is computed twice, if an operator computes only the gradients that are asked for. PyTorch's own
operators do. A hand-written `autograd.Function` computes all of them, both times.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2, for I and
W. The graph's public API: torch.autograd.graph.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Parameter = torch.nn.Parameter
Gradients = list[tuple[Parameter, torch.Tensor]]


class TwoParts:
    """The backward of one graph, in two parts.

    Args:
        root: the output. The graph leads from it to the input.
        x: the input.
        parameters: all that the graph may lead to. A matrix that the graph uses twice, at two
            junctions, belongs to the first part.
    """

    def __init__(self, root: GradientEdge, x: torch.Tensor, parameters: Iterable[Parameter]):
        self.root: GradientEdge | None = root
        self.x, self.early = x, []
        self.kept: dict[Node, tuple] = {}  # junction -> the gradients of its outputs
        leaves = {get_gradient_edge(p).node: p for p in parameters}
        nodes = in_order(root.node)
        while True:
            ends = {get_gradient_edge(leaf).node for leaf in (x, *self.early)}
            self.junctions = junctions(nodes, ends, leaves)
            counts = Counter(p for branch in self.junctions.values() for p in branch)
            twice = [p for p, count in counts.items() if count > 1]
            if not twice:
                break
            self.early += twice

    def first(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Gradients]:
        """Compute the gradient of the input, given that of the output.

        Returns:
            The gradient, and the gradients of the parameters that belong to the first part.
        """
        hooks = [node.register_prehook(partial(self.keep, node)) for node in self.junctions]
        try:
            of_x, *others = torch.autograd.grad(
                [self.root], [self.x, *self.early], [gradient], retain_graph=True
            )
        finally:
            for hook in hooks:
                hook.remove()
            self.root = None  # frees what only the first part needed, the logits among it
        return of_x, list(zip(self.early, others, strict=True))

    def keep(self, node: Node, gradients: tuple):
        self.kept[node] = gradients

    def second(self) -> Gradients:
        """Compute the gradients of the other parameters. It frees the graph from the output on."""
        found = []
        while self.junctions:
            node, branch = self.junctions.popitem()
            gradients = self.kept.pop(node)
            there = [(GradientEdge(node, n), g) for n, g in enumerate(gradients) if g is not None]
            edges, given = zip(*there, strict=True)
            found += zip(branch, torch.autograd.grad(edges, branch, given), strict=True)
        return found


def in_order(root: Node) -> dict[Node, list[Node]]:
    """The nodes of a graph and their children, to which gradients go; children come first."""
    found: dict[Node, list[Node]] = {}
    seen, todo = {}, [root]
    while todo:
        node = todo[-1]
        if node not in seen:
            seen[node] = [child for child, _ in node.next_functions if child is not None]
            todo += [child for child in seen[node] if child not in seen]
        else:
            found[todo.pop()] = seen[node]
    return found


def junctions(
    nodes: dict[Node, list[Node]], ends: set[Node], leaves: dict[Node, Parameter]
) -> dict[Node, list[Parameter]]:
    """The junctions of a graph, and the parameters of their branches, from the input upwards.

    Args:
        nodes: from `in_order`.
        ends: where the path ends.
        leaves: the parameters' nodes.
    """
    path, branches, found = set(), {}, {}
    for node, children in nodes.items():
        below = [branches[child] for child in children if child not in path]
        own = [leaves[node]] if node in leaves else []
        own = list(dict.fromkeys(p for branch in (own, *below) for p in branch))
        if node in ends or len(below) < len(children):
            path.add(node)
            if own and node not in ends:
                found[node] = own
        else:
            branches[node] = own
    return found
