"""A film adds up the rows of a unit, and ends with its block."""

import time
from types import SimpleNamespace

import pytest

from helpers.parallel.zero.film import Film, filming


def test_an_event_has_the_bytes_of_all_rows_of_its_unit_and_kind():
    film, began = Film(), time.perf_counter()
    film.note("a", 0, "gradients", "filling", 3)
    film.note("a", 1, "gradients", "filling", 5)
    film.note("b", 2, "gradients", "held", 7)
    film.note("a", 0, "parameters", "held", 11)
    film.note("a", 0, "gradients", "freed", 0)
    told = [(e["unit"], e["kind"], e["state"], e["bytes"]) for e in film.events]
    assert told == [
        ("a", "gradients", "filling", 3),
        ("a", "gradients", "filling", 8),
        ("b", "gradients", "held", 7),
        ("a", "parameters", "held", 11),
        ("a", "gradients", "freed", 5),
    ]
    times = [e["time"] for e in film.events]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= time.perf_counter() - began + 1


def test_an_owner_has_a_film_inside_the_block_alone():
    owner = SimpleNamespace(film=None)
    owner.open_film = lambda: owner.film.note("a", 0, "parameters", "held", 3)

    def planted():
        with filming(owner) as film:
            assert owner.film is film
            assert [e["bytes"] for e in film.events] == [3]
            raise KeyError

    with pytest.raises(KeyError):
        planted()
    assert owner.film is None


def test_a_film_that_could_not_open_is_over():
    def fail():
        raise KeyError

    owner = SimpleNamespace(film=None, open_film=fail)
    with pytest.raises(KeyError), filming(owner):
        pass
    assert owner.film is None
