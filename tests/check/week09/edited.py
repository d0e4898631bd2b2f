"""A wrong answer: the solution with some of its words replaced."""

import inspect
import textwrap


def edited(solution, *edits):
    """Replace each (old, new) in the solution's source, and define the result.

    Raises:
        AssertionError: the old words are not in the source.
    """
    source = textwrap.dedent(inspect.getsource(solution))
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    names = dict(solution.__globals__)
    exec(compile(source, "<edited>", "exec"), names)
    return names[solution.__name__]
