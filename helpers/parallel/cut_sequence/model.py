"""A model of Mamba blocks on a cut sequence: every rank has some of the tokens, and all parameters.

Embeddings, norms, MLPs and the head see one token at a time. Only two steps of a block look at
earlier tokens: the causal convolution, which needs the last tokens of the rank before, and the
scan.

B  sequences        t  tokens of this rank's part        E  channels
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from helpers.comm.halo import previous_tokens
from helpers.comm.messages import Peers
from helpers.models.convolution import Convolution
from helpers.models.gpt import GPT
from helpers.models.mamba import Mamba
from helpers.models.mamba2 import Mamba2
from helpers.parallel.cut_sequence.scans import selective_scan_over_ranks, ssd_over_ranks

SCANS = {Mamba: selective_scan_over_ranks, Mamba2: ssd_over_ranks}


def cut_sequence(model: GPT, peers: Peers) -> GPT:
    """Let the model see its input as this rank's part of a longer sequence. It changes the model.

    A forward gives this rank's part of the logits. After a backward of every rank's loss sum, a
    parameter's gradient is the sum of all ranks' gradients. All ranks call forward and backward.

    Args:
        model: its mixers are all "mamba" or "mamba2", and it has no positions.
        peers: the ranks that share the sequence, in its order.

    Raises:
        ValueError: the model has attention, or positions: a part does not begin at place 0.
    """
    config = model.config
    if others := {kind for kind in config.mixers if kind not in ("mamba", "mamba2")}:
        raise ValueError(
            f"the model has the mixers {', '.join(sorted(others))}: only mamba and mamba2 can work "
            "on a cut sequence"
        )
    if config.positions != "none":
        raise ValueError(f'the model has {config.positions} positions: choose positions="none"')
    for module in list(model.modules()):
        if type(module) in SCANS:
            module.over_tokens = partial(SCANS[type(module)], peers=peers)
            for name, child in list(module.named_children()):
                if isinstance(child, Convolution):
                    setattr(module, name, CutConvolution(child, peers))
    return model


class CutConvolution(nn.Module):
    """A causal convolution whose first outputs see the last tokens of the rank before."""

    def __init__(self, convolution: Convolution, peers: Peers):
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias  # the same names
        self.peers = peers

    def forward(
        self,
        x: torch.Tensor,
        before: torch.Tensor | None = None,
        counts: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute as `Convolution.forward` does; `before` is only for a first rank.

        Raises:
            ValueError: `before` or `counts`: a cut sequence has no cache.
        """
        if before is not None or counts is not None:
            raise ValueError("a cut sequence has no cache: call the model without one")
        halo = previous_tokens(x, self.weight.shape[1] - 1, self.peers)
        return Convolution.forward(self, x, halo)
