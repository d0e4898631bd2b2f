"""Datasets of the Hugging Face Hub: loaded, or a word within seconds about why not."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset


class CannotReach(ConnectionError):
    """A dataset on line could not be had: which, why, and what to do."""


def load(name: str, config: str, split: str, instead: str) -> "Dataset":
    """`datasets.load_dataset(name, config, split=split)`, which keeps it for the next time.

    Args:
        instead: what there is off line, for the error.

    Raises:
        CannotReach: it could not be loaded, whatever the reason, which is named.
    """
    import datasets
    from huggingface_hub import HfApi

    here = Path(datasets.config.HF_DATASETS_CACHE, name.replace("/", "___"), config)
    try:
        if not here.exists():
            HfApi().dataset_info(name, timeout=5)  # seconds. load_dataset itself tries for 24
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:
        raise CannotReach(
            f"could not load {name} ({config}) from the Hugging Face Hub: "
            f"{type(error).__name__}: {error}\n"
            f"Off line there is {instead}. To have this one: "
            "connect this machine and run the call again (HF_HUB_OFFLINE must not be set; behind a "
            "proxy, HTTPS_PROXY must be), or run it on a machine that is connected and copy that "
            "one's ~/.cache/huggingface here."
        ) from error
