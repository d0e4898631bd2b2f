"""What messages cost in tensor-parallel decoding: seconds per token, with and without messages.

    seconds = computation + sum over messages (steps · alpha + bytes · beta)

alpha is the seconds per message and beta the seconds per byte of Hockney's model. A ring all-reduce
over N ranks takes 2 (N-1) steps. With small payloads the term of alpha is nearly everything, so
decoding on ranks is bound by latency: more ranks shorten the computation, and make more steps.
"""

from dataclasses import dataclass

import torch

from helpers.comm.cost import Fit
from helpers.comm.regions import Ready
from helpers.comm.transport import GroupTransport, Work
from helpers.models.gpt import GPTConfig
from helpers.plans.decode_traffic import decode_messages


@dataclass(frozen=True, kw_only=True)
class TokenTime:
    """The parts of a decoding step's time, in seconds.

    Attributes:
        computation: of one rank, without messages.
        latency: the messages' steps times alpha.
        bandwidth: the messages' bytes times beta.
    """

    computation: float
    latency: float
    bandwidth: float

    @property
    def total(self) -> float:
        return self.computation + self.latency + self.bandwidth


def token_time(
    config: GPTConfig,
    fits: Fit | dict[str, Fit],
    ranks: int,
    computation: float,
    *,
    sequences: int = 1,
    number_bytes: int = 4,
    head: str = "best",
) -> TokenTime:
    """Predict a decoding step of B sequences on N ranks.

    Args:
        fits: alpha and beta; or one fit for each call, {"all_reduce": …, "all_gather": …}.
        ranks: N.
        computation: seconds of a rank's own work, measured with SilentTransport.
        sequences: B.
        number_bytes: of one number of an activation.
        head: as for `decode_messages`.
    """
    sizes = {"layers": config.layers, "width": config.width, "vocab": config.vocab}
    latency = bandwidth = 0.0
    for one in decode_messages(
        **sizes, ranks=ranks, sequences=sequences, number_bytes=number_bytes, head=head
    ):
        fit = fits[one.call] if isinstance(fits, dict) else fits
        latency += one.steps * fit.alpha
        bandwidth += one.sent * fit.beta
    return TokenTime(computation=computation, latency=latency, bandwidth=bandwidth)


class SilentTransport(GroupTransport):
    """A transport that sends nothing: the time that is left is the time of the computation.

    Each call returns at once, and no rank waits for another rank. Its results are wrong: a partial
    sum stays partial. The shapes and the Python code are the same.
    """

    def all_reduce(self, buffer: torch.Tensor) -> Work:
        return Ready(buffer)

    def maximum(self, buffer: torch.Tensor) -> Work:
        return Ready(buffer)

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        every.copy_(own.expand_as(every))
        return Ready(every)

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        own.copy_(every[self.rank])
        return Ready(own)
