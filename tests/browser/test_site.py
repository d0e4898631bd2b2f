"""The course's site, read from its files: every page, wide and on a phone, and what moves in it."""

import json
import re

import pytest

from helpers.plans.schedules import Costs, interleaved, one_f_one_b, timeline
from tests.browser.conftest import PHONE, WIDE, faults
from tests.conftest import ROOT

# To build the site takes a minute of a free core, and much longer beside other tests.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PROGRAM, PAGES = "site", "*.html"
# The reference of all packages takes half of the time of a site. These have the longest names of
# modules, and drawings.
BUILD = {"packages": "r*"}

# Whatever is drawn beyond the right edge, and cannot be scrolled to in a box of its own. Menus
# that wait outside the window, and words for screen readers alone, have a fixed or absolute place.
STICKS_OUT = """() => {
  const edge = document.documentElement.clientWidth + 1;
  const excused = (element) => {
    for (let e = element; e !== document.body; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (["fixed", "absolute"].includes(style.position)) return true;
      const scrolls = ["auto", "scroll"].includes(style.overflowX);
      if (e !== element && scrolls && e.getBoundingClientRect().right <= edge) return true;
    }
    return false;
  };
  const found = [];
  for (const element of document.body.getElementsByTagName("*")) {
    const box = element.getBoundingClientRect();
    if (box.right > edge && box.width && box.height && element.checkVisibility()
        && !excused(element))
      found.push(`${element.tagName} ${element.className} to ${Math.round(box.right)}: `
                 + element.textContent.trim().slice(0, 40));
  }
  if (document.documentElement.scrollWidth > edge)
    found.push(`the page itself, to ${document.documentElement.scrollWidth}`);
  return found.slice(0, 5);
}"""


# Pages differ in their article and its contents alone. So an open page shows those of another page,
# without a new start of the theme: this takes a third of the time. Returns whether it did.
SHOW = """text => {
  const other = new DOMParser().parseFromString(text, "text/html");
  const parts = ["article", ".bd-sidebar-secondary"];
  const moves = other.querySelector("article :is(script, .replay, .planner)");
  if (moves || parts.some((p) => !document.querySelector(p) || !other.querySelector(p)))
    return false;
  for (const p of parts) document.querySelector(p).innerHTML = other.querySelector(p).innerHTML;
  document.title = other.title;
  return true;
}"""


def look(page, file):
    """Show a page at 1280 pixels or as narrow as a phone, as the last one was left; then swap."""
    sizes = {"wide": WIDE, "phone": PHONE}
    beside = page.url.rpartition("/")[0] == file.parent.as_uri()  # links to pictures are relative
    if not (beside and page.evaluate(SHOW, file.read_text("utf-8"))):
        page.goto(file.as_uri(), wait_until="load")
    found = {"title": page.title()}
    for name in sorted(sizes, key=lambda name: sizes[name] != page.viewport_size):
        page.set_viewport_size(sizes[name])
        found[name] = page.evaluate(STICKS_OUT)
    return found


@pytest.fixture
def site(page, built):
    """Opens a page of the site: site("replays.html")."""

    def open_page(name):
        page.goto((built / name).as_uri())
        return page

    return open_page


def test_every_notebook_has_a_page(seen):
    committed = {path.stem for path in ROOT.glob("notebooks/week*.ipynb")}
    assert len(committed) > 20
    assert committed <= {name.removeprefix("notebooks/") for name in seen}


def test_no_page_has_an_error_or_asks_another_host(seen):
    assert faults(seen, "complaints") == {}


def test_every_page_fits_a_laptop(seen):
    assert faults(seen, "wide") == {}


def test_every_page_fits_a_phone(seen):
    assert faults(seen, "phone") == {}


def test_every_page_has_a_title(seen):
    titles = {name: page["title"] for name, page in seen.items()}
    assert {name: t for name, t in titles.items() if "Training at Scale" not in t} == {}


