"""Every deck of slides in Chromium: each slide fits 1280 × 720, in type that a hall can read."""

import re

import pytest

from tests.browser.conftest import faults

pytestmark = pytest.mark.browser

PROGRAM, PAGES = "slides", "*_*.html"
SHORT = "week12b_experts"  # it opens quickly

SMALLEST = 16  # pixels of type, in a box that scrolls too
TEXT, CODE = 24, 17  # pixels of a slide's own text, and of its code
PICTURE = 1.4  # times a picture's own size: its type of 9 points then has 14 pixels
ROOM = 1180, 560  # pixels of a slide that a picture with a heading can fill
LITTLE = 4  # words that are too few for a slide without a picture

# What is wrong with the slides as they are shown, one after the other.
WRONG = """([smallest, text, code, little, picture, room]) => {
  const wrong = [];
  for (const slide of Reveal.getSlides()) {
    const { h, v } = Reveal.getIndices(slide);
    Reveal.slide(h, v);
    const number = `slide ${h}/${v}`;
    const say = (what, e) => wrong.push(`${number}: ${what}: ${e.textContent.trim().slice(0, 50)}`);
    const edge = slide.getBoundingClientRect();
    if (edge.width !== 1280 || edge.height !== 720) say(`${edge.width} × ${edge.height}`, slide);
    const body = slide.querySelector(".body");
    const shown = body.getBoundingClientRect();
    for (const e of body.querySelectorAll("*")) {
      if (e.closest("math") && e.tagName.toLowerCase() !== "math") continue;
      const box = e.getBoundingClientRect();
      const inside = e.parentElement.closest(".scroll");
      const out = box.right > shown.right + 1 || box.bottom > shown.bottom + 2
        || box.left < shown.left - 1 || box.top < shown.top - 1;
      if (box.width && box.height && out && !inside) say(`outside, ${e.tagName}`, e);
      if (e.matches(".scroll") && !e.matches(".output, .output *")) say("scrolls", e);
      const words = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (!words || e.closest("math, sup, sub")) continue;
      const size = parseFloat(getComputedStyle(e).fontSize);
      const least = e.matches("p, li") && !e.closest(".output") ? text
        : e.closest("pre.input") ? code : smallest;
      if (size < least) say(`type of ${size}`, e);
    }
    for (const e of body.querySelectorAll("img")) {
      const [wide, high] = [e.getAttribute("width"), e.getAttribute("height")];
      const shown = e.getBoundingClientRect().width / wide;
      const full = Math.min(room[0] / wide, room[1] / high);
      if (shown < Math.min(picture, full) - 0.01) say(`a picture at ${shown} of its size`, body);
    }
    const words = body.textContent.trim().split(/\\s+/).length;
    if (words < little && !body.querySelector("img")) say("hardly anything", body);
    if ([...body.children].every((e) => /^(# Predict|prediction_\\w+ = None)/.test(e.textContent)))
      say("a prediction without its question", body);
    if (body.lastElementChild.matches("h2, h3, h4")) say("a heading without its text", body);
    for (const code of body.querySelectorAll(".continued .line:first-child"))
      if (code.dataset.cut === undefined) say("begins within a statement", code);
    if (body.querySelector("summary")) say("folded", body);
    const head = slide.querySelector(".running");
    if (!head.textContent && !body.querySelector("h1, h2")) say("no heading", body);
  }
  return wrong;
}"""

# Texts of the cells, as the page was written, that no slide shows; and answers beside questions.
LOST = """(source) => {
  const page = new DOMParser().parseFromString(source, "text/html");
  page.querySelectorAll("summary").forEach((summary) => summary.remove());
  const parts = ".line, p, li, td, th, pre.output, aside.notes, h1, h2, h3";
  const texts = (root) => [...root.querySelectorAll(parts)]
    .map((e) => e.textContent.replace(/\\s+/g, " ").trim()).filter(Boolean);
  const shown = new Map();
  for (const text of texts(document.querySelector(".slides")))
    shown.set(text, (shown.get(text) ?? 0) + 1);
  const lost = [];
  for (const text of texts(page.getElementById("cells"))) {
    if (!shown.get(text)) lost.push(text.slice(0, 80));
    else shown.set(text, shown.get(text) - 1);
  }
  const pictures = (root) => root.querySelectorAll("img").length;
  if (pictures(page) !== pictures(document)) lost.push("a picture");
  return lost;
}"""

EARLY = """() => Reveal.getSlides().filter((slide) => {
  const asked = /^prediction_\\w+ = None/m.exec(slide.querySelector(".body").textContent);
  const blocks = [...slide.querySelector(".body").children];
  const question = blocks.findIndex((block) => /^prediction_\\w+ = None/m.test(block.textContent));
  return asked && blocks.slice(question).some((block) => block.matches(".answer"));
}).map((slide) => slide.textContent.trim().slice(0, 80))"""


def look(page, file):
    """Show a deck from its first slide to its last."""
    open_deck(page, file)
    return {
        "wrong": page.evaluate(WRONG, [SMALLEST, TEXT, CODE, LITTLE, PICTURE, ROOM]),
        "lost": page.evaluate(LOST, file.read_text(encoding="utf-8")),
        "early": page.evaluate(EARLY),
        "slides": page.evaluate("Reveal.getTotalSlides()"),
        "title": page.title(),
    }


def open_deck(page, file):
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")


def test_every_slide_fits_and_can_be_read(seen):
    assert faults(seen, "wrong") == {}


def test_no_text_and_no_picture_is_lost(seen):
    assert faults(seen, "lost") == {}


def test_no_answer_stands_below_its_question(seen):
    assert faults(seen, "early") == {}


def test_no_error_and_no_request_to_another_host(seen):
    assert faults(seen, "complaints") == {}


def test_every_notebook_has_a_deck_of_a_lecture_s_length(seen):
    assert len(seen) >= 24
    assert all(15 < deck["slides"] <= 40 for deck in seen.values())


def test_the_list_of_decks_leads_to_each(built, seen):
    names = re.findall(r'<li><a href="([^"]*)\.html">', (built / "index.html").read_text("utf-8"))
    assert sorted(names) == sorted(seen)
    assert seen[names[0]]["title"].startswith("Week 1")


def test_space_goes_on_and_the_speaker_sees_the_notes(built, context, page):
    open_deck(page, built / f"{SHORT}.html")
    page.keyboard.press("Space")
    assert "Reading guide" in page.locator("section.present section.present").inner_text()
    page.evaluate("Reveal.slide(2, 0)")
    with context.expect_page() as opened:
        page.keyboard.press("s")
    view = opened.value
    view.wait_for_function("document.querySelector('.speaker-controls-notes .value')?.innerText")
    notes = view.locator(".speaker-controls-notes .value").inner_text()
    assert re.match(r"In class\. \w", notes)


def test_a_deck_prints_a_slide_on_a_page(built, page, seen):
    page.goto((built / f"{SHORT}.html").as_uri() + "?print-pdf")
    page.wait_for_selector(".pdf-page")
    assert page.locator(".pdf-page").count() == seen[SHORT]["slides"]
