"""The lock: what it names, for whom, and what `make setup` does with it."""

import itertools
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ci
from tests.test_environment import declared, pins

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / ".ci" / "lock.txt").read_text(encoding="utf-8")
LATE = (ROOT / ".ci" / "lock-late.txt").read_text(encoding="utf-8")
TOOLS = (ROOT / ".ci" / "lock-tools.txt").read_text(encoding="utf-8")
AFTER_TORCH = ("deepspeed", "triton")
SYSTEM = {"os_name": "posix", "platform_python_implementation": "CPython",
          "implementation_name": "cpython", "extra": ""}  # fmt: skip
COVERED = re.findall(r"^#   (\w+)-(\w+): ([\d. ]+)$", TEXT, re.MULTILINE)
PLACES = [
    SYSTEM
    | {"sys_platform": system, "platform_system": system.title(), "platform_machine": machine}
    | {"python_version": python, "python_full_version": f"{python}.9"}
    for system, machine, pythons in COVERED
    for python in pythons.split()
]
OF_A_BUILD = re.compile(r"torch|triton|pytorch-triton.*|nvidia-.*|cuda-.*")


@pytest.fixture(scope="module")
def lock():
    return ci("lock")


def entries(lock=TEXT):
    """(requirement, its hashes) of each library in a lock."""
    text = re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        requirement, *hashes = line.split(" --hash=")
        yield Requirement(requirement), [found.strip() for found in hashes]


def locked(place) -> dict[str, Version]:
    """The versions that the lock gives a system."""
    found = {}
    for requirement, _ in entries():
        if requirement.marker is None or requirement.marker.evaluate(place):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name}: two versions for {place}"
            [exact] = requirement.specifier
            found[name] = Version(exact.version)
    return found


def test_each_library_has_one_version_and_hashes():
    found, late, tools = list(entries()), list(entries(LATE)), list(entries(TOOLS))
    assert len(found) > 150
    assert [requirement.name for requirement, _ in late] == list(AFTER_TORCH)
    assert {"uv", "cosmic-ray"} < {requirement.name for requirement, _ in tools}
    for requirement, hashes in found + late + tools:
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
        assert requirement.url is None
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), requirement


def test_no_place_is_named():
    """No registry, no mirror, no folder: students have their own, and hashes suffice."""
    assert not re.search(r"https?:|file:|//|--(?!hash=)|@|localhost", TEXT + LATE + TOOLS)


@pytest.mark.parametrize(
    "place", PLACES, ids=lambda p: f"{p['sys_platform']}-{p['python_version']}"
)
def test_it_keeps_the_pins_and_lies_in_the_ranges(place):
    found = locked(place)
    here = [
        r for r in declared() if in_the_lock(r.name) and (not r.marker or r.marker.evaluate(place))
    ]
    names = {canonicalize_name(r.name) for r in here}
    assert {name: found.get(name) for name in names} == {name: pins()[name] for name in names}
    outside = [str(r) for r in here if found[canonicalize_name(r.name)] not in r.specifier]
    assert outside == []


def in_the_lock(name: str) -> bool:
    return not OF_A_BUILD.fullmatch(name) and name not in AFTER_TORCH


def test_what_comes_after_torch_is_at_its_pin():
    """Triton's pin is the version that PyTorch's own build requires, so that both can be there."""
    assert {r.name: Version(next(iter(r.specifier)).version) for r, _ in entries(LATE)} == {
        name: pins()[name] for name in AFTER_TORCH
    }
    assert not {r.name for r, _ in entries()} & set(AFTER_TORCH)
    for need in map(Requirement, distribution("torch").requires or []):
        if need.name == "triton" and (not need.marker or need.marker.evaluate()):
            assert pins()["triton"] in need.specifier


