"""Sizes tell which gradients a message contains."""

import pytest

from helpers.training.traffic.pending import Pending

UNITS = {
    "first": {"first.w": 10},
    "a": {"a.w": 6, "a.b": 2},
    "b": {"b.w": 6, "b.b": 2},
    "last": {"last.w": 7},
}
PADDING = {"first.w": 2, "a.w": 1, "a.b": 1, "b.w": 1, "b.b": 1, "last.w": 1}


def pending(*begun):
    found = Pending(UNITS, PADDING)
    for unit in begun:
        found.begin(unit)
    return found


def test_each_layer_by_itself():
    found = pending("last")
    assert found.take(7) == {"last": {"last.w": 7}}
    found.begin("b")
    assert found.take(8) == {"b": {"b.b": 2, "b.w": 6}}
    assert found.take(8) == {}


def test_of_two_equal_layers_the_older_goes_first():
    found = pending("b", "a")
    assert list(found.take(8)) == ["b"]
    assert list(found.take(8)) == ["a"]


def test_a_root_that_waits_for_the_end():
    found = pending("last", "b")
    assert list(found.take(8)) == ["b"]  # exact, although last and its padding are 8 too
    found.begin("a")
    assert list(found.take(8)) == ["a"]
    found.begin("first")
    assert list(found.take(17)) == ["last", "first"]
    assert found.waiting == {}


def test_padding_is_allowed_and_no_more():
    assert list(pending("last", "b").take(10)) == ["b"]
    assert pending("b").take(11) == pending("last", "b").take(12) == {}


def test_a_bucket_may_end_within_a_layer():
    found = pending("last", "b", "a")
    assert found.take(9) == {"last": {"last.w": 7}, "b": {"b.b": 2}}
    assert found.take(8) == {"a": {"a.b": 2, "a.w": 6}}
    assert found.take(6) == {"b": {"b.w": 6}}
    assert pending("b", "a").take(2) == {"b": {"b.b": 2}}  # the first parameter alone


def test_a_second_micro_batch_adds_to_the_gradients_that_wait():
    found = pending("last", "b", "last", "b")
    assert list(found.take(15)) == ["last", "b"]
    assert found.waiting == {}


@pytest.mark.parametrize("size", [0, 3, 100])
def test_other_sizes_are_not_gradients(size):
    found = pending("last", "b")
    before = {unit: dict(own) for unit, own in found.waiting.items()}
    assert found.take(size) == {}
    assert found.waiting == before
