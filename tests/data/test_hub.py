"""What `datasets` keeps on this machine: at which revision, and who could have written it."""

import os
import re
from pathlib import Path

import datasets
import pytest

from helpers.data.hub import CannotReach, load

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def usual_umask():
    """Files of these tests are closed to others, whatever the reader's own umask is."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that notes what it is asked, and whose library makes a file in the cache."""
    asked = []
    kept = tmp_path / "datasets" / "who___what" / "config" / "0.0.0" / SHA

    def dataset_info(self, name, **options):
        asked.append(("info", name, options))

    def load_dataset(name, config, **options):
        asked.append(("load", name, config, options))
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "what-train.arrow").write_bytes(b"data")
        return "the dataset"

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked, kept


def fetch():
    return load("who/what", "config", "train", SHA, instead="something")


def test_one_revision_is_asked_for_and_loaded(hub):
    asked, _ = hub
    assert fetch() == "the dataset"
    assert asked == [
        ("info", "who/what", {"revision": SHA, "timeout": 5}),
        ("load", "who/what", "config", {"split": "train", "revision": SHA}),
    ]
    del asked[:]
    assert fetch() == "the dataset"
    assert [kind for kind, *_ in asked] == ["load"]  # it is here: the Hub is not asked


@pytest.mark.parametrize("failing", ["huggingface_hub.HfApi.dataset_info", "datasets.load_dataset"])
def test_what_fails_is_told_with_what_to_do(hub, monkeypatch, failing):
    cause = OSError("no route")

    def fail(*_, **__):
        raise cause

    monkeypatch.setattr(failing, fail)
    with pytest.raises(CannotReach) as caught:
        fetch()
    assert caught.value.__cause__ is cause
    first, second = str(caught.value).splitlines()
    assert first == "could not load who/what (config) from the Hugging Face Hub: OSError: no route"
    assert second.startswith("Without a network there is something. To have this dataset, ")
    assert os.umask(0o022) == 0o022


def test_another_revision_or_configuration_on_this_machine_is_not_enough(hub):
    asked, kept = hub
    for folder, other in ((kept, "f" * 40), (kept.parents[1], "another")):
        fetch()
        folder.rename(folder.with_name(other))
        del asked[:]
        fetch()
        assert [kind for kind, *_ in asked] == ["info", "load"]


@pytest.mark.parametrize("up", range(5))
def test_what_others_can_write_is_not_read(hub, up):
    asked, kept = hub
    fetch()
    path = [kept / "what-train.arrow", *kept.parents[:4]][up]
    path.chmod(0o777)
    del asked[:]
    with pytest.raises(PermissionError) as caught:
        fetch()
    assert f"{path} can be written by other users" in str(caught.value)
    assert not isinstance(caught.value, CannotReach)
    assert asked == []


def test_downloads_that_others_can_write_are_not_read(hub, tmp_path):
    """Not through a link either: that is how the Hub's library keeps them."""
    fetch()
    blob = tmp_path / "hub" / "datasets--who--what" / "blobs" / "b"
    link = tmp_path / "hub" / "datasets--who--what" / "snapshots" / "train.parquet"
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_bytes(b"data")
    link.symlink_to(blob)
    (link.parent / "gone").symlink_to("nowhere")
    fetch()
    blob.chmod(0o666)
    with pytest.raises(PermissionError, match=f"Or remove {tmp_path}/hub/datasets--who--what"):
        fetch()


def test_a_folder_for_downloads_that_others_can_write_gets_none(hub, tmp_path):
    asked, _ = hub
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub").chmod(0o777)
    with pytest.raises(PermissionError, match="Or set HF_HOME to a folder of yours"):
        fetch()
    assert asked == []


@pytest.mark.parametrize(("umask", "closed"), [(0o002, 0o022), (0o077, 0o077)])
def test_files_are_closed_to_others_and_a_strict_umask_stays_strict(hub, umask, closed):
    _, kept = hub
    os.umask(umask)
    fetch()
    assert os.umask(0o022) == umask  # after it the umask is as it was
    assert (kept / "what-train.arrow").stat().st_mode & closed == 0


def test_nothing_of_the_data_is_a_pickle():
    """Neither pickles nor what reads them by default."""
    found = re.compile(r"pickle|joblib|dill|torch\.load|np\.load|marshal|shelve|\beval\(")
    for file in Path(load.__code__.co_filename).parent.glob("*.py"):
        code = re.sub(r'""".*?"""', "", file.read_text(), flags=re.DOTALL)
        assert not found.search(code), file.name