def test_a_page_that_sticks_out_is_seen(page):
    page.set_viewport_size(PHONE)
    page.set_content(
        "<p>short</p><div style='overflow:auto'><p style='width:900px'>in a box</p></div>"
    )
    assert page.evaluate(STICKS_OUT) == []
    page.set_content("<p style='width:900px'>out</p>")
    assert len(page.evaluate(STICKS_OUT)) == 2


def test_next_and_previous_lead_through_the_weeks(built):
    first, second = "week01_ranks_and_collectives", "week01b_rings_and_bytes"
    for name, way, other in ((first, "right-next", second), (second, "left-prev", first)):
        text = (built / "notebooks" / f"{name}.html").read_text("utf-8")
        link = re.search(rf'<a class="{way}"\s+href="([^"]*)"', text)
        assert link[1] == f"{other}.html"


def test_a_notebook_folds_is_downloaded_without_outputs_and_fills_the_screen(site, built):
    page = site("notebooks/week01_ranks_and_collectives.html")
    for kind in ("details.answer", "details:not(.answer)"):  # of an output, of a text
        answer = page.locator(f"article {kind}").first
        inside = answer.locator(":scope > *:not(summary)").first
        assert not inside.is_visible()
        answer.locator("summary").click()
        assert inside.is_visible()
    link = page.locator("a.btn-download-notebook-button")  # a page from a file may not download
    assert link.get_attribute("download") == "week01_ranks_and_collectives.ipynb"
    file = built / "notebooks" / link.get_attribute("href")
    cells = json.loads(file.read_text("utf-8"))["cells"]
    assert {len(cell["outputs"]) for cell in cells if cell["cell_type"] == "code"} == {0}
    page.locator(".btn-fullscreen-button").click()
    page.wait_for_function("document.fullscreenElement !== null")


def test_a_replay_plays_pauses_and_steps_where_it_is_taught(site):
    page = site("notebooks/week05_pipeline_parallel.html")
    replay = page.locator(".replay").first
    assert "forward, ■ backward" in replay.inner_text()
    line = replay.locator(".now")
    boxes = replay.locator("[data-start]:visible")
    everything = boxes.count()
    replay.get_by_role("button", name="Play").click()
    page.wait_for_function("(e) => e.getAttribute('x1') > 100", arg=line.element_handle())
    assert 0 < boxes.count() < everything  # it started again, because it was at its end
    replay.get_by_role("button", name="Pause").click()
    second = float(line.get_attribute("x1"))
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert float(line.get_attribute("x1")) == second  # it has stopped
    replay.get_by_role("button", name="Step").click()
    assert float(line.get_attribute("x1")) > second
    replay.locator("input").fill("0")
    assert boxes.count() == 0
    assert "0.0" in replay.locator("output").text_content()


