// A page is what becomes one slide. It knows whether its content fits, and cuts what does not.
"use strict";

const HEADING = "h1, h2, h3, h4";
const LARGEST = 2.2; // pictures grow to fill a slide, at most to this many times their size
const SMALLEST = 1.4; // and share a slide only if it has room for them at this size

const MESSAGE = 4; // lines of an output that is no table
const ALONE = [SMALLEST, 1.2, 1, 0.8, 0.6, 0.4];

const isAnswer = (block) => block.classList.contains("answer");

// Whether a block asks for a prediction: its text, or the cell for it.
const asks = (block) =>
  /^(# Predict|prediction_\w+ = None)/m.test(block.textContent) ||
  [...block.querySelectorAll("strong")].some((bold) => /Predict/.test(bold.textContent));

class Page {
  constructor() {
    this.element = document.createElement("section");
    this.element.className = "page";
    this.element.innerHTML = '<p class="running"></p><div class="body"></div>';
    this.body = this.element.lastChild;
    this.notes = [];
    this.show();
  }

  // Put the page where its content can be measured.
  show() {
    document.getElementById("stage").replaceChildren(this.element);
  }

  get blocks() {
    return [...this.body.children];
  }

  get answers() {
    return this.blocks.some(isAnswer);
  }

  // whether it ends with a question without its answer
  get asks() {
    return this.blocks.slice(this.blocks.findLastIndex(isAnswer) + 1).some(asks);
  }

  // whether there is nothing but headings
  get bare() {
    return this.blocks.every((block) => block.matches(HEADING));
  }

  get used() {
    const last = this.body.lastElementChild;
    return last ? last.offsetTop + last.offsetHeight : 0;
  }

  get room() {
    return this.body.clientHeight - this.used - 20;
  }

  get thin() {
    return this.used < 0.3 * this.body.clientHeight;
  }

  get fits() {
    const { body } = this;
    return body.scrollHeight <= body.clientHeight + 1 && body.scrollWidth <= body.clientWidth + 1;
  }

  // Take all blocks if they fit, in smaller type if need be; else none of them. Pictures are shown
  // at one of these scales. A picture that has a page for itself is as small as it must be.
  take(blocks, scales = this.bare && blocks.length === 1 ? ALONE : [SMALLEST]) {
    const before = [this.body, ...blocks].map((one) => [one, one.className, one.style.cssText]);
    this.body.append(...blocks);
    for (const scale of scales) {
      blocks.forEach((block) => size(block, scale));
      if (this.fits) return true;
      blocks.forEach((block) => narrow(block, this.body.clientWidth));
      if (this.fits) return true;
      this.body.classList.add("tight");
      if (this.fits) return true;
      before.forEach(([one, kind, style]) => {
        one.className = kind;
        one.style.cssText = style;
      });
      if (!this.body.querySelector("img")) break;
    }
    blocks.forEach((block) => block.remove());
    return false;
  }

  // Give the pictures the room that is left.
  grow() {
    const pictures = this.blocks.filter((block) => block.querySelector("img"));
    if (!pictures.length) return;
    let [low, high] = [0.2, LARGEST];
    for (let step = 0; step < 9; step++) {
      const middle = (low + high) / 2;
      pictures.forEach((block) => size(block, middle));
      if (this.fits) low = middle;
      else high = middle;
    }
    pictures.forEach((block) => size(block, low));
  }
}

// Show a block's pictures at so many times their size, but no wider than a slide.
function size(block, scale) {
  for (const picture of block.querySelectorAll("img")) {
    const [wide, high] = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
    const shown = Math.min(wide * scale, 1180);
    picture.style.width = `${shown}px`;
    picture.style.height = `${(shown * high) / wide}px`;
  }
}

// Give what is too wide smaller type. If this is not enough, break a message of a few lines, and
// let anything else scroll.
function narrow(block, width) {
  const wide = () => Math.max(block.scrollWidth, block.offsetLeft + block.offsetWidth) > width + 1;
  if (!wide()) return;
  block.classList.add("small");
  if (wide() && block.matches("pre.output") && block.textContent.split("\n").length <= MESSAGE) {
    block.style.whiteSpace = "pre-wrap";
  } else if (wide() && !block.matches("p, ul, ol")) {
    block.classList.add("scroll");
    block.style.maxWidth = `${width}px`;
  }
}

// Cut a block: as much of it as fits stays on the page. Return the rest, or null if nothing fits.
function cut(page, block) {
  if (block.matches("pre.input")) return cutCode(page, block);
  const table = block.matches("table") ? block : block.querySelector("table");
  if (table) return cutParts(page, block, table, rowsOf(table));
  if (block.matches("ul, ol")) return cutParts(page, block, block, [...block.children]);
  return null;
}

// The rows below a table's head.
function rowsOf(table) {
  return [...table.rows].filter((row) => !row.closest("thead") && row.querySelector("td"));
}

// Items of a list or rows of a table: move them to a copy, from the last one on.
function cutParts(page, block, holder, parts) {
  const rest = block.cloneNode(true);
  const inside = rest.tagName === holder.tagName ? rest : rest.querySelector(holder.tagName);
  const copies = holder.tagName === "TABLE" ? rowsOf(inside) : [...inside.children];
  page.body.append(block);
  let kept = parts.length;
  while (kept > 0 && !page.fits) parts[--kept].remove();
  if (kept === 0) {
    block.remove();
    parts.forEach((part) => (holder.tBodies?.[0] ?? holder).append(part));
    return null;
  }
  copies.slice(0, kept).forEach((copy) => copy.remove());
  if (rest.matches("ol")) rest.start = (block.start || 1) + kept;
  return rest;
}

// Lines of code: a slide begins with a statement, better with one that is not indented.
function cutCode(page, block) {
  const lines = [...block.querySelectorAll(".line")];
  const holder = lines[0].parentNode;
  page.body.append(block);
  let kept = lines.length;
  while (kept > 0 && !page.fits) lines[--kept].remove();
  const places = lines
    .map((line, number) => ({ number, depth: Number(line.dataset.cut ?? 99) }))
    .filter(({ number, depth }) => number > kept / 3 && number <= kept && depth < 99)
    .sort((a, b) => a.depth - b.depth || b.number - a.number);
  const at = places.length ? places[0].number : kept;
  if (at < 3) {
    block.remove();
    holder.replaceChildren(...lines);
    return null;
  }
  holder.replaceChildren(...lines.slice(0, at));
  while (!holder.lastElementChild.textContent.trim()) holder.lastElementChild.remove();
  const rest = block.cloneNode(true);
  rest.classList.add("continued");
  rest.querySelector("code").replaceChildren(...lines.slice(at));
  return rest;
}
