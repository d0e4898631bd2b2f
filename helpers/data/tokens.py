"""Convert text to tokens: bytes as tokens, or byte-pair encoding.

A tokenizer has `vocab`, the number of its tokens; `separator`, the token that ends a document;
`digest`, which identifies it; `encode`, `decode`, and `stream`, which encodes documents.
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
    """Use the 256 bytes of UTF-8 as tokens, without any training.

    Byte 0 ends a document, because text does not contain it.
    """

    vocab = 256
    separator = 0
    digest = "bytes"

    def encode(self, text: str) -> np.ndarray:
        """Convert a text to tokens: (bytes,) uint8.

        Raises:
            ValueError: the text contains the separator, a NUL character.
        """
        tokens = np.frombuffer(text.encode(), dtype=np.uint8)
        if not tokens.all():
            raise ValueError(
                f"a NUL character at byte {int(tokens.argmin())} of a text: remove it, because "
                "byte 0 ends documents"
            )
        return tokens

    def decode(self, tokens) -> str:
        """Convert tokens to text. A document's end becomes a NUL, an incomplete character �."""
        return bytes(np.asarray(tokens, dtype=np.uint8)).decode(errors="replace")

    def stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the tokens of each document, with its end."""
        for text in texts:
            yield np.append(self.encode(text), np.uint8(self.separator))


BYTES = ByteTokens()


class BPETokens:
    """Byte-pair encoding of bytes, by `tokenizers`. Make it with `train_bpe`, or from its JSON.

    It can encode every text, because every byte is a token too. In a text, the separator's
    characters count as text.

    Attributes:
        json: the tokenizer in the format of `tokenizers`. Ranks get this text.
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
            raise ValueError(
                f"this tokenizer has no token {self.END} to end a document: make it with train_bpe"
            )
        self._dtype = np.uint16 if self.vocab <= 2**16 else np.uint32

    def __reduce__(self):
        return type(self), (self.json,)

    def encode(self, text: str) -> np.ndarray:
        """Convert a text to tokens: uint16, or uint32 for a vocabulary over 65536."""
        return np.array(self._tokenizer.encode(text).ids, dtype=self._dtype)

    def decode(self, tokens) -> str:
        """Convert tokens to text, including each document's end."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the tokens of each document, with its end."""
        texts = iter(texts)
        while some := list(itertools.islice(texts, 64)):  # 64 documents at a time, on all cores
            for found in self._tokenizer.encode_batch(some):
                yield np.array([*found.ids, self.separator], dtype=self._dtype)


def train_bpe(dataset: "Dataset | Iterable[str]", vocab: int) -> BPETokens:
    """Learn `vocab` tokens from a dataset's column `text`, or from texts.

    256 tokens are the bytes and one ends a document. The others are merges, the most frequent pair
    first.

    Raises:
        ValueError: `vocab` is less than 257, or the texts have too few pairs for it.

    Source: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword
    Units", ACL 2016, section 3.2; over bytes: Radford et al., "Language Models are Unsupervised
    Multitask Learners", 2019, section 2.2.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab < 257:
        raise ValueError(f"vocab must be at least 257 (256 bytes and the separator), not {vocab}")
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
            f"these texts give only {tokenizer.get_vocab_size()} tokens, not {vocab}: use more "
            "text, or a smaller vocab"
        )
    return BPETokens(tokenizer.to_str())


def texts_of(dataset: "Dataset | Iterable[str]") -> Iterable[str]:
    """The documents: a dataset's column `text`, or the texts themselves."""
    return dataset["text"] if hasattr(dataset, "column_names") else dataset
