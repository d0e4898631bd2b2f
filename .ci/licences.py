"""Write .ci/licences.md: the licence of each library that `make setup` installs.

The libraries are those in .venv. Each library declares its licence in its metadata: as an SPDX
expression, else by the classifiers of the Python Package Index, else in words of its own.
"""

import re
import sys
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / ".ci" / "licences.md"
NOT_LISTED = ("training-at-scale", "pip")  # the course itself; and pip, which Python brings along
HEAD = """\
# The licences of the libraries

`make licences` writes this table from the libraries' own declarations. Versions are those of the
lock, on Linux. PyTorch's build for GPUs also installs NVIDIA's libraries, under NVIDIA's licences.

| library | version | licence |
|---|---|---|
"""
LONGEST = 60  # characters: some libraries put the whole text of the licence in place of its name


def licence(metadata: Message) -> str:
    """Return the licence that a library's metadata declares."""
    if expression := metadata.get("License-Expression"):
        return expression
    kinds = [c.split(" :: ") for c in metadata.get_all("Classifier", [])]
    named = [kind[-1] for kind in kinds if kind[0] == "License" and kind[1:] != ["OSI Approved"]]
    if named:
        return ", ".join(sorted(named))
    first = (metadata.get("License") or "").strip().split("\n")[0].strip()
    if first and first != "UNKNOWN":
        return first if len(first) <= LONGEST else first[: LONGEST - 1] + "…"
    return "not declared"


def table() -> str:
    """Return the table: a row for each library in this environment, by name."""
    rows = {}
    for found in distributions():
        name = found.metadata["Name"]
        if re.sub(r"[-_.]+", "-", name).lower() not in NOT_LISTED:
            version = found.version.split("+")[0]  # without the build of PyTorch
            row = (name, version, licence(found.metadata).replace("|", "/"))
            rows[name.lower()] = "| {} | {} | {} |\n".format(*row)
    return HEAD + "".join(rows[name] for name in sorted(rows))


def main() -> int:
    text = table()
    TABLE.write_text(text, "utf-8")
    undeclared = re.findall(r"^\| (\S+) .*\| not declared \|$", text, re.MULTILINE)
    print(f"{TABLE.relative_to(ROOT)}: {text.count('| ') // 3 - 1} libraries", end="")
    print(f"; look up by hand: {', '.join(undeclared)}" if undeclared else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
