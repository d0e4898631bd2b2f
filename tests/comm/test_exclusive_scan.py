"""Every rank gets what the ranks before it hold, in order, for any number of ranks."""

import pytest
import torch

from helpers.comm.exclusive_scan import exclusive_scan
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.messages import Peers
from helpers.runtime.launch import launch
from tests.comm.threads import on_threads

pytestmark = pytest.mark.usefixtures("kept_ranks")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 9])
def test_who_sends_what_to_whom(size, reverse):
    """In threads. The element of rank r is the number r + 1; combined, they are digits in a row."""

    def combine(earlier, later):
        assert all(part.shape == (1, 2) for part in (*earlier, *later))
        digits = 10 ** len(str(int(later[0][0, 0])))
        return (earlier[0] * digits + later[0],)

    def body(peers):
        own = (torch.full((1, 2), peers.rank + 1),)
        before = exclusive_scan(own, combine, peers, reverse)
        assert own[0].tolist() == [[peers.rank + 1] * 2]
        return before and before[0].unique().tolist(), peers.sent

    order = list(range(size))[:: -1 if reverse else 1]
    found = on_threads(size, body)
    for place, rank in enumerate(order):
        before, sent = found[rank]
        text = "".join(str(r + 1) for r in order[:place])
        assert before == ([int(text)] if text else None)
        assert sent == [(order[place + d], 2) for d in (1, 2, 4, 8) if place + d < size]


def strided(worker):
    """Elements of any layout, as autograd may make them."""
    own = (torch.full((2, 3), worker.rank + 1.0).mT, torch.tensor(1.0).expand(2, 2))
    return exclusive_scan(own, lambda a, b: (a[0] + b[0], a[1] + b[1]), Peers())


def test_elements_keep_their_shapes_in_any_layout():
    last = launch(strided, 3, device="cpu")[2]
    assert [part.shape for part in last] == [(3, 2), (2, 2)]
    assert [part.unique().tolist() for part in last] == [[3.0], [2.0]]


def along_an_axis(worker):
    mesh = make_mesh(Layout(pp=2, dp=2))
    own = (torch.tensor([float(worker.rank)]),)
    found = [
        exclusive_scan(own, lambda a, b: (a[0] * 10 + b[0],), Peers(mesh.group("dp")), reverse)
        for reverse in (False, True)
    ]
    return [None if pair is None else pair[0].item() for pair in found]


def test_a_group_of_some_ranks():
    assert list(launch(along_an_axis, 4, device="cpu")) == [
        [None, 1],
        [0, None],
        [None, 3],
        [2, None],
    ]
