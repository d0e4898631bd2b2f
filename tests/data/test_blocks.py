import os
import pickle
import subprocess
import sys

import pytest
import torch

from helpers.data.blocks import Blocks, pack
from helpers.data.corpus import corpus, documents
from helpers.data.order import Order
from helpers.runtime.launch import launch

TEXTS = ["abcdefg", "", "hij", "klmnopqrstuvwxyz"]
STREAM = list(b"abcdefg\0\0hij\0klmnopqrstuvwxyz\0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("length", [1, 2, 3, 7, 14, len(STREAM) - 1])
def test_every_token_but_the_first_is_a_target_once(length):
    blocks = pack(TEXTS, length)
    assert len(blocks) == (len(STREAM) - 1) // length
    tokens = torch.cat([blocks[i][0] for i in range(len(blocks))]).tolist()
    targets = torch.cat([blocks[i][1] for i in range(len(blocks))]).tolist()
    used = len(blocks) * length
    assert tokens == STREAM[:used]
    assert targets == STREAM[1 : used + 1]


def test_a_batch_is_its_blocks_in_the_order_asked_for():
    blocks = pack(TEXTS, 4)
    batch = blocks.batch(torch.tensor([3, 0, 3]))
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.tokens.shape == batch.targets.shape == (3, 4)
    assert batch.tokens.is_contiguous()
    assert batch.targets.is_contiguous()
    assert torch.equal(batch.tokens, torch.stack([blocks[i][0] for i in (3, 0, 3)]))
    assert torch.equal(batch.targets, torch.stack([blocks[i][1] for i in (3, 0, 3)]))
    batch.tokens[:] = -1  # its own memory, not the file's
    assert torch.equal(blocks[0][0], torch.tensor(STREAM[:4]))
    assert blocks.batch([]).tokens.shape == (0, 4)


@pytest.mark.parametrize("index", [-1, 7, 100])
def test_a_block_that_is_not_there_is_refused(index):
    blocks = pack(TEXTS, 4)
    with pytest.raises(IndexError, match=f"no block {index}: there are 7, from 0"):
        blocks[index]
    with pytest.raises(IndexError, match=f"no block {index}"):
        blocks.batch([0, index])


def test_by_name_and_by_dataset_are_the_same_file(own_cache):
    named, given = pack("python", 64, split="validation"), pack(corpus("python", "validation"), 32)
    assert named.path == given.path
    assert named.path.parent == own_cache
    assert named.about == given.about
    stream = b"".join(text.encode() + b"\0" for _, text in documents("python", "validation"))
    assert (named.path / "tokens.bin").read_bytes() == stream
    assert named.about["tokens"] == len(stream)
    assert (
        repr(named)
        == f"{len(named)} blocks of 64 tokens: python, validation, vocab 256, licence PSF-2.0"
    )
    assert pack("python", 64).about["sha256"] != named.about["sha256"]


def test_a_dataset_changed_after_it_was_made_is_packed_as_it_is():
    part = corpus("python", "validation").select(range(3))
    blocks = pack(part, 8)
    assert blocks.about["name"] == "texts"
    assert blocks.about["documents"] == 3
    assert blocks.about["bytes"] == sum(len(text.encode()) for text in part["text"])


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="3 tokens make no block of 3 and its targets"):
        pack(["ab"], 3)
    with pytest.raises(ValueError, match="make no block of 0"):
        pack(["ab"], 0)
    with pytest.raises(ValueError, match="no documents"):
        pack([], 3)


def test_a_text_that_cannot_be_tokenized_leaves_no_stream(own_cache):
    with pytest.raises(ValueError, match="NUL"):
        pack(["ab", "c\0d"], 1)
    assert list(own_cache.iterdir()) == []


def test_a_stream_cut_short_is_found():
    blocks = pack(TEXTS, 4)
    with open(blocks.path / "tokens.bin", "r+b") as file:
        file.truncate(10)
    with pytest.raises(OSError, match=r"has 10 bytes, and should have \d+: remove"):
        pack(TEXTS, 4)
    (blocks.path / "tokens.bin").write_bytes(bytes(len(STREAM) + 1))
    with pytest.raises(OSError, match=rf"and should have {len(STREAM)}: remove"):
        pack(TEXTS, 4)


def test_a_corpus_is_read_again_when_its_fingerprint_changes(monkeypatch):
    """Until then it is not read at all: its tokens are there."""
    found, mark = [("a", "one")], ["1"]
    monkeypatch.setattr("helpers.data.blocks.documents", lambda *which: iter(found))
    monkeypatch.setattr(
        "helpers.data.blocks.fingerprint", lambda _, split: (mark[0] + split[0]) * 32
    )
    first = pack("python", 2)
    found[:] = [("a", "another")]
    assert pack("python", 2).path == first.path
    mark[0] = "2"
    again = pack("python", 2)
    assert again.about["bytes"] == len("another")
    assert bytes(again.batch([0]).tokens[0].tolist()) == b"an"
    assert bytes(pack("python", 2).batch([1]).tokens[0].tolist()) == b"ot"
    splits = [pack("python", 2, split=split).about["split"] for split in ("train", "validation")]
    assert splits == ["train", "validation"]  # each has its own name, even with the same text
    assert pack("python", 2).about["split"] == "train"
    assert pack(["another"], 2).about["name"] == "texts"  # the same text, and no corpus


def test_opening_imports_nothing_that_costs_seconds():
    """Nor does packing the corpus that is off line, the first time."""
    code = (
        "import sys\n"
        "from helpers.data.blocks import pack\n"
        "from helpers.data.order import Order\n"
        "pack('python', 64, split='validation')[0]\n"
        "slow = {'datasets', 'tokenizers', 'sklearn', 'pandas', 'pyarrow', 'huggingface_hub'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"


def test_blocks_travel_as_their_path():
    blocks = pack(TEXTS, 4)
    data = pickle.dumps(blocks)
    assert len(data) < 1000
    there = pickle.loads(data)
    assert isinstance(there, Blocks)
    assert torch.equal(there.batch([5, 1]).targets, blocks.batch([5, 1]).targets)


def shards_of(worker, blocks, k):
    order = Order(len(blocks), 10, seed=1)
    mine = order.shard(k, worker.rank, worker.world_size)
    packed_here = pack("python", blocks.length, split="validation")
    assert torch.equal(packed_here.batch(mine).tokens, blocks.batch(mine).tokens)
    return blocks.batch(mine).tokens


@pytest.mark.parametrize("workers", [3])
def test_ranks_see_together_what_one_process_sees(workers):
    blocks = pack("python", 16, split="validation")
    whole = blocks.batch(Order(len(blocks), 10, seed=1).global_batch(3)).tokens
    runs = launch(shards_of, workers=workers, blocks=blocks, k=3)
    assert torch.equal(torch.cat(list(runs)), whole)


@pytest.mark.parametrize("name", ["", "about.json", "tokens.bin"])
def test_tokens_that_others_can_write_are_not_read(name):
    blocks = pack(TEXTS, 4)
    (blocks.path / name).chmod(0o666 if name else 0o777)
    with pytest.raises(PermissionError, match="can be written by other users"):
        Blocks(blocks.path, 4)
    with pytest.raises(PermissionError, match="Or remove"):
        pack(TEXTS, 4)
