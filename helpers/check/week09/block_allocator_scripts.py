"""Operations on a paged cache: the cases of the exercise `block_allocator`."""

SIZE = 2  # slots in a block
A, F, X = "append", "fork", "free"
SCRIPTS = {  # words: (blocks, operations)
    "one sequence grows and is freed": (3, [(A, "a")] * 5 + [(X, "a"), (A, "b")]),
    "two sequences grow": (4, [(A, "a"), (A, "b")] * 3 + [(X, "a"), (A, "b"), (A, "b"), (X, "b")]),
    "a fork, freed at once": (4, [(A, "a")] * 3 + [(F, "a", "f"), (X, "f"), (A, "a"), (X, "a")]),
    "a fork whose first owner is freed": (
        4, [(A, "a")] * 3 + [(F, "a", "f"), (X, "a"), (A, "f"), (A, "f"), (X, "f")]
    ),
    "a fork in the middle of a block, both grow": (
        6, [(A, "a")] * 3 + [(F, "a", "f"), (A, "f"), (A, "a"), (A, "f"), (X, "a"), (X, "f")]
    ),
    "a fork at the end of a block, both grow": (
        6, [(A, "a")] * 2 + [(F, "a", "f"), (A, "f"), (A, "a"), (A, "a"), (X, "f"), (X, "a")]
    ),
    "a fork of a fork": (
        6,
        [(A, "a"), (F, "a", "f"), (F, "f", "g"), (A, "f"), (A, "g"), (A, "a"), (A, "a")]
        + [(X, "f"), (X, "a"), (X, "g")],
    ),
    "all blocks in use": (2, [(A, "a")] * 4 + [(A, "a"), (A, "b"), (X, "a"), (A, "b")]),
    "no free block for a copy": (
        2, [(A, "a")] * 3 + [(F, "a", "f"), (A, "f"), (X, "a"), (A, "f")]
    ),
}  # fmt: skip


def drawn(random):
    """Operations in any order; blocks for all of them."""
    script, live = [(A, "a")], ["a"]
    for name in "bcdefghijklm":
        kind, one = random.choice((A, A, A, F, X)), random.choice(live)
        if kind == F:
            script.append((F, one, name))
            live.append(name)
        elif kind == X and len(live) > 1:
            script.append((X, one))
            live.remove(one)
        else:
            script.append((A, random.choice((one, name))))
            live = sorted({*live, script[-1][1]})
    return "operations in any order", (30, script)