def test_the_systems_of_students_are_covered_and_the_build_of_torch_is_theirs():
    """The version that conda is told to give, on Linux and on a Mac; else a build for the CPU would
    bring NVIDIA's libraries."""
    covered = {(system, machine): pythons.split() for system, machine, pythons in COVERED}
    for place in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")):
        assert "3.11" in covered[place]
    assert [r.name for r, _ in entries() if OF_A_BUILD.fullmatch(r.name)] == []
    # JupyterLab and pytest would parse a grammar at each import, for 1.7 s
    assert "rfc3987-syntax" not in {canonicalize_name(r.name) for r, _ in entries()}


def test_what_the_libraries_require_is_in_it():
    """Followed through the metadata of what is installed here, from pyproject.toml on."""
    here = locked(place_of_this_python())
    todo, seen = [*declared(), *map(Requirement, ("hatchling", "editables"))], set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, *requirement.extras) in seen or OF_A_BUILD.fullmatch(name):
            continue
        seen.add((name, *requirement.extras))
        if name not in AFTER_TORCH:
            assert name in here, f"{requirement} is required, and not in the lock"
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:  # an environment that `make` did not make
            continue
        for need in map(Requirement, needs):
            extras = requirement.extras or {""}
            if not need.marker or any(need.marker.evaluate({"extra": one}) for one in extras):
                todo.append(need)
    assert len(seen) > 100


def place_of_this_python():
    found = [p for p in PLACES if p["sys_platform"] == sys.platform
             and p["python_version"] == f"3.{sys.version_info.minor}"]  # fmt: skip
    if not found:
        pytest.skip("the lock has no files for this Python")
    return found[0] | {"python_full_version": platform.python_version()}


def test_make_setup_installed_what_it_names():
    """But for what another build of PyTorch requires in other versions."""
    chosen = (Path(sys.prefix) / "torch").exists()
    if not (Path(sys.prefix) / "locked").exists() or chosen:
        pytest.skip("not installed from the lock alone")
    found = locked(place_of_this_python())
    assert {name: Version(distribution(name).version) for name in found} == found


LOCK = """\
# It has files for:
#   linux-x86_64: 3.11 3.12
#   darwin-arm64: 3.12
left==1
"""


HERE = {"system": "linux", "machine": "x86_64", "minor": 11, "libc": ("glibc", "2.36")}
HERE |= {"no_gil": 0, "implementation": "CPython"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"minor": 13}, "Python 3.13 on linux-x86_64"),
        ({"minor": 1}, "Python 3.1 on linux-x86_64"),  # and not as the start of 3.11
        ({"machine": "riscv64"}, "Python 3.11 on linux-riscv64"),
        ({"system": "darwin", "machine": "arm64", "minor": 12, "libc": ("", "")}, ""),
        ({"system": "darwin", "machine": "arm64"}, "Python 3.11 on darwin-arm64"),
        ({"libc": ("glibc", "2.28")}, ""),
        ({"libc": ("glibc", "3.1")}, ""),
        ({"libc": ("glibc", "2.27")}, "this system's C library: glibc 2.27"),
        ({"libc": ("glibc", "2.4")}, "this system's C library: glibc 2.4"),
        ({"libc": ("", "")}, "this system's C library: not glibc"),
        ({"no_gil": 1}, f"this build of Python: CPython {sys.abiflags}".strip()),
        ({"implementation": "PyPy"}, f"this build of Python: PyPy {sys.abiflags}".strip()),
    ],
)
def test_where_it_has_files(lock, monkeypatch, changed, why):
    given = HERE | changed
    monkeypatch.setattr(lock.sys, "platform", given["system"])
    monkeypatch.setattr(lock.platform, "machine", lambda: given["machine"])
    monkeypatch.setattr(lock.platform, "libc_ver", lambda: given["libc"])
    version = SimpleNamespace(major=3, minor=given["minor"])
    monkeypatch.setattr(lock.sys, "version_info", version)
    monkeypatch.setattr(lock.sysconfig, "get_config_var", {"Py_GIL_DISABLED": given["no_gil"]}.get)
    name = given["implementation"]
    monkeypatch.setattr(lock.platform, "python_implementation", lambda: name)
    implementation = SimpleNamespace(name=name.lower(), cache_tag=sys.implementation.cache_tag)
    monkeypatch.setattr(lock.sys, "implementation", implementation)
    found = lock.uncovered(LOCK)
    monkeypatch.undo()  # pytest itself asks for the version
    assert found == why


