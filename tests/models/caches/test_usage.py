"""Waste, measured: a slot is wasted if it belongs to a sequence and has no token."""

from helpers.models.caches.kept import Kept
from helpers.models.caches.paged import Paged
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.caches.usage import Usage

KEPT = {0: Kept(per_token=((1, 2),))}
LENGTHS = [3, 17, 64]


def filled(cache):
    cache.begin(max(LENGTHS), LENGTHS)
    cache.end()
    return cache


def test_what_is_reserved_and_has_no_token_is_wasted():
    usage = Usage(slots=100, reserved=60, used=45, tokens=50)
    assert (usage.wasted, usage.saved) == (15, 5)


def test_paging_wastes_less_than_a_block_for_each_sequence():
    slots = filled(Preallocated(KEPT, 3, 64)).usage()
    assert slots == Usage(slots=192, reserved=192, used=84, tokens=84)
    assert filled(Growing(KEPT, 3)).usage() == slots
    paged = Paged(KEPT, 12, 16)
    filled(paged.batch([paged.sequence() for _ in LENGTHS]))
    usage = paged.usage()
    assert usage == Usage(slots=192, reserved=(1 + 2 + 4) * 16, used=84, tokens=84)
    assert usage.wasted == 13 + 15 + 0
    assert slots.wasted == 61 + 47 + 0
