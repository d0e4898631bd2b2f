"""A backward in two parts: the gradient of the input now, the gradients of the weights later.

Autograd's graph is a path from the output back to the input, with branches to the weights. The
first part follows the path alone, and keeps the gradient at each **junction**: a node of the path
from which a branch leads to weights. The second part follows the branches from there. So nothing
is computed twice, if an operator computes only the gradients that are asked for. PyTorch's own
operators do. A hand-written `autograd.Function` computes all of them, and both times.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2, for I and
W. The graph's public API: torch.autograd.graph.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Parameter = torch.nn.Parameter


class TwoParts:
    """The backward of one graph, in two parts.

    Args:
        root: the output.
        inputs: leaves whose gradients are computed first.
        parameters: leaves whose gradients are computed later, unless two junctions lead to one
            (a matrix that is used twice): then it is an input too.
    """

    def __init__(
        self,
        root: GradientEdge,
        inputs: Iterable[torch.Tensor],
        parameters: Iterable[Parameter],
    ):
        self.root, self.inputs = root, list(inputs)
        self.kept: dict[Node, tuple] = {}  # junction -> the gradients of its outputs
        leaves = {get_gradient_edge(p).node: p for p in parameters}
        nodes = in_order(root.node)
        while True:
            self.junctions, twice = junctions(nodes, self.inputs, leaves)
            if not twice:
                break
            self.inputs += twice

    def first(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradients of the inputs, given the gradient of the output."""
        if not self.inputs:  # nothing leads to an input: everything is computed later
            self.kept[self.root.node] = (*[None] * self.root.output_nr, gradient)
            return []
        hooks = [node.register_prehook(partial(self.keep, node)) for node in self.junctions]
        try:
            return list(
                torch.autograd.grad(
                    [self.root], self.inputs, [gradient], retain_graph=True, allow_unused=True
                )
            )
        finally:
            for hook in hooks:
                hook.remove()

    def keep(self, node: Node, gradients: tuple):
        self.kept[node] = gradients

    def second(self) -> list[tuple[Parameter, torch.Tensor]]:
        """The gradients of the other parameters. It frees the graph."""
        found = []
        for node, branch in self.junctions.items():
            gradients = self.kept.pop(node)
            there = [(GradientEdge(node, n), g) for n, g in enumerate(gradients) if g is not None]
            edges, given = zip(*there, strict=True)
            found += zip(branch, torch.autograd.grad(edges, branch, given), strict=True)
        return found


def in_order(root: Node) -> list[Node]:
    """All nodes of a graph, each after the nodes that its gradients go to."""
    found, seen, todo = [], set(), [(root, False)]
    while todo:
        node, children_done = todo.pop()
        if children_done:
            found.append(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo += [(child, False) for child, _ in node.next_functions if child is not None]
    return found


def junctions(nodes: list[Node], inputs, leaves: dict[Node, Parameter]):
    """The junctions and the parameters of their branches; and parameters that several lead to."""
    ends = {get_gradient_edge(tensor).node for tensor in inputs}
    path, branch = set(), {}  # nodes that lead to an input; parameters that the others lead to
    found: dict[Node, list[Parameter]] = {}
    for node in nodes:
        children = [child for child, _ in node.next_functions if child is not None]
        if node in ends or any(child in path for child in children):
            path.add(node)
            own = [p for child in children if child not in path for p in branch[child]]
            if own:
                found[node] = list(dict.fromkeys(own))
        else:
            own = [leaves[node]] if node in leaves else []
            own += [p for child in children for p in branch[child]]
            branch[node] = list(dict.fromkeys(own))
    if nodes[-1] not in path:  # the root itself
        found[nodes[-1]] = branch[nodes[-1]]
    counts: dict[Parameter, int] = {}
    for parameters in found.values():
        for p in parameters:
            counts[p] = counts.get(p, 0) + 1
    return found, [p for p, count in counts.items() if count > 1]