def test_what_is_wanted_has_no_build_and_none_that_comes_after_it(lock):
    names = ("a", "cuda-bindings", "nvidia-nccl-cu13", "torch", "torchmetrics", "triton", "z")
    text = "".join(f"{name}==1 \\\n    --hash=sha256:0\n" for name in names)
    left = re.findall(r"^[a-z]+", lock.without_build(text), re.MULTILINE)
    assert left == ["a", "torchmetrics", "z"]
    names = {lock.name_of(line) for line in lock.wanted()}
    assert {"hatchling", "editables", "torch", "numpy"} <= names
    assert not names & set(AFTER_TORCH)


def test_a_system_s_pythons_end_where_a_library_has_no_file(lock, monkeypatch, tmp_path):
    def uv(folder, *arguments, quiet):
        given = dict(itertools.pairwise(arguments))
        place = given["--python-platform"], given["--python-version"]
        if place[1] == "3.13" or place == (lock.SYSTEMS["darwin-x86_64"], "3.11"):
            raise subprocess.CalledProcessError(1, "uv")

    monkeypatch.setattr(lock, "uv", uv)
    systems = list(lock.SYSTEMS)[:3]
    assert lock.supported(tmp_path) == "".join(f"#   {name}: 3.11 3.12\n" for name in systems)


@pytest.mark.parametrize("why", ["", "Python 3.99 on a toaster"])
def test_covers(lock, monkeypatch, tmp_path, capsys, why):
    monkeypatch.setattr(lock, "LOCK", tmp_path / "lock.txt")
    (tmp_path / "lock.txt").write_text(LOCK)
    monkeypatch.setattr(lock, "uncovered", {LOCK: why}.get)
    assert lock.main(["--covers"]) == (1 if why else 0)
    assert capsys.readouterr().out == (f"the lock has no files for {why}\n" if why else "")
    with pytest.raises(SystemExit, match="uv chooses the versions"):
        lock.main(["--cover"])


UV = """\
#!/bin/sh
echo "$@" >> "$SEEN/asked"
case "$*" in
*" -o lock"*)
    cp wanted pins "$SEEN"
    if test -e lock; then cp lock "$SEEN"; fi
    for name in numpy torch zlib; do printf '%s==1 \\\\\n    --hash=sha256:0\n' $name; done >lock ;;
*" -o late"*) cp late-pins "$SEEN"; echo deepspeed==1 >late ;;
*" -o tools"*) cp tools-pins "$SEEN"; echo uv==1 >tools ;;
*) echo "uv speaks" >&2; cp lock "$SEEN/final"; case "$*" in *3.13*) exit 1 ;; esac ;;
esac
echo "uv prints the lock"
"""


