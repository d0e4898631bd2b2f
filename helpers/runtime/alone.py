"""Run a program in a network of its own, so that no other user can connect to it. Linux.

    python -m helpers.runtime.alone torchrun --standalone --nproc-per-node 2 train.py

The program's network has a loopback and no way out. The program runs as the same user, on the
same files.
"""

import os
import sys

from helpers.runtime.local import network

USAGE = "usage: python -m helpers.runtime.alone PROGRAM [ARGUMENT]…"
CANNOT_RUN, NOT_FOUND = 126, 127  # exit codes, as shells define them


def main(arguments: list[str]) -> int:
    """Replace this process by the program; return an exit code only if that fails."""
    if not arguments or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    if sys.platform != "linux" or not network.possible():
        print(
            f"alone: {arguments[0]} was not started, because this system lets user "
            f"{os.geteuid()} make no network (a container, or a rule of its administrator?)",
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
