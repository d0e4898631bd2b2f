"""Pictures of handwritten digits: scikit-learn's, or MNIST from the Hub."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from helpers.data.hub import load
from helpers.data.licences import LICENCES

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "validation")
MNIST = ("ylecun/mnist", "mnist")
REVISION = "77f3279092a1c1579b2250db8eafed0ad422088c"  # of its repository on the Hub


def digits(split: str = "train", source: str = "sklearn") -> "Dataset":
    """Load handwritten digits. A row is a picture and its label.

    `image` is (H, W) float32 from 0 to 1; `label` is 0 … 9.

    "sklearn": needs no network. 1797 pictures of 8×8, part of scikit-learn
        (`sklearn.datasets.load_digits`). Every fifth is for validation. Licence: CC-BY-4.0.
    "mnist": needs a network, the first time. 70 000 pictures of 28×28 (LeCun, Cortes and Burges).
        `datasets.load_dataset("ylecun/mnist", "mnist")` loads them, always at the same revision,
        and keeps them. The 10 000 of the test set are for validation. Licence: MIT.

    The licence is also in `digits(…).info.license`, with its owner.

    Raises:
        ValueError: no split or source has that name.
        CannotReach: MNIST is not on this machine, and the Hub cannot be reached.
        PermissionError: other users can write the files of MNIST on this machine.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: there are {', '.join(SPLITS)}")
    if source == "sklearn":
        images, labels = _sklearn(split)
    elif source == "mnist":
        images, labels = _mnist(split)
    else:
        raise ValueError(f"no source {source!r}: there are sklearn, mnist")
    import datasets

    kinds = {
        "image": datasets.Array2D(images.shape[1:], "float32"),
        "label": datasets.Value("int64"),
    }
    return datasets.Dataset.from_dict(
        {"image": images, "label": labels},
        info=datasets.DatasetInfo(features=datasets.Features(kinds), license=LICENCES[source]),
    )


def tensors(dataset: "Dataset") -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures and labels: (N, H, W) float32 and (N,) int64."""
    columns = dataset.with_format("numpy")
    images = np.asarray(columns["image"][:], dtype=np.float32)
    return torch.from_numpy(images), torch.tensor(dataset["label"][:], dtype=torch.int64)


def _sklearn(split: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    found = load_digits()
    chosen = (np.arange(len(found.target)) % 5 == 4) == (split == "validation")
    return (found.images[chosen] / 16).astype(np.float32), found.target[chosen]


def _mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    part = "train" if split == "train" else "test"
    found = load(*MNIST, part, REVISION, instead='digits(source="sklearn")')
    images = np.stack([np.asarray(image, dtype=np.float32) for image in found["image"]])
    return images / np.float32(255), np.asarray(found["label"])
