"""pyproject.toml (ranges) and environment.yml (pins) name the same packages and agree."""

import json
import os
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.test_floors import imports

ROOT = Path(__file__).resolve().parent.parent


def declared():
    """List the requirements of pyproject.toml, in its order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"].values()
    return [Requirement(r) for r in sum(groups, project["dependencies"])]


def pip_section():
    """List the lines of environment.yml for pip, by the pattern of the Makefile."""
    return re.findall(r"^ {6}- (.*)$", (ROOT / "environment.yml").read_text(), re.MULTILINE)


def pins():
    """Return {name: pinned version}; anything else than an exact pin is an error."""
    project, *pinned = pip_section()
    assert project == "-e .[dev]"
    pairs = [
        re.fullmatch(r"([\w-]+)==([\w.]+)(; sys_platform == 'linux')?", line) for line in pinned
    ]
    assert all(pairs), "environment.yml: every line after `-e .[dev]` must be name==version"
    return {canonicalize_name(pair[1]): Version(pair[2]) for pair in pairs}


def test_each_dependency_is_declared_once():
    names = [canonicalize_name(requirement.name) for requirement in declared()]
    assert sorted(names) == sorted(set(names))
    assert len(pins()) == len(pip_section()) - 1


def test_both_files_name_the_same_packages_and_systems_and_the_pins_lie_in_the_ranges():
    pinned, ranges = pins(), {canonicalize_name(r.name): r for r in declared()}
    assert {
        name: r for name, r in ranges.items() if {s.operator for s in r.specifier} != {">="}
    } == {}
    assert set(ranges) == set(pinned)
    assert {name: r for name, r in ranges.items() if pinned[name] not in r.specifier} == {}
    here = {canonicalize_name(r.name): r.marker for r in map(Requirement, pip_section()[1:])}
    assert {name: r.marker for name, r in ranges.items()} == here
    assert str(here["deepspeed"]) == 'sys_platform == "linux"'


def test_conda_gives_a_python_that_the_project_accepts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    conda = re.search(r"^  - python=([\d.]+)$", (ROOT / "environment.yml").read_text(), re.M)
    assert Requirement(f"python{project['requires-python']}").specifier.contains(conda[1])


def test_installed_versions_are_the_pins():
    """`make setup` installs the pins of environment.yml; another environment may differ."""
    other, markers = {}, {canonicalize_name(r.name): r.marker for r in declared()}
    for name, pin in pins().items():
        if markers[name] and not markers[name].evaluate():
            continue
        try:
            found = Version(version(name))
        except PackageNotFoundError:
            found = None
        # A build such as 2.13.0+cpu is the pinned release.
        if found is None or found.public != pin.public:
            other[name] = f"{found}, not {pin}"
    made_by_make = (Path(sys.prefix) / "installed").exists()
    if (Path(sys.prefix) / "torch").exists() and "torch" in other and len(other) == 1:
        pytest.skip(f"this environment has another build of torch: {other['torch']}")
    if other and not made_by_make:
        pytest.skip(f"`make setup` did not make this environment: {other}")
    assert other == {}


def imported(*folders):
    """Return {module: a file that imports it}, by the first part of its name."""
    found = {}
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            found |= {name.split(".")[0]: file for _, name in imports(file, ROOT / folder)}
    ours = {"helpers", "tests", "figures"}
    ours |= {file.stem for file in ROOT.glob("*/*.py")}
    others = found.keys() - sys.stdlib_module_names - ours
    # tests write modules with names of this kind
    return {name: found[name] for name in others if not name.startswith("students_")}


def test_what_is_imported_is_declared():
    names = {canonicalize_name(requirement.name) for requirement in declared()}
    provides = packages_distributions()
    found = imported("helpers", "tests", "figures", "notebooks")
    assert {"torch", "datasets", "mpi4py", "huggingface_hub"} <= set(found)
    undeclared = {
        module: file.name
        for module, file in found.items()
        if not names & {canonicalize_name(name) for name in provides.get(module, ())}
    }
    # who submits to SageMaker installs its SDK, and who measures beside torchft this
    assert undeclared == {"sagemaker": "sagemaker_submit.py", "torchft": "survivors.py"}


def test_what_opens_the_course_in_a_browser_installs_the_same_pin():
    """Codespaces and other devcontainers, and Binder: each runs a target of the Makefile."""
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    binder = ROOT / ".binder" / "postBuild"
    assert os.access(binder, os.X_OK)
    for command in (container["updateContentCommand"], binder.read_text()):
        target, pinned = re.search(r"make (\w+) TORCH=['\"]torch==([\d.]+) ", command).groups()
        assert Version(pinned) == pins()["torch"]
        assert re.search(rf"^{target}: setup", (ROOT / "Makefile").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    accepted = Requirement(f"python{project['requires-python']}").specifier
    runtime = (ROOT / ".binder" / "runtime.txt").read_text()
    assert accepted.contains(container["image"].removeprefix("python:"))
    assert accepted.contains(runtime.strip().removeprefix("python-"))
