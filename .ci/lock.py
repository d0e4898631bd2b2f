"""Write the locks anew: what `make setup` and the tools need, by version and hash.

    lock.py [--upgrade]
    lock.py --covers

uv chooses the versions, for every system and every Python that the project accepts. First come the
pins of environment.yml, then the versions in the present lock, then the newest versions. With
--upgrade, uv ignores the present lock. The lock leaves out PyTorch and the libraries that only a
build of PyTorch brings, because students choose a build.

The late lock has the libraries that come after PyTorch, at the pins of environment.yml: DeepSpeed,
which has no files but its source, and Triton, which some builds of PyTorch bring and others do not.
The lock of tools has what `make mutants` and `make lock` install, in the newest versions.

The head of the lock names the systems and Pythons for which each library has a file without need
of a compiler. --covers checks the Python that runs it. The exit code is 0 if the lock covers that
Python; otherwise the program prints the reason and the code is 1. `make setup` runs this check
before .venv exists.
"""

import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "lock.txt"
LATE = ROOT / ".ci" / "lock-late.txt"
TOOLS = ROOT / ".ci" / "lock-tools.txt"
AFTER_TORCH = ("deepspeed", "triton")
# Of what Cosmic Ray requires, these are what mutants.py imports.
OF_TOOLS = ("uv", "cosmic-ray>=8.7", "attrs", "parso", "stevedore")
# From 4.25 on, jsonschema brings a grammar of addresses, and parses it at each import. That takes
# 1.7 s of every program that reads a notebook, such as JupyterLab and pytest.
HELD = ("jsonschema<4.25",)
# Libraries that a build of PyTorch for GPUs requires, and a build for the CPU does not.
BUILD = re.compile(r"torch|pytorch-triton.*|triton|nvidia-.*|cuda-.*")
# The systems of the course, in Python's name and uv's name. The lock's head leaves out a system if
# some library has no file for it.
SYSTEMS = {
    "linux-x86_64": "x86_64-unknown-linux-gnu",
    "linux-aarch64": "aarch64-unknown-linux-gnu",
    "darwin-arm64": "aarch64-apple-darwin",
    "darwin-x86_64": "x86_64-apple-darwin",
}
PYTHONS = range(11, 20)  # 3.11, …
ONLY_FILES = ("--only-binary", ":all:")
GLIBC = (2, 28)  # of uv's Linux
HEAD = """\
# Every library of the course but PyTorch, by version and hash. `make lock` writes this file from
# pyproject.toml and environment.yml; `make setup` installs it. It has files for:
"""
LATE_HEAD = """\
# What `make setup` installs after PyTorch, by version and hash: DeepSpeed from its source, and
# Triton if the build of PyTorch brought none. `make lock` writes this file from environment.yml.
"""

TOOLS_HEAD = """\
# What `make mutants` and `make lock` install into build/tools, by version and hash. `make lock`
# writes this file.
"""


def wanted(root: Path = ROOT) -> list[str]:
    """Return the requirements of the project, and of its build."""
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    project = settings["project"]
    build = [*settings["build-system"]["requires"], "editables"]  # hatchling needs it for `pip -e`
    every = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [*build, *(line for line in every if name_of(line) not in AFTER_TORCH)]


def name_of(requirement: str) -> str:
    """Return the library's name from a line such as `triton>=3.4; sys_platform == 'linux'`."""
    return re.match(r"[\w.-]*", requirement)[0]


def pins(root: Path = ROOT) -> list[str]:
    """Return the pins of environment.yml."""
    text = (root / "environment.yml").read_text("utf-8")
    return re.findall(r"^ {6}- (.*==.*)$", text, re.MULTILINE)


def without_build(text: str) -> str:
    """Return a lock without the libraries that belong to a build of PyTorch."""
    blocks = re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE)
    return "".join(b for b in blocks if not BUILD.fullmatch(name_of(b)))


def compile_lock(folder: Path, upgrade: list[str]) -> str:
    """Return the lock that uv makes in this folder."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    oldest = settings["project"]["requires-python"].removeprefix(">=")
    (folder / "wanted").write_text("\n".join(wanted()))
    (folder / "pins").write_text("\n".join([*pins(), *HELD]))
    if LOCK.exists():
        (folder / "lock").write_text(LOCK.read_text("utf-8"))
    uv(folder, "--universal", "--python-version", oldest, "--generate-hashes", "--no-header",
       "--no-annotate", "--constraints", "pins", "wanted", "-o", "lock", *upgrade)  # fmt: skip
    return without_build((folder / "lock").read_text())


def compile_alone(folder: Path, name: str, wanted: list[str], files=()) -> str:
    """Return these requirements with versions and hashes, and without what they require."""
    (folder / f"{name}-pins").write_text("\n".join(wanted))
    uv(folder, "--universal", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate",
       f"{name}-pins", "-o", name, files=files)  # fmt: skip
    return (folder / name).read_text()


def supported(folder: Path) -> str:
    """Return the lines of the head: the Pythons for which each system has all files."""
    lines = []
    for name, system in SYSTEMS.items():
        found = []
        for minor in PYTHONS:
            version = f"3.{minor}"
            try:
                uv(folder, "--no-deps", "--python-platform", system, "--python-version", version,
                   "lock", "-o", "one", quiet=True)  # fmt: skip
                found.append(version)
            except subprocess.CalledProcessError:
                break  # a newer Python has no more files
        if found:
            lines.append(f"#   {name}: {' '.join(found)}\n")
    return "".join(lines)


def uv(folder: Path, *arguments: str, quiet: bool = False, files=ONLY_FILES):
    """Run `uv pip compile`, by default only with files that need no compiler."""
    command = ["uv", "pip", "compile", "--quiet", *files, *arguments]
    errors = subprocess.DEVNULL if quiet else None
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, check=True)


def uncovered(text: str) -> str:
    """Return why the lock has no files for this Python; empty if it has them."""
    system = f"{sys.platform}-{platform.machine()}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    known = dict(re.findall(r"^#   ([\w-]+): ([\d. ]+)$", text, re.MULTILINE))
    if version not in known.get(system, "").split():
        return f"Python {version} on {system}"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"this build of Python: {platform.python_implementation()} {sys.abiflags}".strip()
    if sys.platform == "linux":
        library, number = platform.libc_ver()
        if library != "glibc" or tuple(map(int, number.split(".")[:2])) < GLIBC:
            return f"this system's C library: {library or 'not glibc'} {number}".strip()
    return ""


def main(arguments: list[str]) -> int:
    if arguments == ["--covers"]:
        if why := uncovered(LOCK.read_text("utf-8")):
            print(f"the lock has no files for {why}")
        return int(bool(why))
    if arguments not in ([], ["--upgrade"]):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            found = compile_lock(folder, arguments)
            late = [pin for pin in pins() if name_of(pin) in AFTER_TORCH]
            late = compile_alone(folder, "late", late)
            tools = compile_alone(folder, "tools", OF_TOOLS, files=ONLY_FILES)
        except subprocess.CalledProcessError as error:
            return error.returncode
        (folder / "lock").write_text(found)
        systems = supported(folder)
    LOCK.write_text(HEAD + systems + found, "utf-8")
    LATE.write_text(LATE_HEAD + late, "utf-8")
    TOOLS.write_text(TOOLS_HEAD + tools, "utf-8")
    count = len(re.findall(r"^[a-z]", found, re.MULTILINE))
    print(f"{LOCK.relative_to(ROOT)}: {count} libraries, for\n{systems}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
