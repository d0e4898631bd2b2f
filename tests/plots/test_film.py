"""The film: the bytes after each event, what is drawn of them, and records that cannot be."""

import torch
from matplotlib.colors import to_hex

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage3 import Zero3
from helpers.plots.film import begin, film, frame, fullest, last_of, totals
from helpers.plots.style import INK, MEMORY_COLORS
from helpers.runtime.launch import launch
from tests.plots.steps import a_step, event


def bytes_held(events, upto=None):
    return {place: event["bytes"] for place, event in last_of(events, upto).items()}


def test_an_event_replaces_the_one_before():
    held = bytes_held(a_step(), 6)
    assert held == {
        ("embedding", "parameters"): 200,
        ("blocks.0", "parameters"): 600,
        ("embedding", "gathered"): 0,
        ("blocks.0", "gathered"): 1200,
    }
    after = bytes_held(a_step())
    assert {place: n for place, n in after.items() if n} == bytes_held(a_step(), 2)


def test_totals():
    kinds = totals(a_step())
    assert kinds["parameters"] == [200] + 11 * [800]
    assert kinds["gathered"] == [0, 0, 400, 1600, 1200, 1200, 1200, 0, 0, 0, 0, 0]
    assert kinds["gradient shard"][-3:] == [600, 600, 0]
    assert (begin(a_step()), fullest(a_step())) == (2, 7)
    sizes = [4, 2, 5, 0]
    again = [event(time, "a", "gathered", "ready", size) for time, size in enumerate(sizes)]
    assert totals(again) == {"gathered": sizes}
    twice = [event(time, "a", "gathered", "ready", size) for time, size in enumerate([2, 9, 4, 9])]
    assert fullest(twice) == 2  # the first of equal moments


def steps(film):
    """The first and the last event that the film shows, and the one without a kernel."""
    events = list(film.choices["event"].values())
    return events[0], events[-1], film.start["event"]


def test_the_film_begins_with_what_the_rank_has():
    shown = film(a_step(), rank=3)
    assert steps(shown) == (2, 12, 7)
    assert steps(film(iter(a_step()))) == (2, 12, 7)
    assert repr(film(a_step())).startswith("rank 0, event 7 of 12")
    assert repr(frame(a_step(), 1)).startswith("rank 0, event 1 of 12")
    assert "rank 3, event 7 of 12" in repr(shown)
    assert "event 2 of 12" in repr(shown.picture(2))
    assert type(shown.widget().children[0].children[0]).__name__ == "Play"
    assert len(shown.picture()._repr_png_()[0]) < 60_000


def test_an_empty_place_is_as_wide_as_the_most_bytes():
    grows = [event(time, "a", "gathered", "ready", size) for time, size in enumerate([2, 6, 4])]
    (outline, _) = frame(grows, 1).axes[0].patches
    assert outline.get_width() == 6


def test_what_is_filled_updated_or_used_has_a_dark_edge():
    for state in ("in use", "filling", "updating", "held", "ready"):
        _, full = frame([event(0.0, "a", "gathered", state, 8)], 1).axes[0].patches
        dark = full.get_linewidth() and to_hex(full.get_edgecolor()) == INK
        assert bool(dark) == (state in ("in use", "filling", "updating"))


def test_a_film_without_a_list_at_the_start():
    one = [event(0.0, "a", "gathered", "in use", 8), event(1.0, "a", "gathered", "freed", 0)]
    assert (begin(one), begin(a_step()[:2])) == (1, 2)
    assert steps(film(one)) == (1, 2, 1)
    shrinking = [event(0.0, "a", "parameters", "held", 8), event(0.0, "a", "parameters", "held", 2)]
    assert steps(film(shrinking)) == (2, 2, 2)


CONFIG = GPTConfig(vocab=16, context=8, width=8, layers=2, heads=2)


def record(worker):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = Recipe(owner=Zero3)(CONFIG, 0, mesh)
    batch = random_batch(0, 4, 8, CONFIG.vocab).shard(worker.rank, worker.world_size)
    trainer.step(batch)  # learns the order of the units
    with filming(trainer.owner) as recorded:
        trainer.step(batch)
    count = len(recorded.events)
    trainer.step(batch)
    assert len(recorded.events) == count  # the film has ended
    trainer.close()
    return recorded.events


def nonzero(held):
    return {place: nbytes for place, nbytes in held.items() if nbytes}


def test_a_recorded_step():
    for events in launch(record, 2, device="cpu"):
        assert {event["kind"] for event in events} <= set(MEMORY_COLORS)
        assert {event["state"] for event in events} >= {"gathering", "in use", "sending", "freed"}
        before, after = nonzero(bytes_held(events, begin(events))), nonzero(bytes_held(events))
        assert before == after
        assert film(events).picture()._repr_png_()[0].startswith(b"\x89PNG")
