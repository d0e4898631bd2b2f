"""Completion: the text of `generate`, whole characters, beyond the context, interruptible."""

from types import SimpleNamespace

import IPython.display
import pytest

from helpers.data.tokens import BYTES
from helpers.inference import completion
from helpers.inference.completion import LIVELY, complete, endless
from helpers.inference.generate import generate
from helpers.inference.sampling import Sampling

GREEDY = Sampling()


@pytest.fixture(scope="module")
def byte_model(make_model):
    return make_model(vocab=256)


def says(*tokens, then=None):
    """Replace the model's stream by these tokens, and perhaps an exception."""

    def stream(model, prompt, new_tokens, **_):
        yield from tokens[:new_tokens]
        if then:
            raise then

    return stream


def test_the_text_is_that_of_generate(byte_model, capsys):
    for sampling, seed in ((GREEDY, 0), (LIVELY, 3), (LIVELY, 4)):
        [expected] = generate(
            byte_model, [list(b"def f")], 12, sampling=sampling, seeds=[seed], stop=[0]
        )
        text = BYTES.decode([token for token in expected.tokens if token])
        assert complete(byte_model, "def f", 12, sampling=sampling, seed=seed) == text
        assert capsys.readouterr().out == f"def f{text}\n"


def test_every_piece_is_printed_at_once(monkeypatch, byte_model, capsys):
    printed = []

    def stream(*_, **__):
        for token in b"abc":
            yield token
            printed.append(capsys.readouterr().out)

    monkeypatch.setattr(completion, "stream", stream)
    assert complete(byte_model, "x", 3) == "abc"
    assert printed == ["xa", "b", "c"]


def test_characters_of_several_bytes_come_whole(monkeypatch, byte_model, capsys):
    tokens = "aé€😀".encode()
    monkeypatch.setattr(completion, "stream", says(*tokens))
    assert complete(byte_model, "", len(tokens)) == "aé€😀"
    out = capsys.readouterr().out
    assert out == "aé€😀\n"
    # a character that is cut off, and a byte that is in no character
    assert complete(byte_model, "", len(tokens) - 1) == "aé€�"
    monkeypatch.setattr(completion, "stream", says(97, 0xFF, 98))
    assert complete(byte_model, "", 3) == "a�b"


def test_a_stop_token_ends_the_text_and_is_not_shown(monkeypatch, byte_model):
    monkeypatch.setattr(completion, "stream", says(97, 98, 0, 99))
    assert complete(byte_model, "x", 30) == "ab"
    assert complete(byte_model, "x", 3, stop=[98]) == "a"


def test_an_empty_text_begins_a_document(monkeypatch, byte_model):
    seen = []

    def stream(model, prompt, new_tokens, **options):
        seen.append((list(prompt), new_tokens, options))
        yield from [97] * new_tokens

    monkeypatch.setattr(completion, "stream", stream)
    assert complete(byte_model, "", 2, seed=5) == "aa"
    assert seen == [([0], 2, {"seed": 5, "stop": (0,), "sampling": LIVELY})]
    assert complete(byte_model, "x") == "a" * 400
    assert seen[1] == ([120], 400, {"seed": 0, "stop": (0,), "sampling": LIVELY})


def test_beyond_the_context_the_last_half_is_read_again(byte_model):
    context = byte_model.config.context  # 24
    start = list(b"import os")
    options = {"stop": (), "sampling": LIVELY}
    found = list(endless(byte_model, start, 50, seed=7, **options))
    assert len(found) == 50
    [first] = generate(byte_model, [start], 50, sampling=LIVELY, seeds=[7])
    assert first.reason == "context"
    assert found[: len(first.tokens)] == first.tokens
    rest, made, seed = found[len(first.tokens) :], len(first.tokens), 8
    while rest:
        prompt = (start + found)[: len(start) + made][-context // 2 :]
        [more] = generate(byte_model, [prompt], len(rest), sampling=LIVELY, seeds=[seed])
        assert rest[: len(more.tokens)] == more.tokens
        rest, made, seed = rest[len(more.tokens) :], made + len(more.tokens), seed + 1
    full = list(b"0123456789" * 3)[:context]
    [one] = generate(byte_model, [full], 1, sampling=LIVELY, seeds=[7])
    assert list(endless(byte_model, full, 1, seed=7, **options)) == one.tokens
    long = list(b"0123456789" * 4)
    assert list(endless(byte_model, long, 5, seed=7, **options)) == [
        *generate(byte_model, [long[-12:]], 5, sampling=LIVELY, seeds=[8])[0].tokens
    ]


@pytest.mark.parametrize("notebook", [False, True])
def test_an_interrupt_keeps_what_is_there(monkeypatch, byte_model, capsys, notebook):
    shown = in_a_notebook(monkeypatch) if notebook else None
    monkeypatch.setattr(completion, "stream", says(97, 98, then=KeyboardInterrupt))
    assert complete(byte_model, "x", 30) == "ab"
    last = shown[-1]["text/plain"] if notebook else capsys.readouterr().out.rstrip("\n")
    assert last == "xab\n[interrupted after 2 characters]"
    if notebook:
        html = shown[-1]["text/html"]
        assert "<b>x</b>ab\n<i>[interrupted after 2 characters]</i>" in html
        assert "<i>" not in shown[0]["text/html"]


def in_a_notebook(monkeypatch):
    """Record what a notebook would show."""
    shown = []

    class Handle:
        def update(self, data, raw):
            assert raw
            shown.append(data)

    def display(data, raw, display_id):
        assert raw
        assert display_id is True
        shown.append(data)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(completion, "in_jupyter", lambda: True)
    return shown


def test_a_cell_is_redrawn_as_the_text_grows(monkeypatch, byte_model, capsys):
    shown = in_a_notebook(monkeypatch)
    monkeypatch.setattr(completion, "DRAW_SECONDS", 0)
    monkeypatch.setattr(completion, "stream", says(*b"<b>"))
    assert complete(byte_model, "a & b", 3) == "<b>"
    assert capsys.readouterr().out == ""
    texts = [one["text/plain"] for one in shown]
    assert texts[:4] == ["a & b", "a & b<", "a & b<b", "a & b<b>"]
    assert texts[-1] == "a & b<b>"
    assert "<b>a &amp; b</b>&lt;b&gt;" in shown[-1]["text/html"]


def test_a_cell_is_redrawn_once_in_so_many_seconds(monkeypatch, byte_model):
    """Counted from the last drawing, not from the first."""
    shown, now = in_a_notebook(monkeypatch), [0.0]
    monkeypatch.setattr(completion, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def stream(*_, **__):
        for token in b"abcdefgh":
            now[0] += 0.02
            yield token

    monkeypatch.setattr(completion, "stream", stream)
    complete(byte_model, "", 8)
    assert [one["text/plain"] for one in shown] == ["", "abc", "abcdef", "abcdefgh"]


def test_models_and_texts_that_cannot_be(llama, byte_model):
    with pytest.raises(ValueError, match="the model has 19 tokens, and cannot complete text"):
        complete(llama, "x")
    with pytest.raises(ValueError, match="NUL"):
        complete(byte_model, "a\0b")
