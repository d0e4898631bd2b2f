"""Have ranks prove to each other that they belong to one call.

gloo's sockets accept whichever process connects first. So each pair of ranks shows that it knows
the call's key, over the connection that the pair will use, before anything else goes through that
connection. A stranger does not know the key, and then the call ends. This does not encrypt: a
process between two ranks that forwards their messages could still read and change numbers.
"""

import hashlib
import hmac
import json
import secrets
from datetime import timedelta

import torch
import torch.distributed as dist

KEY_BYTES = 32
PROOF_SECONDS = 60.0  # the group is complete when the proof begins: no rank is far behind

_key: bytes | None = None


class Stranger(RuntimeError):
    """Some rank has not shown that it is a rank of this call."""


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def keep(key: bytes):
    """Keep the key of this rank's call; only the ranks of the call may ever learn the key."""
    global _key
    _key = key


def prove(group: dist.ProcessGroup | None = None):
    """Have each pair of a group's ranks prove itself. Every rank calls this after the group exists.

    The function does nothing if there is no key (other means started the ranks), on a rank outside
    the group, and in a group of NCCL alone, because NCCL checks a number of its own.

    Raises:
        Stranger: another process answered in place of some rank, or a rank is silent.
    """
    group = dist.group.WORLD if group is None else group
    if _key is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    ranks, own = dist.get_process_group_ranks(group), dist.get_rank()
    if "cpu:gloo" not in dist.get_backend_config(group) or len(ranks) < 2:
        return
    about = [group.group_name, ranks]
    sent = rows(mark(_key, about, own, other) for other in ranks)
    received = torch.zeros_like(sent)
    # The group's own method: a count of the program's collectives must not see this one.
    work = group._get_backend(torch.device("cpu")).alltoall_base(received, sent, [], [])
    wait(work, ranks)
    for other, row in zip(ranks, received.tolist(), strict=True):
        if not hmac.compare_digest(bytes(row), mark(_key, about, other, own)):
            raise Stranger(f"another process answered in place of rank {other}")


def mark(key: bytes, about: list, source: int, target: int) -> bytes:
    """What rank `source` shows to rank `target`: an HMAC of the group and both ranks."""
    text = json.dumps([*about, source, target]).encode()
    return hmac.digest(key, text, hashlib.sha256)


def rows(marks) -> torch.Tensor:
    """The marks as one (ranks, bytes of a mark) tensor of uint8."""
    return torch.stack([torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in marks])


def wait(work, ranks: list[int]):
    try:
        work.wait(timedelta(seconds=PROOF_SECONDS))
    except RuntimeError as error:
        if "timed out" in str(error).lower():
            raise Stranger(
                f"some rank of {ranks} has not shown within {PROOF_SECONDS:g} s that it is a rank "
                "of this call: a stranger in its place, or a machine with far too much to do?"
            ) from None
        raise Stranger(str(error)) from None
