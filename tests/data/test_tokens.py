import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.data.tokens import BYTES, BPETokens, train_bpe

TEXTS = ["the cat sat on the mat, the hat. " * 20, "Ein Käse — 中文 🎈 <|end|>\n\n\tx = [1, 2]\n"]
some_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(TEXTS, 280)


@given(some_text)
def test_bytes_come_back_as_the_text(text):
    tokens = BYTES.encode(text)
    assert tokens.dtype == np.uint8
    assert tokens.tolist() == list(text.encode())
    assert BYTES.decode(tokens) == text


def test_byte_0_ends_a_document_and_is_in_none():
    assert [t.tolist() for t in BYTES.stream(["ab", ""])] == [[97, 98, 0], [0]]
    assert {tokens.dtype for tokens in BYTES.stream(["ab", ""])} == {np.dtype(np.uint8)}
    assert BYTES.separator < BYTES.vocab == 256
    assert BYTES.decode(BYTES.encode("é")[:1]) == "\ufffd"  # a torn character
    with pytest.raises(ValueError, match="a NUL character at byte 2 of a text"):
        BYTES.encode("é\0")


@given(text=some_text)
def test_pairs_come_back_as_the_text(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


def test_pairs_are_learnt(bpe):
    assert bpe.vocab == 280
    assert bpe.encode("the").tolist() == [next(iter(bpe.encode("the")))]  # one token
    assert len(bpe.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    assert bpe.encode("x").dtype == np.uint16
    merges = json.loads(bpe.json)["model"]["merges"]
    assert len(merges) == 280 - 257


def test_what_looks_like_the_separator_is_text(bpe):
    [tokens] = bpe.stream(["a<|end|>b"])
    assert (tokens == bpe.separator).tolist() == [False] * (len(tokens) - 1) + [True]
    assert bpe.decode(tokens) == "a<|end|>b<|end|>"


def test_streams_of_many_documents_are_in_order(bpe):
    texts = [f"document {i} " * (i % 7) for i in range(300)]
    expected = [[*bpe.encode(text).tolist(), bpe.separator] for text in texts]
    assert [tokens.tolist() for tokens in bpe.stream(iter(texts))] == expected


def test_it_travels_and_is_the_same_each_time_it_is_learnt(bpe):
    import datasets

    again = train_bpe(datasets.Dataset.from_dict({"text": TEXTS}), 280)
    there = pickle.loads(pickle.dumps(bpe))
    assert there.digest == again.digest == bpe.digest
    assert bpe.digest == hashlib.sha256(bpe.json.encode()).hexdigest()
    assert there.encode(TEXTS[1]).tolist() == bpe.encode(TEXTS[1]).tolist()
    assert train_bpe(TEXTS, 270).digest != bpe.digest


@pytest.mark.parametrize(("vocab", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_numbers_are_as_wide_as_the_vocabulary(vocab, dtype):
    from tokenizers import Tokenizer, models

    words = {str(i): i for i in range(vocab - 1)} | {BPETokens.END: vocab - 1}
    tokens = BPETokens(Tokenizer(models.WordLevel(words, unk_token="0")).to_str())
    [stream] = tokens.stream(["7"])
    assert stream.dtype == tokens.encode("7").dtype == dtype
    assert stream.tolist() == [7, vocab - 1]


def test_vocabularies_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="at least 257"):
        train_bpe(TEXTS, 256)
    with pytest.raises(ValueError, match="give only 258 tokens, not 1000: use more text"):
        train_bpe(["aa"], 1000)


def test_a_tokenizer_without_separator_is_refused(bpe):
    with pytest.raises(ValueError, match=r"no token <\|end\|> to end a document"):
        BPETokens(bpe.json.replace("<|end|>", "<|other|>"))
