"""Pack documents into one stream of tokens on disk, and cut it into blocks of equal length.

The stream is a file, mapped into memory: ranks of one machine share it, and a large file opens as
quickly as a small one. There are n blocks of T tokens each; B of them make a batch.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from helpers.data.batch import Batch
from helpers.data.cache import kept
from helpers.data.corpus import describe, documents, fingerprint, provenance
from helpers.data.licences import identifier
from helpers.data.tokens import BYTES, texts_of
from helpers.runtime.private import check_own

if TYPE_CHECKING:
    from datasets import Dataset


class Blocks:
    """The blocks of a stream. Block i is tokens i·T … i·T + T: T tokens, and their T targets.

    So every token but the first is a target exactly once; at most T tokens at the end are unused.
    A block may hold the end of one document and the beginning of the next. Blocks travel to ranks
    as a path, and each rank opens the files itself.

    Attributes:
        length: T.
        path: a folder with the stream, `tokens.bin`, and its description, `about.json`.
        about: name, split, sha256 and bytes of the text, python, tokenizer, vocab, tokens, dtype.

    Raises:
        ValueError: the stream is too short for one block.
        PermissionError: another user owns the files, or can write them.
        OSError: there is no stream at that path, or it is too short for its description.
    """

    def __init__(self, path: Path | str, length: int):
        self.path, self.length = Path(path), length
        check_own([self.path, self.path / "about.json", self.path / "tokens.bin"])
        self.about = json.loads((self.path / "about.json").read_text())
        count = self.about["tokens"]
        self._blocks = (count - 1) // length if length > 0 else 0
        if self._blocks < 1:
            raise ValueError(f"{count} tokens make no block of {length} and its targets")
        file, dtype = self.path / "tokens.bin", np.dtype(self.about["dtype"])
        if file.stat().st_size != count * dtype.itemsize:
            raise OSError(
                f"{file} has {file.stat().st_size} bytes, and should have "
                f"{count * dtype.itemsize}: remove its folder, and pack the corpus again"
            )
        self._stream = np.memmap(file, dtype=dtype, mode="r")

    def __reduce__(self):
        return type(self), (self.path, self.length)

    def __len__(self) -> int:
        return self._blocks

    def __repr__(self) -> str:
        licence = identifier(self.about["name"])
        return (
            f"{len(self)} blocks of {self.length} tokens: {self.about['name']}, "
            f"{self.about['split']}, vocab {self.about['vocab']}"
            f"{f', licence {licence}' if licence else ''}"
        )

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of one block: two of (T,) int64."""
        batch = self.batch([index])
        return batch.tokens[0], batch.targets[0]

    def batch(self, indices: torch.Tensor | Sequence[int]) -> Batch:
        """The blocks of these indices, in that order: B of them, or none for a rank without data.

        Raises:
            IndexError: an index is not one of 0, …, n-1.
        """
        first = np.asarray(indices, dtype=np.int64).reshape(-1)
        wrong = first[(first < 0) | (first >= len(self))]
        if len(wrong):
            raise IndexError(f"no block {int(wrong[0])}: there are {len(self)}, from 0")
        places = first[:, None] * self.length + np.arange(self.length + 1)
        rows = torch.from_numpy(self._stream[places].astype(np.int64))  # (B, T+1)
        return Batch(tokens=rows[:, :-1].contiguous(), targets=rows[:, 1:].contiguous())


def pack(source: "str | Dataset | Iterable[str]", length: int, split: str = "train") -> Blocks:
    """Tokenize a corpus once for this user, keep the tokens, and return them as blocks.

    A corpus that you name opens in milliseconds from the second call on, so ranks can call this
    themselves. A dataset is read through at each call, because it may have changed.

    Args:
        source: the name of a corpus; or a dataset with a column `text`; or texts.
        length: T, tokens in a block. Every length shares the same stream on disk.
        split: of the named corpus.

    Raises:
        ValueError: no corpus or split has that name; there are too few tokens for a block; or a
            text holds a NUL character.
        CannotReach: the corpus is not on this machine, and the Hub cannot be reached.
        PermissionError: other users can write the kept tokens.
        OSError: the tokens cannot be kept: a full disk, say.
    """
    if isinstance(source, str):
        found = []

        def read(folder):
            found.extend(text for _, text in documents(source, split))
            _write_json(folder, describe(source, split, found))

        about = _read_json(kept(f"corpus-{fingerprint(source, split)[:32]}", read))
        texts = found or (text for _, text in documents(source, split))
    else:
        texts = list(texts_of(source))
        about = _described(source, texts)

    if not about["documents"]:
        raise ValueError("there are no documents to pack")

    def tokenize(folder):
        count = 0
        with open(folder / "tokens.bin", "wb") as file:
            for tokens in BYTES.stream(texts):
                tokens.tofile(file)
                count += len(tokens)
        more = {"tokenizer": "bytes", "vocab": BYTES.vocab}
        _write_json(folder, about | more | {"tokens": count, "dtype": tokens.dtype.str})

    key = f"tokens-{about['name']}-{about['split']}-{about['sha256'][:32]}-bytes"
    return Blocks(kept(key, tokenize), length)


def _described(source: "Dataset | Iterable[str]", texts: list[str]) -> dict:
    """The provenance, if these are the texts of a corpus; else a description of the texts."""
    about = describe("texts", "all", texts)
    try:
        claimed = provenance(source)
    except (AttributeError, ValueError):  # no dataset, or not one of `corpus`
        return about
    return claimed if claimed["sha256"] == about["sha256"] else about


def _write_json(folder: Path, about: dict):
    (folder / "about.json").write_text(json.dumps(about, indent=1))


def _read_json(folder: Path) -> dict:
    return json.loads((folder / "about.json").read_text())
