"""Pictures of digits: scikit-learn's, off line, or MNIST, on line."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from helpers.data.hub import load

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "validation")


def digits(split: str = "train", source: str = "sklearn") -> "Dataset":
    """Handwritten digits, a row a picture: `image`, (H, W) float32 from 0 to 1, and `label`, 0 … 9.

    "sklearn": off line, 1797 of 8×8 that scikit-learn carries (`sklearn.datasets.load_digits`):
        every fifth is for validation.
    "mnist": on line, 70 000 of 28×28 (LeCun, Cortes and Burges): `datasets.load_dataset(
        "ylecun/mnist", "mnist")`; its test set of 10 000 is for validation.

    Raises:
        ValueError: no split or source of that name.
        CannotReach: MNIST is not here, and the Hub cannot be reached.
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
        {"image": images, "label": labels}, features=datasets.Features(kinds)
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
    found = load("ylecun/mnist", "mnist", part, instead='digits(source="sklearn")')
    images = np.stack([np.asarray(image, dtype=np.float32) for image in found["image"]])
    return images / np.float32(255), np.asarray(found["label"])
