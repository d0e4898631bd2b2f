"""Two orders of one mesh on two nodes: planned bytes, counted bytes, and the paced step."""

import pytest

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.plans.step_messages import step_messages
from helpers.runtime.launch import launch
from helpers.training.mesh_order import step_on_nodes
from tests.training.planned import step_plan

LOCAL, ALIKE = 2, {"count": 4, "chosen": 4, "hidden": 24}  # every token goes to every expert
CONFIG = GPTConfig(vocab=16, context=4, width=8, layers=2, heads=2, experts=ExpertSettings(**ALIKE))
ORDERS = {"E + D": Layout(dp=2, ep=2), "D + E": Layout(ep=2, dp=2)}
PACE, PACED = 1e5, ("gradients", "rows", "counts")


def planned_link_bytes(messages, layout, local):
    """Add up the bytes that all ranks send inside nodes and between nodes.

    A ring sends to the next rank of the group, an all-to-all to every other rank alike.
    """
    found = {"inside": 0.0, "between": 0.0}
    for one in messages:
        axes = layout.axes if one.axis == "world" else one.axis.split()
        reach = range(1, one.ranks) if one.call == "all_to_all" else (1,)
        for group in layout.groups(*axes):
            for i, rank in enumerate(group):
                for step in reach:
                    other = group[(i + step) % len(group)]
                    link = "inside" if rank // local == other // local else "between"
                    found[link] += one.sent / len(reach)
    return found


@pytest.mark.usefixtures("kept_ranks")
def test_gradients_or_rows_cross_the_nodes():
    planned_seconds = {}
    for name, layout in ORDERS.items():
        runs = list(launch(
            step_on_nodes, 4, device="cpu", config=CONFIG, layout=layout, local=LOCAL,
            bytes_per_second=PACE, steps=1,
        ))  # fmt: skip
        messages = step_messages(step_plan(CONFIG, layout, sequences=1, tokens=4))
        crossing = {"E + D": "dp", "D + E": "ep"}[name]
        for axis in ("dp", "ep"):
            planned = planned_link_bytes([m for m in messages if m.axis == axis], layout, LOCAL)
            links = {link: sum(run[axis][link] for run in runs) for link in planned}
            assert links == pytest.approx(planned)
            assert (links["between"] > 0) == (axis == crossing)
            assert (links["inside"] > 0) == (axis != crossing)
        paced = sum(m.sent for m in messages
                    if m.axis in (crossing, "world") and m.what in PACED)  # fmt: skip
        planned_seconds[name] = paced / PACE
        assert [run["links"] for run in runs] == pytest.approx([paced / PACE] * 4)
        assert all(run["seconds"] > 0.99 * run["links"] for run in runs)  # one link for a rank
    assert planned_seconds["D + E"] < planned_seconds["E + D"]  # an expert is larger than its rows
