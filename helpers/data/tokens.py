"""Convert text to tokens: bytes as tokens.

A tokenizer has `vocab`, the number of its tokens; `separator`, the token that ends a document;
`encode`, `decode`, and `stream`, which encodes documents.
"""

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


def texts_of(dataset: "Dataset | Iterable[str]") -> Iterable[str]:
    """The documents: a dataset's column `text`, or the texts themselves."""
    return dataset["text"] if hasattr(dataset, "column_names") else dataset
