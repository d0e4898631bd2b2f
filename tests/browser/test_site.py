"""The course's site, read from its files: every page, wide and on a phone, and what moves in it."""

import re
from dataclasses import dataclass

import pytest

from tests.browser.conftest import PHONE, WIDE
from tests.browser.guard import Guard
from tests.conftest import ROOT, ci

# To build the site takes a minute of a free core, and much longer beside other tests.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

# Whatever is drawn beyond the right edge, and cannot be scrolled to in a box of its own. Menus
# that wait outside the window, and words for screen readers alone, have a fixed or absolute place.
STICKS_OUT = """() => {
  const edge = document.documentElement.clientWidth + 1;
  const boxed = (element) => {
    for (let e = element; e && e !== document.body; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (["fixed", "absolute"].includes(style.position)) return true;
      const scrolls = ["auto", "scroll"].includes(style.overflowX);
      if (e !== element && scrolls && e.getBoundingClientRect().right <= edge) return true;
    }
    return false;
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (box.width && box.height && box.right > edge && element.checkVisibility() && !boxed(element))
      found.push(`${element.tagName} ${element.className} to ${Math.round(box.right)}: `
                 + element.textContent.trim().slice(0, 40));
  }
  if (document.documentElement.scrollWidth > edge)
    found.push(`the page itself, to ${document.documentElement.scrollWidth}`);
  return found.slice(0, 5);
}"""


@dataclass
class Visit:
    """What one page did: its complaints, its title, and what sticks out of it at each width."""

    complaints: list[str]
    title: str
    wide: list[str]
    phone: list[str]


@pytest.fixture(scope="module")
def built(browser, tmp_path_factory):
    """The site of the committed notebooks; `browser` first, which skips where there is none."""
    return ci("site").build(ROOT, into=tmp_path_factory.mktemp("course")).parent


@pytest.fixture(scope="module")
def visits(browser, built):
    """Every page, opened at 1280 pixels, then made as narrow as a phone: {name: Visit}."""
    context = browser.new_context(viewport=WIDE)
    guard, page = Guard(context), context.new_page()
    found = {}
    for file in sorted(built.rglob("*.html")):
        page.set_viewport_size(WIDE)
        page.goto(file.as_uri(), wait_until="load")
        wide, title = page.evaluate(STICKS_OUT), page.title()
        page.set_viewport_size(PHONE)
        phone = page.evaluate(STICKS_OUT)
        found[file.relative_to(built).as_posix()] = Visit(guard.taken(), title, wide, phone)
    context.close()
    return found


@pytest.fixture
def site(page, built):
    """Opens a page of the site: site("replays.html")."""

    def open_page(name):
        page.goto((built / name).as_uri())
        return page

    return open_page


def test_every_notebook_has_a_page(visits):
    committed = {path.stem for path in ROOT.glob("notebooks/week*.ipynb")}
    assert len(committed) > 20
    assert committed <= {name.removeprefix("notebooks/").removesuffix(".html") for name in visits}


def test_no_page_has_an_error_or_asks_another_host(visits):
    assert {name: visit.complaints for name, visit in visits.items() if visit.complaints} == {}


def test_every_page_fits_a_laptop(visits):
    assert {name: visit.wide for name, visit in visits.items() if visit.wide} == {}


def test_every_page_fits_a_phone(visits):
    assert {name: visit.phone for name, visit in visits.items() if visit.phone} == {}


def test_every_page_has_a_title(visits):
    assert [name for name, visit in visits.items() if "Training at Scale" not in visit.title] == []


def test_a_page_that_sticks_out_is_seen(page):
    page.set_viewport_size(PHONE)
    page.set_content(
        "<p>short</p><div style='overflow:auto'><p style='width:900px'>in a box</p></div>"
    )
    assert page.evaluate(STICKS_OUT) == []
    page.set_content("<p style='width:900px'>out</p>")
    assert len(page.evaluate(STICKS_OUT)) == 2


def test_next_and_previous_lead_through_the_weeks(site):
    page = site("notebooks/week01_ranks_and_collectives.html")
    page.locator("a.right-next").click()
    page.wait_for_url("**/week01b_rings_and_bytes.html")
    page.locator("a.left-prev").click()
    page.wait_for_url("**/week01_ranks_and_collectives.html")


def test_a_folded_answer_opens(site):
    page = site("notebooks/week01_ranks_and_collectives.html")
    for kind in ("details.answer", "details:not(.answer)"):  # of an output, of a text
        answer = page.locator(f"article {kind}").first
        inside = answer.locator(":scope > *:not(summary)").first
        assert not inside.is_visible()
        answer.locator("summary").click()
        assert inside.is_visible()


def test_a_replay_plays_pauses_and_steps(site):
    page = site("replays.html")
    replay = page.locator(".replay").first
    line = replay.locator(".now")
    boxes = replay.locator("[data-start]:visible")
    everything = boxes.count()
    replay.get_by_role("button", name="Play").click()
    page.wait_for_timeout(300)
    first, some = float(line.get_attribute("x1")), boxes.count()
    assert 0 < some < everything  # it started again, because it was at its end
    page.wait_for_timeout(700)
    replay.get_by_role("button", name="Pause").click()
    second = float(line.get_attribute("x1"))
    assert second > first
    page.wait_for_timeout(200)
    assert float(line.get_attribute("x1")) == second  # it has stopped
    replay.get_by_role("button", name="Step").click()
    assert float(line.get_attribute("x1")) > second
    replay.locator("input").fill("0")
    assert boxes.count() == 0
    assert "0.0" in replay.locator("output").text_content()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["laptop", "phone"])
def test_search_finds_a_word_without_a_network(site, viewport):
    page = site("index.html")
    page.set_viewport_size(viewport)
    page.locator("button.search-button__button:visible").first.click()
    field = page.locator("input[type=search]:visible")
    field.fill("all-reduce")
    field.press("Enter")
    page.wait_for_url("**/search.html?q=all-reduce**")
    found = page.locator("ul.search li a").first
    found.wait_for()
    names = page.locator("ul.search li a").evaluate_all("all => all.map(a => a.href)")
    assert any("week01_ranks_and_collectives.html" in name for name in names)


def brightness(color: str) -> float:
    """The mean of red, green and blue in rgb(…), 0 to 255."""
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3


def test_the_dark_side_is_dark_and_stays(site):
    page = site("notebooks/week01_ranks_and_collectives.html")
    style = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    for mode in ("light", "dark"):
        page.locator("button.theme-switch-button:visible").click()
        page.locator(f".theme-change-button[data-mode={mode}]:visible").click()
        page.reload()
        assert page.locator("html").get_attribute("data-theme") == mode
        ground = brightness(page.locator("body").evaluate(style)[1])
        text = brightness(page.locator("article p").first.evaluate(style)[0])
        assert (ground > text + 120) == (mode == "light")
        assert abs(ground - text) > 120


def test_a_phone_opens_the_list_of_weeks(site):
    page = site("notebooks/week01b_rings_and_bytes.html")
    page.set_viewport_size(PHONE)
    week = page.get_by_role("link", name="Week 5 · Pipeline parallel")
    week.wait_for(state="hidden")  # it slides away when the window becomes narrow
    page.locator("button.primary-toggle:visible").click()
    week.click()
    page.wait_for_url("**/week05_pipeline_parallel.html")
    page.locator("button.secondary-toggle:visible").click()  # the contents of the page
    page.get_by_role("link", name="What to remember").click()
    page.wait_for_url("**/week05_pipeline_parallel.html#**")
