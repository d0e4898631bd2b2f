"""Classes in front of an owner or an engine: they move its updates, or its activations."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial


class Moved:
    """Move an owner's updates: to a disk, into the backward, beside the next step, or to replicas.

    An owner has one such class in front of it, or none.
    """


class OnThread(Moved):
    """Update on a thread of its own, while the parameters are in use.

    Raises:
        ValueError: the optimizer updates the parameters themselves.
    """

    def __init__(self, model, parts, mesh, **seams):
        super().__init__(model, parts, mesh, **seams)
        if any(master is self.values[name] for name, master in self.masters.items()):
            raise ValueError(
                "updates beside a forward or backward need master copies, because these use the "
                "parameters: use a precision such as Mixed() or OnHost()"
            )
        self.thread = ThreadPoolExecutor(1)

    def close(self):
        super().close()
        self.thread.shutdown()


def in_front(mixin: type, owner: Callable, own: Mapping = {}) -> Callable:
    """Derive a class with the mixin in front of an owner (or an engine), or of a partial's owner.

    Args:
        own: attributes of the new class.

    Raises:
        ValueError: another class has moved the owner's updates already.
    """
    if isinstance(owner, partial):
        return partial(in_front(mixin, owner.func, own), *owner.args, **owner.keywords)
    if issubclass(mixin, Moved) and issubclass(owner, Moved):
        raise ValueError(f"{owner.__name__} moves its updates already: {mixin.__name__} cannot too")
    return type(f"{mixin.__name__}{owner.__name__}", (mixin, owner), dict(own))