@pytest.mark.parametrize("options", [[], ["--upgrade"]])
def test_what_uv_is_asked_and_what_is_written(lock, monkeypatch, tmp_path, capfd, options):
    """With a program in the place of uv, which keeps what it is given."""
    seen = tmp_path / "seen"
    seen.mkdir()
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    for name in ("LOCK", "LATE", "TOOLS"):
        monkeypatch.setattr(lock, name, tmp_path / f"{name.lower()}.txt")
    if options:
        (tmp_path / "lock.txt").write_text(LOCK)
    assert lock.main(options) == 0
    rows = "".join(f"#   {name}: 3.11 3.12\n" for name in lock.SYSTEMS)
    hashed = "numpy==1 \\\n    --hash=sha256:0\nzlib==1 \\\n    --hash=sha256:0\n"
    assert (tmp_path / "lock.txt").read_text() == lock.HEAD + rows + hashed
    assert (tmp_path / "late.txt").read_text() == lock.LATE_HEAD + "deepspeed==1\n"
    assert (tmp_path / "tools.txt").read_text() == lock.TOOLS_HEAD + "uv==1\n"
    assert (seen / "tools-pins").read_text().split("\n") == list(lock.OF_TOOLS)
    assert capfd.readouterr() == (f"lock.txt: 2 libraries, for\n{rows}", "")
    # uv reads the present lock, and then its own without the build of PyTorch
    assert (seen / "lock").exists() == bool(options)
    assert (seen / "final").read_text() == hashed
    assert (seen / "wanted").read_text().split("\n") == lock.wanted()
    constraints = (seen / "pins").read_text().split("\n")
    assert constraints == [*lock.pins(), "jsonschema<4.25"]
    late = (seen / "late-pins").read_text().split("\n")
    assert {Requirement(line).name for line in late} == set(AFTER_TORCH)
    first, second, third, *each = (seen / "asked").read_text().splitlines()
    common = ["--universal", "--generate-hashes", "--no-header", "--no-annotate"]
    locked = ["--only-binary", ":all:", "--constraints", "pins", "wanted", "-o", "lock"]
    for line, given in (
        (first, ["--python-version", "3.11", *locked, *options]),
        (second, ["--no-deps", "late-pins", "-o", "late"]),  # from the source, too
        (third, ["--only-binary", ":all:", "--no-deps", "tools-pins", "-o", "tools"]),
    ):
        assert sorted(line.split()) == sorted(["pip", "compile", "--quiet", *common, *given])
    assert len(each) == 4 * 3
    assert all("--only-binary :all: --no-deps --python-platform " in line for line in each)


def test_when_uv_fails_the_lock_stays(lock, monkeypatch, tmp_path):
    def uv(*_, **__):
        raise subprocess.CalledProcessError(3, "uv")

    monkeypatch.setattr(lock, "uv", uv)
    monkeypatch.setattr(lock, "LOCK", tmp_path / "lock.txt")
    (tmp_path / "lock.txt").write_text(LOCK)
    assert lock.main([]) == 3
    assert (tmp_path / "lock.txt").read_text() == LOCK


def test_what_is_installed_without_hashes():
    """PyTorch, in the build that a student chooses; all libraries, where the lock has no files."""
    lines = []
    for name in ("Makefile", ".ci/install", ".ci/run"):
        lines += (ROOT / name).read_text(encoding="utf-8").splitlines()
    calls = [
        line.strip()
        for line in lines
        if re.search(r'pip install |"\$\{install\[@\]\}"|^ +get ', line)
    ]
    calls = [line for line in calls if '"$@"' not in line]  # passes on the arguments of `get`
    assert [line for line in calls if "--require-hashes" not in line and " -e ." not in line] == [
        "get $(torch)",
        'torch | xargs "${install[@]}" | report',
        '"${install[@]}" -r .venv/requirements.txt | report',
    ]
    assert len([line for line in calls if "--require-hashes" in line]) == 5


PIP = """\
#!/bin/bash
if test "$1" = .ci/lock.py; then echo -n "$UNCOVERED"; test -z "$UNCOVERED"; exit; fi
if test "$1" = -c; then [[ " $HAS " == *" $3 "* ]]; exit; fi
if test "$2" = compileall; then exit 1; fi
if [[ "$2" == helpers.* ]]; then echo "$2" >> compiled; exit; fi
if test "$3" = config; then echo "global.find-links='/a /b'"; exit; fi
if [[ "$*" == *build/uv* ]]; then exit $NO_UV; fi
echo "$@" >> asked
if [[ "$*" == *--require-hashes* ]]; then exit $LOCKED_FAILS; fi
"""

FAST = """\
#!/bin/bash
echo "uv $UV_FIND_LINKS ${@:5}" >> asked
echo "Installed 9 packages" >&2
exit $UV_FAILS
"""


