"""What cannot travel is named as the student wrote it."""

import gc
import os
import threading
from types import SimpleNamespace

import pytest

from helpers.runtime.blame import article, pack_or_name
from helpers.runtime.payload import CannotTravel

LOCK = threading.Lock()


def complaint(value, **names) -> str:
    with pytest.raises(CannotTravel) as caught:
        pack_or_name((value, names), {getattr(value, "__name__", "value"): value, **names}, "there")
    assert "cannot travel there" in str(caught.value)
    assert "Make it inside the function" in str(caught.value)
    return str(caught.value)


def test_an_argument():
    with open("/dev/null") as file:
        assert complaint(len, log=file).startswith("`log` is a _io.TextIOWrapper")
    assert complaint(len, numbers=(i for i in range(3))).startswith("`numbers` is a generator")
    assert complaint(len, lock=LOCK).startswith("`lock` is a _thread.lock")


def test_a_closure():
    lock = threading.Lock()

    def train(worker):
        return lock

    assert complaint(train).startswith("`lock`, which `train` uses, is a _thread.lock")


def test_a_global():
    def train(worker):
        return LOCK

    assert complaint(train).startswith("`LOCK`, which `train` uses, is a _thread.lock")


def test_a_default():
    def train(worker, lock=LOCK):
        return lock

    assert complaint(train).startswith("`lock`, which `train` uses, is a _thread.lock")


def test_a_function_that_a_function_uses():
    def helper():
        return LOCK

    def train(worker):
        return helper()

    assert complaint(train).startswith("`LOCK`, which `helper` uses")


def test_something_nested():
    config = SimpleNamespace(data=[1, {"guard": LOCK}])
    assert complaint(len, config=config).startswith("`config.data[1]['guard']` is a _thread.lock")


def test_a_method_of_something():
    class Trainer:
        def __init__(self):
            self.lock = threading.Lock()

        def train(self, worker):
            return 1

    assert complaint(Trainer().train).startswith("`train.__self__.lock` is a _thread.lock")


def test_something_that_leads_back_to_itself():
    """The lock is to blame, also where the way back comes first."""
    loop = {"in": [0]}
    loop["in"].append(loop)
    loop["lock"] = LOCK
    assert complaint(len, loop=loop).startswith("`loop['lock']` is a _thread.lock")

    def repeat(worker):
        return repeat, LOCK

    assert complaint(repeat).startswith("`LOCK`, which `repeat` uses, is")


def test_something_that_leads_back_and_cannot_travel_itself():
    class Child:
        def __reduce__(self):
            raise TypeError("not this one")

    child = Child()
    child.parent = SimpleNamespace(child=child)
    said = complaint(len, family=[3, child.parent])
    assert said.startswith("`family[1].child` is a")
    assert "(TypeError: not this one)" in said


def test_something_in_a_set_and_something_behind_a_way_too_long():
    class Guard:
        def __init__(self):
            self.lock = LOCK

    assert complaint(len, guards={Guard()}).startswith("`guards[0].lock` is a _thread.lock")
    deep = LOCK
    for _ in range(9):
        deep = [deep]
    assert complaint(len, deep=deep).startswith(f"`deep{'[0]' * 6}` is a list")


def test_of_several_the_first_is_named():
    assert complaint(len, good=1, first=LOCK, second=LOCK).startswith("`first` is a _thread.lock")
    assert complaint(len, both=(0, LOCK, [LOCK])).startswith("`both[1]` is a _thread.lock")
    assert complaint(len, both={"x": 1, "y": LOCK, "z": LOCK}).startswith("`both['y']` is a")


def test_a_value_of_which_no_part_is_to_blame():
    with pytest.raises(CannotTravel, match=r"^`the value` is a _thread.lock and"):
        pack_or_name(LOCK, {"x": 1}, "there")


def test_searching_leaves_no_descriptor_open():
    """The large part is packed too, to see whether it is the one to blame."""
    gc.collect()  # what other tests have left would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    assert complaint(len, config=[bytes(1 << 20), LOCK]).startswith("`config[1]` is")
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_innocent_pass():
    pack_or_name((len, {"x": 1}), {"len": len, "x": 1}, "there").close()


def test_article():
    assert article(int) == "an int"
    assert article(dict) == "a dict"
    assert article(SimpleNamespace) == "a types.SimpleNamespace"
    assert article(type("Item", (), {"__module__": "abc"})) == "an abc.Item"
