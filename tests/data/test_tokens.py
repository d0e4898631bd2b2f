import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.data.tokens import BYTES

some_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


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
