"""A real browser for the tests of what a reader sees: Chromium, driven by Playwright."""

import shutil
from pathlib import Path

import pytest

from tests.browser.guard import Guard
from tests.conftest import ROOT, ci

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = Path("/Applications")
APPS = ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium")
WIDE = {"width": 1280, "height": 720}
PHONE = {"width": 390, "height": 844}


def chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    found = [shutil.which(name) for name in NAMES] + [str(MAC / app) for app in APPS]
    return next((path for path in found if path and Path(path).exists()), None)


# Not for the whole session: while Playwright runs, no other test of this process could use asyncio.
@pytest.fixture(scope="module")
def browser():
    """Chromium without a window. It finds no host but this machine."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    # The pages are the course's own, and nothing else can be reached: Playwright's default, no
    # sandbox, also works as root and in a container.
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[alone])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def built(browser, request, tmp_path_factory):
    """The folder of what a program writes from the committed notebooks; may skip, by `browser`.

    A test module names that file of .ci in `PROGRAM`, and more arguments of its `build` in `BUILD`.
    """
    given = {"into": tmp_path_factory.mktemp("built"), **getattr(request.module, "BUILD", {})}
    return ci(request.module.PROGRAM).build(ROOT, **given).parent


@pytest.fixture(scope="module")
def seen(browser, built, request):
    """Every page of that folder, opened once: {its name: what was found}.

    A test module names the files in `PAGES`, a pattern. Its function `look(page, file)` opens one,
    and returns a dictionary of what it found. Here the page's complaints are added.
    """
    context = browser.new_context(viewport=WIDE)
    guard, page, found = Guard(context), context.new_page(), {}
    for file in sorted(built.rglob(request.module.PAGES)):
        name = file.relative_to(built).with_suffix("").as_posix()
        found[name] = {**request.module.look(page, file), "complaints": guard.taken()}
    context.close()
    return found


def faults(seen: dict[str, dict], kind: str) -> dict:
    """Return the pages with faults of this kind, and the faults."""
    return {name: page[kind] for name, page in seen.items() if page[kind]}


@pytest.fixture
def context(browser, request):
    """A fresh profile of 1280 × 720 pixels. The test fails if a page complains: see Guard.

    A test module names complaints that are not the course's in `KNOWN`.
    """
    context = browser.new_context(viewport=WIDE)
    context.guard = Guard(context, getattr(request.module, "KNOWN", ()))
    yield context
    context.close()
    assert context.guard.complaints == []


@pytest.fixture
def page(context):
    """An empty page of that profile."""
    return context.new_page()