def test_a_cluster_is_planned_by_the_keyboard(site):
    """The chosen plan is the fastest that fits; another is chosen by its slider or its dot."""
    data = json.loads((ROOT / ".ci" / "site" / "plans.json").read_text("utf-8"))
    page = site("plan.html")
    chosen, dots = page.locator(".planner .chosen"), page.locator(".planner circle")
    numbers = re.compile(r": ([\d.,]+) s, ([\d.,]+) GB on the fullest GPU")

    def control(label):
        return page.get_by_label(label, exact=True)

    def shown():
        return [float(x.replace(",", "")) for x in numbers.search(chosen.text_content()).groups()]

    def check(front, row):
        assert dots.count() == len(front)
        assert shown() == pytest.approx([row[8], row[7]], rel=6e-3)
        cells = page.locator(".planner .parts td:nth-child(3)").all_text_contents()
        assert [float(text) for text in cells] == [share / 10 for share in row[9]]

    control("Model").select_option("8B")
    control("Machines").select_option("H100")
    control("GPUs").press("End")
    control("Batch").press("Home")
    assert "400 Gbit/s for each GPU, the machine's own" in page.locator(".planner").inner_text()
    control("Network").press("Home")
    front = data["fronts"][f"8B H100 {data['gpus'][-1]} {data['tokens'][0]} {data['links'][0]}"]
    limit = data["fits"] * data["machine"]["H100"]["memory"] / 1e9
    check(front, next(row for row in front if row[7] <= limit))
    control("Plan").press("Home")
    check(front, front[-1])
    dots.last.click()
    check(front, front[0])
    assert chosen.text_content().startswith("Too large: ") == (front[0][7] > limit)

    pp = front[0][0]
    assert f"go through {pp} ranks" in page.locator(".planner .batches").inner_text()
    assert page.locator(".timeline path").count() == 2
    last, frame = (page.locator(f".timeline {e}").last.bounding_box() for e in ("path", "svg"))
    assert last["x"] + last["width"] == pytest.approx(frame["x"] + frame["width"], abs=2)

    control("Model").select_option("405B")
    control("GPUs").press("Home")
    assert control("Network").is_disabled()
    assert chosen.text_content().startswith("No plan fits into these GPUs. The smallest is ")

    # The page's schedules are those of the package: 1F1B, few micro-batches, interleaved. Each
    # computation is at the same time, on the same rank.
    for p, m, v in ((1, 3, 1), (4, 8, 1), (4, 2, 1), (4, 8, 2), (3, 9, 4)):
        boxes = page.evaluate("asked => pipeline(...asked, 1, 2)", [p, m, v])
        drawn = {(b["kind"], b["micro"], b["stage"]): (b["rank"], b["start"]) for b in boxes}
        schedule = interleaved(p, m, v) if v > 1 else one_f_one_b(p, m)
        spans = timeline(schedule, Costs(backward=2).divided(v))
        ran = {(s.action.kind, s.action.micro, s.action.stage): (s.rank, s.start) for s in spans}
        assert drawn == {key: (rank, pytest.approx(at)) for key, (rank, at) in ran.items()}


def test_search_finds_a_word_without_a_network(site):
    page = site("index.html")
    for size in (PHONE, WIDE):
        page.set_viewport_size(size)
        page.locator("button.search-button__button:visible").first.click()
        field = page.locator("input[type=search]:visible")
        field.fill("all-reduce")
        page.keyboard.press("Enter" if size == WIDE else "Escape")
    page.wait_for_url("**/search.html?q=all-reduce**")
    page.locator("ul.search li a[href*='reference/']").first.wait_for()  # the list grows
    names = page.locator("ul.search li a").evaluate_all("all => all.map(a => a.href)")
    last = [("/reference" in name) - bool(re.search("notebooks/[wp]", name)) for name in names]
    assert last == sorted(last)  # weeks, other pages, helpers
    assert set(last) == {-1, 0, 1}


def brightness(color: str) -> float:
    """The mean of red, green and blue in rgb(…), 0 to 255."""
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3


def test_the_dark_side_is_dark_and_stays(site):
    page = site("notebooks/week13b_planner.html")
    style = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    for mode in ("light", "dark"):
        page.locator("button.theme-switch-button:visible").click()
        page.locator(f".theme-change-button[data-mode={mode}]:visible").click()
        page.locator(f"html[data-theme={mode}]").wait_for()
        seen = []
        while seen[-1:] != [mode] and len(seen) < 20:  # a browser stores the choice a moment later
            page.reload()
            seen.append(page.locator("html").get_attribute("data-theme"))
        assert seen[-1] == mode
        ground = brightness(page.locator("body").evaluate(style)[1])
        text = brightness(page.locator("article p").first.evaluate(style)[0])
        assert (ground > text + 120) == (mode == "light")
        assert abs(ground - text) > 120


def test_a_phone_opens_the_list_of_weeks(site):
    page = site("notebooks/week08b_fused_adam.html")
    page.set_viewport_size(PHONE)
    week = page.get_by_role("link", name="Week 13 · A model of a cluster")
    week.wait_for(state="hidden")  # it slides away when the window becomes narrow
    page.locator("button.primary-toggle:visible").click()
    week.click()
    page.wait_for_url("**/week13_a_model_of_a_cluster.html")
    page.locator("button.secondary-toggle:visible").click()  # the contents of the page
    page.get_by_role("link", name="What to remember").click()
    page.wait_for_url("**/week13_a_model_of_a_cluster.html#**")
