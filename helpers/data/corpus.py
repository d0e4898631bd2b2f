"""Text to train on, as a `datasets.Dataset`: the text in every Python, or WikiText from the Hub.

You ask for a corpus by name, and never get another one in its place: a corpus that cannot be
reached raises an error, which explains what to do.
"""

import builtins
import hashlib
import itertools
import json
import math
import os
import platform
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.data.hub import load
from helpers.data.licences import LICENCES

if TYPE_CHECKING:  # importing it costs a second or more, and a rank that opens blocks needs none
    from datasets import Dataset

SPLITS = ("train", "validation")
WIKITEXT = ("Salesforce/wikitext", "wikitext-2-raw-v1")
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"  # of its repository on the Hub
# Tests, tables, drawings and paths of this machine: a person would not read them.
_LEFT_OUT = frozenset(
    ("test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "encodings", "pydoc_data")
)

Document = tuple[str, str]  # name, text


def corpus(name: str = "python", split: str = "train") -> "Dataset":
    """Load a text corpus. A row is a document: columns `name` and `text`.

    "python": needs no network. About 9 MB on Python 3.11, in a fixed order: the language reference
        (`pydoc_data.topics`); the docstrings of the built-in types, of `math` and of `itertools`;
        the source of the standard library, without tests and tables. The text differs between
        releases of Python; `provenance` names the release. A tenth of the documents is held out
        as "validation". A hash of a document's name decides, so each release holds out the same
        documents. Licence: PSF-2.0.
    "wikitext": needs a network, the first time. WikiText-2, raw (Merity et al., "Pointer Sentinel
        Mixture Models", 2016, section 4). A row is an article. `datasets.load_dataset(
        "Salesforce/wikitext", "wikitext-2-raw-v1")` loads it, always at the same revision, and
        keeps it. Licence: CC-BY-SA-3.0 or GFDL.

    The licence is also in `corpus(…).info.license`, with its owner.

    Raises:
        ValueError: no corpus or split has that name.
        CannotReach: WikiText is not on this machine, and the Hub cannot be reached.
        PermissionError: other users can write the files of WikiText on this machine.
    """
    import datasets

    found = list(documents(name, split))
    about = describe(name, split, (text for _, text in found))
    return datasets.Dataset.from_dict(
        {"name": [title for title, _ in found], "text": [text for _, text in found]},
        info=datasets.DatasetInfo(description=json.dumps(about), license=LICENCES[name]),
    )


def provenance(dataset: "Dataset") -> dict:
    """What the dataset was made from: name, split, sha256, documents, bytes, python.

    These describe the corpus as `corpus` returned it. If you select or change rows, they stay.

    Raises:
        ValueError: `corpus` did not make this dataset.
    """
    try:
        return json.loads(dataset.info.description)
    except json.JSONDecodeError:
        raise ValueError(
            "this dataset was not made by corpus(), so its provenance is not known"
        ) from None


def documents(name: str, split: str) -> Iterator[Document]:
    """The documents of a split, in their fixed order. Raises the errors of `corpus`."""
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: there are {', '.join(SPLITS)}")
    if name == "python":
        return (document for document in _python() if held_out(document[0]) == (split != "train"))
    if name == "wikitext":
        return articles(_wikitext(split))
    raise ValueError(f"no corpus {name!r}: there are python, wikitext")


def held_out(name: str) -> bool:
    """Whether the document of this name is for validation: 26 of 256, by the name alone."""
    return hashlib.sha256(name.encode()).digest()[0] < 26


def describe(name: str, split: str, texts: Iterable[str]) -> dict:
    """The provenance of these documents."""
    sha, count, size = hashlib.sha256(), 0, 0
    for text in texts:
        data = text.encode()
        sha.update(len(data).to_bytes(8, "little") + data)  # so that documents cannot run together
        count, size = count + 1, size + len(data)
    python = platform.python_version() if name == "python" else None
    return {
        "name": name,
        "split": split,
        "sha256": sha.hexdigest(),
        "documents": count,
        "bytes": size,
        "python": python,
    }


def fingerprint(name: str, split: str) -> str:
    """A digest that changes when the corpus does; it costs no reading of the corpus.

    It is made of this file, and for "python" of the release, and of the name, size and time of
    each file that would be read.
    """
    state = [name, split, hashlib.sha256(Path(__file__).read_bytes()).hexdigest()]
    if name == "python":
        state += [sys.version]
        for file, path in (*_sources(), ("topics", f"{_stdlib()}/pydoc_data/topics.py")):
            stat = os.stat(path)
            state += [f"{file} {stat.st_size} {stat.st_mtime_ns}"]
    return hashlib.sha256("\n".join(state).encode()).hexdigest()


def _python() -> Iterator[Document]:
    from pydoc_data.topics import topics

    reference = ((f"topics/{name}", text) for name, text in sorted(topics.items()))
    seen = set()  # some topics have two names
    for name, text in itertools.chain(reference, _docstrings(), _read()):
        if text.strip() and text not in seen:
            seen.add(text)
            yield name, text


def _docstrings() -> Iterator[Document]:
    """A document for each built-in type, with its methods, and for each module.

    Of `builtins` only the types count: notebooks put functions of their own there.
    """
    for name, value in sorted(vars(builtins).items()):
        if isinstance(value, type) and (value.__module__, value.__name__) == ("builtins", name):
            yield f"docstrings/{name}", _with_members(name, value)
    for module in (itertools, math):
        yield f"docstrings/{module.__name__}", _with_members(module.__name__, module)


def _with_members(name, owner) -> str:
    entries = [(name, owner)]
    entries += [(f"{name}.{k}", v) for k, v in sorted(vars(owner).items()) if k[0] != "_"]
    docs = [(entry, getattr(value, "__doc__", None)) for entry, value in entries]
    return "\n\n".join(f"{entry}\n\n{doc}" for entry, doc in docs if doc) + "\n"


def _stdlib() -> str:
    return sysconfig.get_path("stdlib")


def _sources() -> Iterator[tuple[str, str]]:
    """The files of the standard library that are read: (name, path), in order."""
    modules = {*sys.stdlib_module_names} - _LEFT_OUT
    yield from _below(_stdlib(), "source", lambda name: name.removesuffix(".py") in modules)


def _below(folder: str, name: str, chosen: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:  # much quicker than pathlib, and each rank calls this
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not chosen(entry.name):
                continue
            if entry.name.endswith(".py"):
                yield f"{name}/{entry.name}", entry.path
            elif entry.is_dir():
                yield from _below(entry.path, f"{name}/{entry.name}", _is_read)


def _is_read(name: str) -> bool:
    return name not in _LEFT_OUT


def _read() -> Iterator[Document]:
    for name, path in _sources():
        with tokenize.open(path) as file:  # in the encoding that it declares
            yield name, file.read()


def _wikitext(split: str) -> Iterable[str]:
    """The lines, empty ones too."""
    instead = 'corpus("python"), which is part of every Python'
    return load(*WIKITEXT, split, REVISION, instead=instead)["text"]


def articles(lines: Iterable[str]) -> Iterator[Document]:
    """Join the lines of a WikiText file into articles: (title, text).

    An article begins at a heading of the first level, ` = Title = `.
    """
    title, text = None, []
    for line in lines:
        heading = re.fullmatch(r" = ([^=].*[^=]|[^=]) = \n?", line)
        if heading:
            if title is not None:
                yield title, "".join(text)
            title, text = heading[1], []
        if title is not None or line.strip():
            title = title or ""
            text.append(line)
    if title is not None:
        yield title, "".join(text)
