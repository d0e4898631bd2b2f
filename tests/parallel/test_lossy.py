"""A lossy transport declares itself: the strategy says so, and stays within the bound."""

from functools import partial

import pytest
import torch

from helpers.comm.transport import GroupTransport
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.after_backward import NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import said_by
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage3 import Zero3
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")
TINY = GPTConfig(vocab=33, context=8, width=16, layers=2, heads=2)
SMOOTH = OptimizerConfig(eps=1e-4)  # see helpers.parallel.precision.BOUNDS


class Rounded(GroupTransport):
    """Gradients, and gathered copies of parameters, travel with the digits of bfloat16."""

    lossy, bound = "messages are rounded to bfloat16", 0.1

    def all_reduce(self, buffer):
        if buffer.is_floating_point():
            buffer.copy_(buffer.bfloat16())
        return super().all_reduce(buffer)

    def reduce_scatter(self, own, every):
        return super().reduce_scatter(own, every.bfloat16().to(every.dtype))

    def all_gather(self, every, own):
        copies = every[self.rank].data_ptr() != own.data_ptr()  # else it is the parameter itself
        return super().all_gather(every, own.bfloat16().to(own.dtype) if copies else own)


@pytest.mark.parametrize("owner", [partial(Replicated, replica=NaiveDDP), Zero3])
def test_an_owner_says_what_its_transport_says(owner):
    recipe = Recipe(owner=partial(owner, transport=Rounded))
    given = {"config": TINY, "steps": 6, "dtype": torch.float32, "optimizer": SMOOTH}
    comparison = compare(recipe, device="cpu", **given)
    assert comparison, comparison
    assert (comparison.lossy, comparison.bound) == (Rounded.lossy, Rounded.bound)
    assert 1e-4 < comparison.worst("relative") < Rounded.bound  # it does round


class Worse(Rounded):
    bound = 0.2


def test_the_largest_bound_counts_and_most_transports_are_exact():
    transports = [object.__new__(kind) for kind in (GroupTransport, Rounded, Worse)]
    assert said_by(transports) == (Rounded.lossy, 0.2)
    assert said_by(transports[:1]) == said_by([]) == ("", 0.0)
