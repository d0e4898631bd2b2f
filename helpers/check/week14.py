"""Exercises of week 14: the interval between checkpoints, a commit, the goodput of a plan."""

import json
import math  # noqa: F401, for the slips

from helpers.check.exercise import Edit, Exercise, among
from helpers.check.number import Number
from helpers.resilience.interval import daly, expected_seconds

# best_interval


def dalys(write, of_one, gpus):
    between = of_one / gpus
    return daly(write, between)


YEAR = 365.25 * 86_400
best_interval = Number(
    right=dalys,
    unit="seconds",
    close=1e-9,
    draw=among(write=(1, 600), of_one=(2e7, 6e8), gpus=(8, 100_000)),
    cases=(  # write, of_one, gpus
        ("8 GPUs", (30.0, 5 * YEAR, 8)),
        ("16,384 GPUs", (60.0, 5.8 * YEAR, 16_384)),
        ("100,000 GPUs", (60.0, 5.8 * YEAR, 100_000)),
        ("100,000 GPUs, a slow disk", (900.0, 5.8 * YEAR, 100_000)),
        ("100,000 GPUs, a disk that is too slow", (4000.0, 5.8 * YEAR, 100_000)),
    ),
    slips=(
        (Edit("of_one / gpus", "of_one"), "The time between faults is that of one GPU. How often "
         "does any of them fail?"),
        (Edit("of_one / gpus", "of_one * gpus"), "More GPUs fail more often, not less."),
        (Edit("daly(write, between)", "math.sqrt(2 * write * between)"),
         Edit("daly(write, between)", "min(math.sqrt(2 * write * between), between)"), "This is "
         "Young's interval. Daly's series has two more terms, and subtracts the time to write."),
        (Edit("daly(write, between)", "daly(write, between) + write"), "The interval is the "
         "training between two checkpoints, without the time to write one."),
        (Edit("daly(write, between)", "math.sqrt(2 * write * between) - write"), "Two terms of the "
         "series are missing: a third of the root of C/2M, and a ninth of C/2M."),
        (Edit("daly(write, between)", "math.sqrt(write * between)"), "Half of an interval is lost "
         "by a fault on average: where is the 2?"),
        (Edit("daly(write, between)", "daly(write, between) if write < 2 * between else 0.0"),
         Edit("daly(write, between)", "math.sqrt(2 * write * between) * (1 + math.sqrt(write / (2 "
              "* between)) / 3 + write / (2 * between) / 9) - write"), "For C of 2 M or more the "
         "series does not hold: then the interval is M."),
    ),
    last="T = sqrt(2 C M) · (1 + sqrt(C/2M)/3 + (C/2M)/9) - C, with the M of the whole job; and M "
    "where C is 2 M or more.",
)  # fmt: skip


# days_of_training


def days_with_faults(days, every, write, restart, between):
    stretch = expected_seconds(every, write, between, restart)
    return days * stretch / every


WHOLE = "expected_seconds(every, write, between, restart)"
days_of_training = Number(
    right=days_with_faults,
    unit="days",
    close=1e-9,
    draw=among(days=(1, 90), every=(60, 4000), write=(1, 300), restart=(1, 1200),
               between=(600, 90_000)),
    cases=(  # days, every, write, restart, between
        ("30 days, a fault every 3.1 hours", (30, 1200, 60, 600, 11_136)),
        ("30 days, a fault every half hour", (30, 420, 60, 600, 1824)),
        ("30 days, an instant restart", (30, 420, 60, 0, 1824)),
        ("one day, rare faults", (1, 3600, 10, 60, 1e6)),
        ("60 days, checkpoints that hardly ever end", (60, 1800, 900, 600, 1824)),
    ),
    slips=(
        (Edit(WHOLE, "every + write"), "Faults are missing: a stretch that is stopped begins "
         "again."),
        (Edit(WHOLE, "every + write + (every / 2 + restart) * every / between"),
         Edit(WHOLE, "every + write + ((every + write) / 2 + restart) * (every + write) / between"),
         "This counts each fault once. But a stretch that begins again may be stopped again: the "
         "expected time is M (exp(L/M) - 1), for a stretch of length L."),
        (Edit(WHOLE, "expected_seconds(every, write, between)"), "Each fault is followed by a "
         "restart, which may fail, too: a factor of exp(R/M)."),
        (Edit(WHOLE, "expected_seconds(every, write, between) + restart"), "The restart comes "
         "after each fault, not once in each interval."),
        (Edit(WHOLE, "expected_seconds(every, 1e-9, between, restart)"), "A fault may come while "
         "the checkpoint is written: the stretch is T + C long."),
        (Edit(WHOLE, "math.exp(restart / between) * between * (math.exp((every + write + restart) "
              "/ between) - 1)"), "The restart is counted twice: it is no part of the stretch."),
        (Edit("stretch / every", "stretch / (every + write)"), "Only T of a stretch is training."),
        (Edit("days * stretch / every", "days * every / stretch"), "With faults, training takes "
         "longer, not shorter."),
    ),
    last="A stretch of T + C seconds takes M · exp(R/M) · (exp((T + C)/M) - 1) on average, and T "
    "of it is training.",
)  # fmt: skip


# commit

NEWEST = "newest"
LARGEST = 1 << 16  # bytes of an object


