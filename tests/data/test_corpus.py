import json
import os
import re
import subprocess
import sys

import pytest

from helpers.data.corpus import (
    REVISION,
    articles,
    corpus,
    describe,
    documents,
    fingerprint,
    held_out,
    provenance,
)


@pytest.fixture(scope="module")
def splits():
    return {split: list(documents("python", split)) for split in ("train", "validation")}


def test_python_text_is_megabytes_of_reference_docstrings_and_source(splits):
    train = dict(splits["train"])
    assert 5e6 < sum(len(text) for text in train.values()) < 30e6
    everything = train | dict(splits["validation"])
    assert "raise" in everything["topics/raise"]
    assert "list.append\n\nAppend object to the end of the list." in everything["docstrings/list"]
    assert "def dumps(" in everything["source/json/__init__.py"]
    assert "source/json/decoder.py" in everything
    assert not any({"test", "tests"} & {*name.split("/")[:-1]} for name in everything)
    assert not any("site-packages" in name for name in everything)
    folders = {name.split("/")[1] for name in everything if name.startswith("source/")}
    left_out = {"idlelib", "turtledemo", "ensurepip", "encodings", "pydoc_data", "lib2to3"}
    assert not folders & left_out
    assert {"docstrings/itertools", "docstrings/math", "docstrings/int"} < everything.keys()
    assert "docstrings/print" not in everything  # no type
    members = re.findall(r"^list\.(\w+)$", everything["docstrings/list"], re.MULTILINE)
    assert {"append", "sort"} < set(members)
    assert members == sorted(members)
    assert "\n\nlist.__" not in everything["docstrings/list"]  # members with names of their own
    assert all(text.strip() for text in everything.values())


def test_the_order_of_the_documents_is_fixed(splits):
    """Whatever the order in which the disk lists its files: reference, docstrings, source."""
    for found in splits.values():
        names = [name for name, _ in found]
        kinds = [name.split("/")[0] for name in names]
        assert kinds == sorted(kinds, key=["topics", "docstrings", "source"].index)
        of = {kind: [n for n in names if n.startswith(f"{kind}/")] for kind in set(kinds)}
        assert of["topics"] == sorted(of["topics"])
        types = [
            name for name in of["docstrings"] if name.split("/")[1] not in ("itertools", "math")
        ]
        assert types == sorted(types)
        assert of["source"] == sorted(of["source"], key=lambda name: name.split("/"))


def test_no_document_is_in_both_splits_and_a_tenth_is_held_out(splits):
    names = {split: {name for name, _ in found} for split, found in splits.items()}
    texts = {split: {text for _, text in found} for split, found in splits.items()}
    assert not names["train"] & names["validation"]
    assert not texts["train"] & texts["validation"]
    for split, found in splits.items():
        assert len(names[split]) == len(texts[split]) == len(found)
    share = len(names["validation"]) / (len(names["train"]) + len(names["validation"]))
    assert 0.05 < share < 0.16


def test_what_is_held_out_depends_on_the_name_alone():
    """Fixed: a held-out document must stay so, or what was trained on would be tested on."""
    assert [n for n in range(60) if held_out(str(n))] == [9, 39, 49, 51, 55]


def test_corpus_is_a_dataset_with_its_provenance(splits):
    dataset = corpus("python", "validation")
    assert type(dataset).__name__ == "Dataset"
    assert list(zip(dataset["name"], dataset["text"], strict=True)) == splits["validation"]
    about = provenance(dataset)
    assert about == describe("python", "validation", dataset["text"])
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))
    assert about["bytes"] == sum(len(text.encode()) for text in dataset["text"])
    assert about["documents"] == len(dataset)
    assert dataset.info.license.startswith("PSF-2.0, Python Software Foundation")


