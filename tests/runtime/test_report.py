"""What cannot travel is named as the student wrote it."""

import gc
import os
import threading
from types import SimpleNamespace

import pytest

from helpers.runtime.payload import CannotTravel
from helpers.runtime.report import article, pack_or_name

LOCK = threading.Lock()


def complaint(value, **names) -> str:
    with pytest.raises(CannotTravel) as caught:
        pack_or_name((value, names), {getattr(value, "__name__", "value"): value, **names}, "there")
    assert "cannot travel there" in str(caught.value)
    assert "Make it inside the function" in str(caught.value)
    return str(caught.value)


class Guard:
    def __init__(self):
        self.lock = LOCK

    def train(self, worker):
        return 1


class Child:
    def __reduce__(self):
        raise TypeError("not this one")


def loop() -> dict:
    """The lock is to blame, also where the way back comes first."""
    loop = {"in": [0]}
    loop["in"].append(loop)
    return {**loop, "lock": LOCK}


def family() -> list:
    child = Child()
    child.parent = SimpleNamespace(child=child)
    return [3, child.parent]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: (i for i in range(3)), "`x` is a generator"),
        (lambda: LOCK, "`x` is a _thread.lock"),
        (lambda: SimpleNamespace(a=[1, {"b": LOCK}]), "`x.a[1]['b']` is a _thread.lock"),
        (lambda: {Guard()}, "`x[0].lock` is a _thread.lock"),
        (lambda: [[[[[[[[[LOCK]]]]]]]]], f"`x{'[0]' * 6}` is a list"),  # too deep to look on
        (lambda: (0, LOCK, [LOCK]), "`x[1]` is a _thread.lock"),
        (lambda: {"a": 1, "b": LOCK, "c": LOCK}, "`x['b']` is a _thread.lock"),
        (loop, "`x['lock']` is a _thread.lock"),
        (family, "`x[1].child` is a"),
    ],
)
def test_the_innermost_part_of_an_argument(make, said):
    assert complaint(len, good=1, x=make(), other=LOCK).startswith(said)


def test_the_reason_is_python_s_own():
    assert "(TypeError: not this one)" in complaint(len, family=family())


def test_what_a_function_uses():
    lock = threading.Lock()

    def closure(worker):
        return lock

    def of_module(worker):
        return LOCK

    def default(worker, guard=LOCK):
        return guard

    def through(worker):
        return of_module(worker)

    def repeat(worker):
        return repeat, LOCK

    for function, said in (
        (closure, "`lock`, which `closure` uses, is a _thread.lock"),
        (of_module, "`LOCK`, which `of_module` uses, is a _thread.lock"),
        (default, "`guard`, which `default` uses, is a _thread.lock"),
        (through, "`LOCK`, which `of_module` uses, is a _thread.lock"),
        (repeat, "`LOCK`, which `repeat` uses, is a _thread.lock"),
        (Guard().train, "`train.__self__.lock` is a _thread.lock"),
    ):
        assert complaint(function).startswith(said)


def test_a_value_of_which_no_part_is_to_blame():
    with pytest.raises(CannotTravel, match=r"^`the value` is a _thread.lock and"):
        pack_or_name(LOCK, {"x": 1}, "there")
    pack_or_name((len, {"x": 1}), {"len": len, "x": 1}, "there").close()


def test_searching_leaves_no_descriptor_open():
    """The large part is packed too, to see whether it is the one to blame."""
    gc.collect()  # what other tests have left would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    assert complaint(len, config=[bytes(1 << 20), LOCK]).startswith("`config[1]` is")
    assert len(os.listdir("/proc/self/fd")) <= before


def test_article():
    kinds = int, dict, SimpleNamespace, type("Item", (), {"__module__": "abc"})
    found = [article(kind) for kind in kinds]
    assert found == ["an int", "a dict", "a types.SimpleNamespace", "an abc.Item"]
