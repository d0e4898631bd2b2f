"""Run a program in a network of its own: nobody else reaches what it listens on. Linux.

    python -m helpers.runtime.alone torchrun --standalone --nproc-per-node 2 train.py

The program has a loopback there, and no way out. It keeps this user and these files.
"""

import os
import sys

from helpers.runtime.local import network

USAGE = "usage: python -m helpers.runtime.alone PROGRAM [ARGUMENT]…"
CANNOT_RUN, NOT_FOUND = 126, 127  # exit codes, as a shell has them


def main(arguments: list[str]) -> int:
    """Become the program; returns an exit code only where that fails."""
    if not arguments or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    if sys.platform != "linux" or not network.possible():
        print(
            f"alone: this system lets user {os.geteuid()} make no network (a container, or a rule "
            f"of its administrator?), so {arguments[0]} was not started",
            file=sys.stderr,
        )
        return CANNOT_RUN
    network.make()
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        print(f"alone: {arguments[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
