import numpy as np
import pytest
import torch

from helpers.data.digits import REVISION, digits, tensors
from helpers.data.hub import CannotReach

NO_MNIST = r'(?s)load ylecun/mnist \(mnist\) .*there is digits\(source="sklearn"\)\.'


def test_the_splits_are_all_of_scikit_learns_digits():
    from sklearn.datasets import load_digits

    parts = {split: tensors(digits(split)) for split in ("train", "validation")}
    images, labels = (torch.cat(both) for both in zip(*parts.values(), strict=True))
    assert len(parts["validation"][1]) == 359
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert images.shape == (1797, 8, 8)
    found = load_digits()
    where = np.arange(1797) % 5 == 4
    expected = np.concatenate([found.images[~where], found.images[where]]) / 16
    assert np.array_equal(images.numpy(), expected.astype(np.float32))  # sixteenths are exact
    assert labels.tolist() == [*found.target[~where], *found.target[where]]
    assert images.min() == 0
    assert images.max() == 1


def test_a_row_is_a_picture_and_its_label():
    dataset = digits("validation")
    assert type(dataset).__name__ == "Dataset"
    assert dataset.column_names == ["image", "label"]
    assert len(digits()) == 1797 - 359  # to train on, and without a network
    assert dataset.info.license.startswith("CC-BY-4.0, E. Alpaydin and C. Kaynak")
    assert dataset.features["image"].shape == (8, 8)
    assert (dataset.features["image"].dtype, dataset.features["label"].dtype) == (
        "float32",
        "int64",
    )
    images, labels = tensors(dataset.select([5, 7]))
    assert np.array_equal(np.array(dataset[7]["image"], dtype=np.float32), images[1].numpy())
    assert labels.tolist() == [dataset[5]["label"], dataset[7]["label"]]


@pytest.mark.parametrize(("ours", "theirs"), [("train", "train"), ("validation", "test")])
def test_mnist_goes_through_the_same_pipeline(monkeypatch, ours, theirs):
    import datasets
    from PIL import Image

    pixels = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)

    def load_dataset(name, config, split, revision):
        assert (name, config, split) == ("ylecun/mnist", "mnist", theirs)
        assert revision == REVISION
        rows = {"image": [Image.fromarray(one) for one in pixels], "label": [3, 9]}
        return datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: 1 / 0)
    with pytest.raises(CannotReach, match=NO_MNIST):
        digits(ours, "mnist")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = digits(ours, "mnist")
    assert found.info.license.startswith("MIT, Y. LeCun")
    images, labels = tensors(found)
    assert torch.equal(images, torch.from_numpy(pixels).float() / 255)
    assert labels.tolist() == [3, 9]


def test_names_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="no split 'test': there are train, validation"):
        digits("test")
    with pytest.raises(ValueError, match="no source 'cifar': there are sklearn, mnist"):
        digits(source="cifar")
