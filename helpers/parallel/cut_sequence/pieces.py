"""A sequence that is too long for the memory of all ranks together, piece by piece, forward only.

Every rank goes through its part twice. The first pass computes the part's decay and last state.
Then the ranks hand these on. The second pass begins with the right state, and computes the outputs.
The first rank knows its state, and nobody needs the last rank's: one pass is enough for these two.
Between two pieces only a state is kept: memory depends neither on the length nor on the ranks.

B  sequences        q  tokens of a piece        D  channels        N  state
"""

from collections.abc import Callable, Iterable

import torch

from helpers.comm.ledger import ledger
from helpers.comm.messages import Peers, split
from helpers.measure.resident import resident_bytes
from helpers.models.scan.selective import selective_scan
from helpers.parallel.cut_sequence.handing_on import state_before

Piece = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
LOGS = 10  # rows that a rank logs in each pass


@torch.no_grad()
def scan_pieces(
    pieces: Callable[[], Iterable[Piece]],
    A: torch.Tensor,
    each: Callable[[torch.Tensor], None],
    peers: Peers,
) -> torch.Tensor:
    """Scan this rank's part of a sequence, and return the state after it (B, D, N).

    Args:
        pieces: makes x (B, q, D), delta (B, q, D), B (B, q, N) and C (B, q, N) of each piece, in
            order. It is called once or twice, and makes the same pieces each time, at least one.
        A: (D, N).
        each: is called with y (B, q, D) of each piece, in order.
        peers: the ranks that share the sequence, in its order.
    """
    first, last = peers.rank == 0, peers.rank == peers.size - 1
    if first:
        decay, end = one_pass(pieces, A, None, each)
    elif last:
        decay = end = no_state(next(iter(pieces())), A)  # these are never sent
    else:
        decay, end = one_pass(pieces, A, None, None)
    before = state_before(decay, end, peers)
    return end if first else one_pass(pieces, A, before, each)[1]


def one_pass(pieces, A, h, each) -> tuple[torch.Tensor, torch.Tensor]:
    """Go through all pieces from the state h: the product of the decays, and the last state."""
    steps = 0
    for x, delta, B, C in pieces():
        y, h = selective_scan(x, delta, A, B, C, h0=h)
        steps = steps + delta.sum(1)
        if each is not None:
            each(y)
    return torch.exp(steps.unsqueeze(-1) * A), h


def no_state(piece: Piece, A: torch.Tensor) -> torch.Tensor:
    return piece[0].new_zeros(len(piece[0]), *A.shape)


def random_piece(number: int, tokens: int, channels: int, state: int, seed: int = 0) -> Piece:
    """Make piece number k of a random sequence, in float64, on whichever rank asks for it."""
    g = torch.Generator().manual_seed(1_000_003 * seed + number)
    x, B, C = (
        torch.randn(1, tokens, size, generator=g, dtype=torch.float64)
        for size in (channels, state, state)
    )
    delta = 0.1 * torch.rand(1, tokens, channels, generator=g, dtype=torch.float64)
    return x, delta, B, C


def scan_long(worker, tokens=2**20, piece=4096, channels=16, state=16, seed=0) -> dict:
    """Scan a random sequence over all ranks: a function for `launch`.

    It logs the bytes of the process in memory while it goes through the pieces.

    Args:
        tokens: of the whole sequence.
        piece: q. It divides the tokens, and every rank gets at least one piece.

    Returns:
        means: (pieces of this rank,) the mean of each piece's outputs; to compare with one process.
        last: the state after this rank's part (1, D, N).
        sent: bytes that this rank sent, by the ledger.

    Raises:
        ValueError: the pieces do not divide the sequence, or are fewer than the ranks.
    """
    peers = Peers()
    count, rest = divmod(tokens, piece)
    if rest or count < peers.size:
        raise ValueError(
            f"{tokens} tokens are {tokens / piece:g} pieces of {piece}, for {peers.size} ranks: "
            "choose a piece that divides the tokens, and at least one piece a rank"
        )
    mine = split(count, peers.size)
    first, means, done = sum(mine[: peers.rank]), [], 0
    A = -torch.arange(1, state + 1, dtype=torch.float64).repeat(channels, 1)

    def pieces():
        nonlocal done
        for number in range(first, first + mine[peers.rank]):
            yield random_piece(number, piece, channels, state, seed)
            done += 1
            if done % max(1, mine[peers.rank] // LOGS) == 0:
                worker.log(tokens=done * piece, resident=resident_bytes())

    with ledger() as log:
        last = scan_pieces(pieces, A, lambda y: means.append(y.mean()), peers)
    return {"means": torch.stack(means), "last": last, "sent": log.of("send").payload}