@pytest.fixture
def setup(tmp_path):
    """Runs .ci/install with a pip, and a uv, that only note what they are asked for."""
    locks = (".ci/lock.txt", ".ci/lock-late.txt", ".ci/lock-tools.txt")
    for name in (".ci/install", *locks, "environment.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP)
    python.chmod(0o755)

    def run(lock="", uncovered="", fails=0, has="deepspeed", cxx="true", uv=None):
        environ = {"LOCK": lock, "UNCOVERED": uncovered, "LOCKED_FAILS": str(fails)}
        environ |= {"HAS": has, "CXX": cxx, "NO_UV": str(int(uv is None)), "UV_FAILS": str(uv)}
        if uv is not None:
            place = tmp_path / "build" / "uv" / "bin" / "uv"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(FAST)
            place.chmod(0o755)
        (tmp_path / "asked").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", tmp_path / ".ci/install"],
            env=os.environ | environ,
            capture_output=True,
            text=True,
        )
        asked = (tmp_path / "asked").read_text().splitlines()
        return done, [line.removeprefix("-m pip install ") for line in asked]

    return run, tmp_path


LOCKED = "--require-hashes --no-deps --only-binary :all: -r .ci/lock.txt"
AFTER = "--require-hashes --no-deps --no-build-isolation -r .venv/late.txt"


def test_the_lock_is_installed_by_hash_and_then_torch(setup):
    run, folder = setup
    done, asked = run()
    assert done.returncode == 0, done.stderr
    course = "--no-deps --no-build-isolation -e ."
    inorder = [LOCKED, f"torch=={pins()['torch']}", AFTER, course]
    assert asked == [f"--no-compile {line}" for line in inorder]
    assert (folder / ".venv/locked").exists()
    (folder / ".venv/torch").write_text("torch==2.13.0 --index-url https://example.org/cpu\n")
    inorder[1] = "torch==2.13.0 --index-url https://example.org/cpu"
    done, asked = run(uv=0)  # where pip is set to look, and no pip beside it
    assert asked == [f"uv /a,/b {line}" for line in inorder]
    assert done.stdout.count("Installed 9 packages") == 4
    asked = run(uv=2)[1]
    assert asked[:2] == [f"uv /a,/b {LOCKED}", f"--no-compile {LOCKED}"]


@pytest.mark.parametrize(
    ("has", "expected"), [("", ["deepspeed", "triton"]), ("triton deepspeed", ["deepspeed"])]
)
def test_triton_is_installed_only_if_torch_brought_none(setup, has, expected):
    run, folder = setup
    run(has=has)
    written = list(entries((folder / ".venv/late.txt").read_text()))
    assert sorted(requirement.name for requirement, _ in written) == expected
    assert all(hashes for _, hashes in written)


def test_deepspeed_is_compiled_meanwhile_and_no_compiler_is_no_failure(setup):
    run, folder = setup
    run(has="")  # as on a Mac
    done, _ = run(has="deepspeed", cxx="no-such-compiler")
    assert done.returncode == 0
    assert "but for DeepSpeed" in done.stderr
    end = time.monotonic() + 60
    while not (folder / "compiled").exists() or not (folder / "compiled").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    [module] = (folder / "compiled").read_text().split()
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize("how", [{"uncovered": "no files for Python 3.99"}, {"lock": "no"}])
def test_without_files_the_pins_are_installed_and_it_says_so(setup, how):
    run, folder = setup
    (folder / ".venv/locked").write_text("by an earlier call")
    done, asked = run(**how)
    assert not (folder / ".venv/locked").exists()
    assert done.returncode == 0, done.stderr
    assert asked == [f"torch=={pins()['torch']}", "-r .venv/requirements.txt"]
    written = (folder / ".venv/requirements.txt").read_text().splitlines()
    assert written[0] == "-e .[dev]"
    assert len(written) == len(pins())  # all but that of PyTorch, and the course
    assert "installing by the pins of environment.yml, with no hash checked: " in done.stdout
    assert how.get("uncovered", "LOCK=no") in done.stdout


def test_a_file_that_is_not_the_locked_one_ends_it(setup):
    """It must not fall back on the pins: they would take that file."""
    run, _ = setup
    done, asked = run(fails=1)
    assert done.returncode != 0
    assert asked == [f"--no-compile {LOCKED}"]
    assert "make setup LOCK=no" in done.stderr
