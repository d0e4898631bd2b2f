"""Load a dataset of the Hugging Face Hub, or explain within seconds why that fails."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.runtime.private import OTHERS_WRITE, below, check_own

if TYPE_CHECKING:
    from datasets import Dataset


class CannotReach(ConnectionError):
    """A dataset could not be loaded from the Hub. The message says why, and what to do."""


def load(name: str, config: str, split: str, revision: str, instead: str) -> "Dataset":
    """Call `datasets.load_dataset(name, config, split=split, revision=revision)`.

    `datasets` keeps the files for the next call. They are data, never pickles.

    Args:
        revision: the commit of the dataset's repository, 40 hexadecimal digits: what is loaded
            stays the same, whatever its owner changes.
        instead: what works without a network, for the error.

    Raises:
        CannotReach: the dataset could not be loaded. The error before it is its cause.
        PermissionError: another user owns the kept files, or can write them.
    """
    import datasets
    from huggingface_hub import HfApi

    folders = kept_folders(name)
    for folder in folders:
        if folder.parent.exists():
            check_own([folder.parent], "Or set HF_HOME to a folder of yours.")
        if folder.exists():
            check_own(below(folder), f"Or remove {folder}: the next call downloads it again.")
    here = folders[0].glob(f"{config}/*/{revision}")
    try:
        if not any(here):
            HfApi().dataset_info(name, revision=revision, timeout=5)  # load_dataset tries for 24 s
        with closed_to_others():
            return datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:
        raise CannotReach(
            f"could not load {name} ({config}) from the Hugging Face Hub: "
            f"{type(error).__name__}: {error}\n"
            f"Without a network there is {instead}. To have this dataset, connect this machine and "
            "run the call again. HF_HUB_OFFLINE must not be set; behind a proxy, set HTTPS_PROXY. "
            "Or run the call on a connected machine, and copy ~/.cache/huggingface from there."
        ) from error


def kept_folders(name: str) -> tuple[Path, Path]:
    """Where `datasets` keeps what it has read, and the Hub's library what it has downloaded."""
    from datasets.config import HF_DATASETS_CACHE
    from huggingface_hub.constants import HF_HUB_CACHE

    return (
        Path(HF_DATASETS_CACHE, name.replace("/", "___")),
        Path(HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}"),
    )


@contextlib.contextmanager
def closed_to_others() -> Iterator[None]:
    """Files that this process makes meanwhile cannot be written by other users."""
    before = os.umask(OTHERS_WRITE)
    os.umask(before | OTHERS_WRITE)
    try:
        yield
    finally:
        os.umask(before)