def test_another_process_finds_the_same_text_though_a_notebook_changed_the_builtins():
    code = (
        "import builtins, json\n"
        "builtins.display = builtins.input = lambda *x: 'a notebook puts these here'\n"
        "builtins.Ours = type('Ours', (), {'__doc__': 'and its own type'})\n"
        "from helpers.data.corpus import describe, documents\n"
        "texts = (text for _, text in documents('python', 'train'))\n"
        "print(json.dumps(describe('python', 'train', texts)))"
    )
    env = os.environ | {"PYTHONHASHSEED": "7"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
    texts = (text for _, text in documents("python", "train"))
    assert json.loads(out.stdout) == describe("python", "train", texts)


def test_a_digest_tells_documents_from_their_concatenation():
    digests = [describe("x", "train", t)["sha256"] for t in (["ab"], ["a", "b"], ["b", "a"], [])]
    assert len(set(digests)) == 4


def test_a_fingerprint_changes_with_a_file_that_is_read(tmp_path, monkeypatch):
    (tmp_path / "pydoc_data").mkdir()
    for name in ("pydoc_data/topics.py", "json.py", "not_of_the_library.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr("helpers.data.corpus._stdlib", lambda: str(tmp_path))
    before = fingerprint("python", "train")
    assert fingerprint("python", "train") == before
    assert fingerprint("python", "validation") != before
    (tmp_path / "not_of_the_library.py").write_text("x = 20\n")
    assert fingerprint("python", "train") == before
    (tmp_path / "json.py").write_text("x = 2\n")
    assert fingerprint("python", "train") != before
    before, times = fingerprint("python", "train"), os.stat(tmp_path / "json.py")
    (tmp_path / "json.py").write_text("x = 2000\n")
    os.utime(tmp_path / "json.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint("python", "train") != before  # another size, at the same time
    before = fingerprint("python", "train")
    (tmp_path / "pydoc_data/topics.py").write_text("x = 20\n")
    assert fingerprint("python", "train") != before


def test_a_fingerprint_changes_with_the_release_and_with_the_reader(tmp_path, monkeypatch):
    names = "python", "wikitext"
    before = {name: fingerprint(name, "train") for name in names}
    assert len(set(before.values())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "4.0")
        assert fingerprint("python", "train") != before["python"]
    (tmp_path / "corpus.py").write_text("# reads otherwise\n")
    monkeypatch.setattr("helpers.data.corpus.__file__", str(tmp_path / "corpus.py"))
    assert all(fingerprint(name, "train") != before[name] for name in names)


def test_source_is_read_in_its_own_encoding(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_bytes("# coding: latin-1\n# é\n".encode("latin-1"))
    monkeypatch.setattr("helpers.data.corpus._stdlib", lambda: str(tmp_path))
    both = [*documents("python", "train"), *documents("python", "validation")]
    assert dict(both)["source/json.py"] == "# coding: latin-1\n# é\n"


def test_names_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="no corpus 'wiki': there are python, wikitext"):
        corpus("wiki")
    with pytest.raises(ValueError, match="no split 'test': there are train, validation"):
        corpus("python", "test")


def test_provenance_of_another_dataset_is_refused():
    import datasets

    with pytest.raises(ValueError, match=r"not made by corpus\(\)"):
        provenance(datasets.Dataset.from_dict({"text": ["a"]}))


def test_without_the_hub_wikitext_says_what_to_do(tmp_path):
    code = (
        "from helpers.data.corpus import corpus\n"
        "from helpers.data.hub import CannotReach\n"
        "try:\n    corpus('wikitext')\n"
        "except CannotReach as error:\n    print(error)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    env |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}  # nobody listens there
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith(
        "could not load Salesforce/wikitext (wikitext-2-raw-v1) from the Hugging Face Hub: "
    )
    assert 'Without a network there is corpus("python")' in out.stdout
    assert "HF_HUB_OFFLINE must not be set" in out.stdout


LINES = [
    "",
    " = Robert = \n",
    "",
    " He is an actor . \n",
    " = = Career = = \n",
    " x = y = z \n",
    "",
    " = A = \n",
    " = = = Deep = = = \n",
]


def test_lines_of_wikitext_become_articles(monkeypatch):
    import datasets

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **kwargs: None)

    def load_dataset(*args, **options):
        assert args == ("Salesforce/wikitext", "wikitext-2-raw-v1")
        assert options == {"split": "validation", "revision": REVISION}
        return datasets.Dataset.from_dict({"text": LINES})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    dataset = corpus("wikitext", "validation")
    assert dataset["name"] == ["Robert", "A"]
    assert dataset["text"] == ["".join(LINES[1:7]), "".join(LINES[7:])]
    assert provenance(dataset)["name"] == "wikitext"
    assert provenance(dataset)["python"] is None


def test_what_stands_before_the_first_heading_is_kept():
    assert list(articles([" lost \n", " = A = \n"])) == [("", " lost \n"), ("A", " = A = \n")]
    assert list(articles([])) == []
