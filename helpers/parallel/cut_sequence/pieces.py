"""A sequence that is too long for the memory of all ranks together, piece by piece, forward only.

Every rank goes through its part twice. The first pass computes the part's decay and last state.
Then the ranks hand these on. The second pass begins with the right state, and computes the outputs.
The first rank knows its state, and nobody needs the last rank's: one pass is enough for these two.
Between two pieces only a state is kept: memory depends neither on the length nor on the ranks.

It is Mamba-2's scan, whose matrix products are fast on a CPU, too.

B  sequences      q  tokens of a piece      H  heads      P  width of a head      N  state
G  groups of B and C
"""

from collections.abc import Callable, Iterable

import torch

from helpers.comm.ledger import ledger
from helpers.comm.messages import Peers, split
from helpers.measure.resident import resident_bytes
from helpers.models.scan.ssd import ssd
from helpers.parallel.cut_sequence.scans import state_before

Piece = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
CHUNK = 256  # tokens that one matrix product sees; fewer cost more calls, which the ledger slows
LOGS = 10  # rows that a rank logs in each pass


@torch.no_grad()
def scan_pieces(
    pieces: Callable[[], Iterable[Piece]],
    A: torch.Tensor,
    each: Callable[[torch.Tensor], None],
    peers: Peers,
) -> torch.Tensor:
    """Scan this rank's part of a sequence, and return the state after it (B, H, P, N).

    Args:
        pieces: makes x (B, q, H, P), delta (B, q, H), B and C (B, q, G, N) of each piece, in order.
            It is called once or twice, and makes the same pieces each time, at least one.
        A: (H,).
        each: is called with y (B, q, H, P) of each piece, in order.
        peers: the ranks that share the sequence, in its order.
    """
    first, last = peers.rank == 0, peers.rank == peers.size - 1
    if first:
        decay, end = one_pass(pieces, A, None, each)
    elif last:
        decay, end = like_a_pass(next(iter(pieces())), A)  # these are never sent
    else:
        decay, end = one_pass(pieces, A, None, None)
    before = state_before(decay, end, peers)
    return end if first else one_pass(pieces, A, before, each)[1]


def one_pass(pieces, A, h, each) -> tuple[torch.Tensor, torch.Tensor]:
    """Go through all pieces from the state h: the product of the decays, and the last state."""
    steps = 0
    for x, delta, B, C in pieces():
        y, h = ssd(x, delta, A, B, C, h0=h, chunk=CHUNK)
        steps = steps + delta.to(h.dtype).sum(1)
        if each is not None:
            each(y)
    return torch.exp(steps * A)[..., None, None], h


def like_a_pass(piece: Piece, A) -> tuple[torch.Tensor, torch.Tensor]:
    """Go through no token: messages come in the shapes and in the format of a pass."""
    return one_pass(lambda: [tuple(tensor[:, :0] for tensor in piece)], A, None, None)


def random_piece(number: int, tokens: int, heads=2, width=16, state=16, seed: int = 0) -> Piece:
    """Make piece number k of a random sequence, in float64, on whichever rank asks for it."""
    g = torch.Generator().manual_seed(1_000_003 * seed + number)
    shapes = (heads, width), (heads,), (1, state), (1, state)
    x, delta, B, C = (
        torch.rand(1, tokens, *shape, generator=g, dtype=torch.float64) for shape in shapes
    )
    return x - 0.5, 0.1 * delta, B - 0.5, C - 0.5


def scan_long(worker, tokens=2**20, piece=4096, heads=2, width=16, state=16, seed=0) -> dict:
    """Scan a random sequence over all ranks: a function for `launch`.

    It logs the bytes of the process in memory while it goes through the pieces. It uses one thread.

    Args:
        tokens: of the whole sequence.
        piece: q. It divides the tokens, and every rank gets at least one piece.

    Returns:
        means: (pieces of this rank,) the mean of each piece's outputs; to compare with one process.
        last: the state after this rank's part (1, H, P, N).
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
    A = -torch.arange(1, heads + 1, dtype=torch.float64)

    def pieces():
        nonlocal done
        for number in range(first, first + mine[peers.rank]):
            yield random_piece(number, piece, heads, width, state, seed)
            done += 1
            if done % max(1, mine[peers.rank] // LOGS) == 0:
                worker.log(tokens=done * piece, resident=resident_bytes())

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a rank of many has: one process is compared with them
    try:
        with ledger() as log:
            # Numbers, not tensors: small tensors between the large ones would make memory grow.
            last = scan_pieces(pieces, A, lambda y: means.append(y.mean().item()), peers)
    finally:
        torch.set_num_threads(threads)
    means = torch.tensor(means, dtype=A.dtype)
    return {"means": means, "last": last, "sent": log.of("send").payload}
