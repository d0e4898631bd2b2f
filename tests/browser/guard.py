"""Notes what a page of the course must not do: errors, and requests to another host."""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

OWN = {"127.0.0.1", "localhost"}
WITHOUT_HOST = {"file", "data", "blob", "about", "chrome-error"}


def foreign(address: str) -> bool:
    """Whether a request to this address leaves the machine."""
    parts = urlsplit(address)
    return parts.scheme not in WITHOUT_HOST and parts.hostname not in OWN


@dataclass
class Guard:
    """Listens to all pages of a browser's context.

    Args:
        context: Playwright's context, before its first page.
        known: patterns of complaints that are not the course's, each with its reason beside it.

    Attributes:
        complaints: a line for each error of a page, and for each request to another host.
    """

    context: object
    known: tuple[str, ...] = ()
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.context.on("console", self.said)
        self.context.on("weberror", lambda error: self.note(f"raised: {error.error}"))
        self.context.on("request", lambda request: self.asked(request.url))
        self.context.on(
            "page", lambda page: page.on("websocket", lambda socket: self.asked(socket.url))
        )

    def said(self, message):
        if message.type == "error":
            place = message.location.get("url", "")
            self.note(f"console: {message.text} ({place})" if place else f"console: {message.text}")

    def asked(self, address: str):
        if foreign(address):
            self.note(f"request to another host: {address[:200]}")

    def note(self, complaint: str):
        if not any(re.search(pattern, complaint) for pattern in self.known):
            self.complaints.append(complaint)

    def taken(self) -> list[str]:
        """Return the complaints so far, and forget them."""
        complaints, self.complaints = self.complaints, []
        return complaints
