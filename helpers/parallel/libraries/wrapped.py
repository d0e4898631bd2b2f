"""Check what a library has made of a model: some return the plain model, and say nothing."""


class WrongWrapper(TypeError):
    """A library wrapped a model in another way than it was asked to."""


def expect(made, kind: type, maker: str):
    """Return `made` if it is a `kind`, and raise otherwise.

    Args:
        maker: the call that made it, for the message.

    Raises:
        WrongWrapper: it is something else. Training would run, but not as it was asked to.
    """
    if not isinstance(made, kind):
        raise WrongWrapper(
            f"{maker} returned a {type(made).__qualname__}, not a {kind.__qualname__}: the model "
            "would train, but not sharded as you asked. Check the library's settings and device"
        )
    return made


def expect_ranks(found: int, ranks: int, maker: str):
    """Raise if a library counts other ranks than there are.

    Raises:
        WrongWrapper: it would give every rank the same data, or weight the targets wrongly.
    """
    if found != ranks:
        raise WrongWrapper(
            f"{maker} sees {found} rank{'s' * (found != 1)}, and there are {ranks}: every rank "
            "would get the same sequences. Check the library's settings and device"
        )