class Store:
    """A store of objects, without rename. Each call happens whole or not at all.

    Attributes:
        log: the calls that have changed it: a name and data, or None for a deletion.
    """

    def __init__(self, objects):
        self.objects, self.log = dict(objects), []

    def put(self, name: str, data: bytes):
        if not isinstance(name, str) or not isinstance(data, bytes):
            raise TypeError("put(name, data) takes a str and bytes")
        if len(data) > LARGEST:
            raise ValueError(f"an object of {len(data):,} bytes; at most {LARGEST:,} are kept")
        self.objects[name] = data
        self.log.append((name, data))

    def get(self, name: str) -> bytes:
        if name not in self.objects:
            raise KeyError(f"the store has no object {name!r}")
        return self.objects[name]

    def delete(self, name: str):
        if self.objects.pop(name, None) is None:
            raise KeyError(f"the store has no object {name!r}")
        self.log.append((name, None))

    def names(self) -> list[str]:
        return sorted(self.objects)


def shards_of(step: int, ranks: int) -> dict[str, bytes]:
    return {f"rank{rank}": b"%d of %d" % (rank, step) for rank in range(ranks)}


def read_newest(objects: dict[str, bytes]) -> str:
    """What a reader finds: which step, or that it is torn."""
    if NEWEST not in objects:
        return "nothing"
    try:
        found = json.loads(objects[NEWEST])
        step, places = int(found["step"]), dict(found["shards"])
        shards = {name: objects.get(place) for name, place in places.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return "no manifest"
    if None in shards.values():
        return f"a manifest of step {step}, whose objects are missing"
    whole = shards and shards == shards_of(step, len(shards))
    return f"step {step}, whole" if whole else "shards of two steps"


def calls_of(solve, stores, step, ranks, most) -> list[list[tuple]]:
    """Commit a step to each store: the first calls that change it."""
    for store in stores:
        solve(store, step, shards_of(step, ranks))
    return [store.log[:most] for store in stores]


def play_commits(ask, ranks: int) -> dict:
    """Commit steps 1 and 2, and kill the second at each of its calls; then commit step 3.

    This one is killed, too, at each of its calls; and step 4 then, before its manifest.
    """

    def kills(states, step, most=50):
        """For each state, the objects that a kill at each call of a commit leaves; last, all."""
        rows = []
        logs = ask([Store(objects) for objects in states], step, ranks, most)
        for objects, log in zip(states, logs, strict=True):
            store, row = Store(objects), [objects]
            for name, data in log[:most]:
                store.delete(name) if data is None else store.put(name, data)
                row.append(dict(store.objects))
            rows.append(row)
        return rows

    def found(states):
        return sorted(set(map(read_newest, states)))

    [[*_, first]] = kills([{}], 1)
    [once] = kills([first], 2)
    third = kills(once, 3)
    twice = [objects for row in third for objects in row]
    fourth = [row[-1] for row in kills(twice, 4, ranks)]
    return {
        "readers find after a commit": read_newest(once[-1]),
        "readers find after a kill": found(once),
        "objects after two commits": len(once[-1]),
        "readers and objects after a kill and another commit": sorted(
            {(read_newest(row[-1]), len(row[-1])) for row in third}
        ),
        "readers find after a kill of each commit": found(twice + fourth),
    }


def commit_to(store, step, shards):
    places = {name: f"{step}/{name}" for name in shards}
    for name, data in shards.items():
        store.put(places[name], data)
    store.put("newest", json.dumps({"step": step, "shards": places}).encode())
    for name in store.names():
        if name != "newest" and name not in places.values():
            store.delete(name)


PUT = """    store.put("newest", json.dumps({"step": step, "shards": places}).encode())\n"""
SHARDS = """    for name, data in shards.items():\n        store.put(places[name], data)\n"""
CLEAN = """    for name in store.names():
        if name != "newest" and name not in places.values():
            store.delete(name)\n"""
IN_ORDER = (
    "Put all shards under new names, then the manifest, in one `put`: this is the commit. Then "
    "delete what it does not name."
)
commit = Exercise(
    right=commit_to,
    asks=calls_of,
    play=play_commits,
    cases=(("one rank", (1,)), ("four ranks", (4,))),
    draw=lambda random: ("other ranks", (random.randint(2, 9),)),
    slips=(
        (Edit(SHARDS + PUT, PUT + SHARDS), "A kill after the manifest finds no shards behind it: "
         "what must be in the store before the manifest names it?"),
        (Edit('f"{step}/{name}"', "name"), "The shards of the step before are overwritten one by "
         "one: give each step's objects names of their own."),
        (Edit('f"{step}/{name}"', 'f"{step % 2}/{name}"'), "After a kill, `newest` still names an "
         "older step. A later commit overwrites just these objects: how soon does a name return?"),
        (Edit(SHARDS + PUT + CLEAN, CLEAN + SHARDS + PUT), Edit(PUT + CLEAN, CLEAN + PUT), "The "
         "last good checkpoint is deleted while `newest` still names it."),
        (Edit(CLEAN, ""), "Old objects stay: the store grows with each commit."),
        (Edit(CLEAN, "    for name in store.names():\n        if name.startswith(f'{step - 1}/'):\n"
              "            store.delete(name)\n"), "After a kill, objects of a step that was "
         "never named stay for ever: delete whatever the new manifest does not name."),
        (Edit(PUT, '    if "newest" in store.names():\n        store.delete("newest")\n' + PUT),
         "Between the delete and the put, there is no newest checkpoint. `put` replaces an object "
         "whole."),
        (Edit('"step": step', '"step": step - 1'), "The manifest names another step."),
    ),
    say=lambda facet, found, right, ranks: f"{facet}: {found}; it should be {right}",
    about=dict.fromkeys(("after a kill", "another commit", "each commit"), IN_ORDER),
    last=IN_ORDER,
)  # fmt: skip
