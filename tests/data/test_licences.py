"""Each data set comes with its licence, wherever it is offered."""

import re
from pathlib import Path

import pytest

from helpers.data import corpus as corpus_file
from helpers.data import digits as digits_file
from helpers.data.blocks import pack
from helpers.data.corpus import corpus
from helpers.data.digits import digits
from helpers.data.licences import LICENCES, identifier

README = Path(__file__).resolve().parents[2] / "README.md"
OFFERED = {
    corpus_file: (corpus, ("python", "wikitext")),
    digits_file: (digits, ("sklearn", "mnist")),
}


@pytest.fixture(autouse=True)
def no_hub(tmp_path, monkeypatch):
    """A Hub that has one article, and one picture."""
    import datasets
    from PIL import Image

    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    rows = {"text": [" = A = \n"], "image": [Image.new("L", (28, 28))], "label": [7]}

    def load(*args, instead):
        return datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())

    monkeypatch.setattr(corpus_file, "load", load)
    monkeypatch.setattr(digits_file, "load", load)


@pytest.mark.parametrize("name", LICENCES)
def test_a_data_set_carries_its_licence(name):
    [dataset] = [
        load(name, "validation") if load is corpus else load("validation", name)
        for load, names in OFFERED.values()
        if name in names
    ]
    assert dataset.info.license == LICENCES[name]


def test_every_data_set_that_is_offered_has_a_licence_in_its_docstring():
    for load, names in OFFERED.values():
        refused = {corpus: {"name": "none"}, digits: {"source": "none"}}[load]
        with pytest.raises(ValueError, match=f"there are {', '.join(names)}"):
            load(**refused)
        for name in names:
            about = load.__doc__.split(f'"{name}":')[1].split('\n    "')[0]
            assert f"Licence: {identifier(name)}" in " ".join(about.split())
    assert set(LICENCES) == {name for _, names in OFFERED.values() for name in names}


def test_blocks_show_the_licence_of_their_text():
    assert repr(pack("python", 64, split="validation")).endswith("licence PSF-2.0")
    assert "licence" not in repr(pack(["a text of your own"], 4))


def test_the_readme_names_them_all():
    table = README.read_text().split("## Licences")[1]
    for name in LICENCES:
        [row] = re.findall(rf"^\| `(?:corpus|digits)\(.*{name}.*$", table, re.MULTILINE)
        assert identifier(name) in row
