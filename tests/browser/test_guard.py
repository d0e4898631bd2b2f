"""The guard of the browser tests: it sees errors and requests to other hosts, and only these."""

import pytest

from tests.browser.guard import foreign

pytestmark = pytest.mark.browser


def test_another_host_is_foreign_and_this_machine_is_not():
    away = ("https://example.org/a.js", "http://127.0.0.1.example.org/", "wss://e.org/", "ftp://a/")
    here = ("file:///a/b.html", "http://127.0.0.1:8888/", "ws://localhost:1/", "data:,a", "blob:a")
    assert [foreign(address) for address in (*away, *here)] == [True] * 4 + [False] * 5


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>console.error('it broke')</script>", "console: it broke"),
        ("<script>nothing.there()</script>", "raised: nothing is not defined"),
        ("<img src='http://example.org/a.png'>", "another host: http://example.org/a.png"),
        (
            "<script>new WebSocket('ws://example.org/b')</script>",
            "another host: ws://example.org/b",
        ),
        ("<img src='missing.png'>", "ERR_FILE_NOT_FOUND"),
        ("<p>All is well.</p><script>console.log('well')</script>", ""),
    ],
)
def test_a_complaint_is_noted(context, page, tmp_path, body, complaint):
    file = tmp_path / "page.html"
    file.write_text(body)
    page.goto(file.as_uri())
    page.wait_for_load_state("networkidle")
    taken = "\n".join(context.guard.taken())
    assert complaint in taken
    assert bool(taken) == bool(complaint)
    assert context.guard.complaints == []


def test_a_known_complaint_is_left_out(context, page):
    context.guard.known = ("^console: not ours",)
    page.set_content("<script>console.error('not ours, 3'); console.error('ours')</script>")
    page.wait_for_timeout(100)
    assert [line.split(" (")[0] for line in context.guard.taken()] == ["console: ours"]
