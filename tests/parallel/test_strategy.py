"""A strategy that says nothing more: it is exact, alone, and skips no update."""

import pytest
import torch

from helpers.parallel.strategy import Step, Strategy


class Silent(Strategy):
    """Only what every strategy must have."""

    def step(self, batch, lr=None):
        return Step(loss=torch.tensor(1.0), grad_norm=torch.tensor(2.0), tokens=3)

    def evaluate(self, batch):
        return 1.0, 3

    def full_gradients(self):
        return {}

    def full_state(self):
        return {"model": {}, "optimizer": {}}

    def load(self, state):
        pass


def test_what_a_strategy_says_by_default():
    silent = Silent()
    assert not silent.step(None).skipped
    assert (silent.lossy, silent.bound) == ("", 0.0)
    assert (silent.world_size, silent.data_rank, silent.data_size) == (1, 0, 1)
    assert silent.held() == {}
    silent.close()


ASKED = ("step", "evaluate", "full_gradients", "full_state", "load")


@pytest.mark.parametrize("name", ASKED)
def test_a_strategy_without_one_of_its_methods_cannot_be_made(name):
    lacking = {other: vars(Silent)[other] for other in ASKED if other != name}
    with pytest.raises(TypeError, match=name):
        type("Lacking", (Strategy,), lacking)()
