"""From text to tokens: a byte is a token, or byte-pair encoding.

A tokenizer has `vocab`, the number of its tokens; `separator`, the token that ends a document;
`digest`, which tells it from others; `encode`, `decode`, and `stream`, which encodes documents.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class ByteTokens:
    """The bytes of UTF-8 are the tokens: 256 of them, and nothing to train.

    Byte 0, which no text contains, ends a document: so 256 are enough.
    """

    vocab = 256
    separator = 0
    digest = "bytes"

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text: (bytes,) uint8.

        Raises:
            ValueError: it contains the separator, a NUL character.
        """
        tokens = np.frombuffer(text.encode(), dtype=np.uint8)
        if not tokens.all():
            raise ValueError(
                f"a NUL character at byte {int(tokens.argmin())} of a text: byte 0 ends documents"
            )
        return tokens

    def decode(self, tokens) -> str:
        """The text of whole numbers; a document's end reads as a NUL, a torn character as �."""
        return bytes(np.asarray(tokens, dtype=np.uint8)).decode(errors="replace")

    def stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The tokens of each document, its end included."""
        for text in texts:
            yield np.append(self.encode(text), np.uint8(self.separator))


BYTES = ByteTokens()


class BPETokens:
    """Byte-pair encoding of bytes, by `tokenizers`: made by `train_bpe`, or from its own JSON.

    It knows every text, as a byte that was never merged is a token too. What in a text looks like
    the separator is text.

    Attributes:
        json: the tokenizer as `tokenizers` writes it. What travels to ranks.
    """

    END = "<|end|>"

    def __init__(self, json: str):
        from tokenizers import Tokenizer

        self.json = json
        self.digest = hashlib.sha256(json.encode()).hexdigest()
        self._tokenizer = Tokenizer.from_str(json)
        self._tokenizer.encode_special_tokens = True
        self.vocab = self._tokenizer.get_vocab_size()
        self.separator = self._tokenizer.token_to_id(self.END)
        if self.separator is None:
            raise ValueError(f"this tokenizer has no token {self.END} to end a document")
        self._dtype = np.uint16 if self.vocab <= 2**16 else np.uint32

    def __reduce__(self):
        return type(self), (self.json,)

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text: uint16, or uint32 where there are more than 65536."""
        return np.array(self._tokenizer.encode(text).ids, dtype=self._dtype)

    def decode(self, tokens) -> str:
        """The text of whole numbers, a document's end included."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The tokens of each document, its end included."""
        texts = iter(texts)
        while some := list(itertools.islice(texts, 64)):  # so many at once, on all cores
            for found in self._tokenizer.encode_batch(some):
                yield np.array([*found.ids, self.separator], dtype=self._dtype)


def train_bpe(dataset: "Dataset | Iterable[str]", vocab: int) -> BPETokens:
    """Learn `vocab` tokens from a dataset's column `text`, or from texts.

    256 of them are the bytes and one ends a document; the others are merges, the most frequent
    pair first.

    Raises:
        ValueError: `vocab` is less than 257; or the texts are too few to learn that many from.

    Source: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword
    Units", ACL 2016, section 3.2; over bytes: Radford et al., "Language Models are Unsupervised
    Multitask Learners", 2019, section 2.2.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab < 257:
        raise ValueError(f"vocab must be at least 257, 256 bytes and the separator: {vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BPETokens.END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts_of(dataset), trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(
            f"these texts give {tokenizer.get_vocab_size()} tokens, not {vocab}: no pair is left"
        )
    return BPETokens(tokenizer.to_str())


def texts_of(dataset: "Dataset | Iterable[str]") -> Iterable[str]:
    """The documents: a dataset's column `text`, or the texts themselves."""
    return dataset["text"] if hasattr(dataset, "column_names") else dataset
