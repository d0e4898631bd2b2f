// Lay the cells out on pages of 1280 × 720 pixels. What does not fit goes on to a following page.
//
// Nothing shows an answer beside its question: an answer, folded in the notebook, begins a page, or
// stands below code and answers on a page of its own.
"use strict";

// The blocks of a cell. A folded answer becomes blocks that are open.
function blocksOf(unit) {
  const found = [];
  for (const child of [...unit.children]) found.push(...opened(child));
  return found.filter((block) => block.textContent.trim() || block.querySelector("img"));
}

function opened(block) {
  if (block.matches("details")) {
    block.querySelector("summary")?.remove();
    return parts(block, "answer");
  }
  if (!block.matches("div.output")) return [block];
  return [...block.children].flatMap((child) => {
    if (!child.matches("details")) return [wrap(child, "output")];
    child.querySelector("summary")?.remove();
    return parts(child, "output answer");
  });
}

function parts(block, kind) {
  return [...block.childNodes]
    .filter((node) => node.nodeType === Node.ELEMENT_NODE || node.textContent.trim())
    .map((node) => wrap(node, kind));
}

function wrap(node, kind) {
  if (kind === "answer" && node.nodeType === Node.ELEMENT_NODE) {
    node.classList.add("answer");
    return node;
  }
  const block = document.createElement("div");
  block.className = kind;
  block.append(node);
  return block;
}

// Lays one slide of the notebook out on pages.
class Layout {
  constructor() {
    this.pages = [new Page()];
  }

  get page() {
    return this.pages.at(-1);
  }

  next() {
    this.pages.push(new Page());
  }

  add(unit) {
    if (unit.matches("aside")) return void this.page.notes.push(unit);
    const blocks = blocksOf(unit);
    if (unit.matches(".text")) this.addText(blocks);
    else this.addCode(blocks);
  }

  // A text, what it folds, and the next question, which gets a page of its own.
  addText(blocks) {
    const first = blocks.findIndex(isAnswer);
    if (first < 0) return this.place(blocks);
    const rest = blocks.splice(nextQuestion(blocks));
    if (early(this.page) || blocks.slice(0, first).some(asks)) {
      this.place(blocks.splice(0, first));
      this.next();
    }
    this.place(blocks);
    if (rest.length) {
      this.next();
      this.place(rest);
    }
  }

  // Code with what is below it. If it has an answer, it begins a page.
  addCode(blocks) {
    const [input, ...outputs] = blocks;
    if (blocks.some(isAnswer) && early(this.page)) this.next();
    if (this.page.take(blocks)) return;
    if (this.page.thin && this.page.take([input])) {
      this.next();
      this.place(outputs);
    } else {
      this.place(blocks);
    }
  }

  // Put all blocks on this page, or on the next one; if that is too small, one by one.
  place(blocks) {
    if (this.page.take(blocks)) return;
    if (!this.page.bare) {
      this.next();
      if (this.page.take(blocks)) return;
    }
    blocks.forEach((block) => this.put(block));
  }

  // Put a block where it fits, or cut it, or let it scroll.
  put(block) {
    if (this.page.take([block])) return;
    const scrolls = block.matches("pre.output, .output:has(pre)") && this.page.room > 300;
    if (this.page.bare || scrolls) {
      const rest = cut(this.page, block);
      if (!rest) return scroll(this.page, block);
      this.next();
      this.put(rest);
    } else {
      const rest = this.page.room > 200 ? cut(this.page, block) : null;
      this.next();
      this.put(rest ?? block);
    }
  }
}

function fill(slide) {
  const layout = new Layout();
  for (const unit of [...slide.children]) layout.add(unit);
  return layout.pages;
}

// Where the next question begins, in a text with an answer.
function nextQuestion(blocks) {
  const after = blocks.findLastIndex(isAnswer) + 1;
  return blocks.slice(after).some(asks) ? after : blocks.length;
}

// Whether an answer on this page would stand beside its question.
function early(page) {
  return page.asks || (!page.answers && !page.bare);
}

// The last resort: a box that scrolls, in the room that the page has left.
function scroll(page, block) {
  const room = page.room;
  page.body.append(block);
  block.classList.add("scroll");
  block.style.maxHeight = `${Math.max(room, 120)}px`;
  block.style.boxSizing = "border-box";
  if (block.matches(".error")) block.scrollTop = block.scrollHeight; // the message is the last line
}

const isCode = (block) => block.matches("pre.input, .output");

// A page with very little goes to its neighbour, and code goes to the text above it: if both fit
// there, and no answer comes too early.
function merge(pages) {
  const stage = document.getElementById("stage");
  for (let n = 0; n + 1 < pages.length; ) {
    const [first, second] = [pages[n], pages[n + 1]];
    stage.replaceChildren(second.element);
    const little = second.thin;
    stage.replaceChildren(first.element);
    const told = second.answers ? early(first) && !first.bare : first.answers && second.asks;
    const { blocks } = second;
    const idea = blocks[0].matches(HEADING) && !first.bare;
    const code = (block) => isCode(block) && !asks(block); // a prediction's cell has no code to read
    const together = first.thin || little || (isCode(blocks[0]) && !first.blocks.some(code));
    if (together && !told && !idea && first.take(blocks, [SMALLEST])) {
      first.notes.push(...second.notes);
      pages.splice(n + 1, 1);
    } else {
      second.body.append(...blocks);
      n += 1;
    }
  }
}

// Write above each page what it belongs to: the section's heading, and the last one below it.
function name(pages, above) {
  for (const page of pages) {
    const line = page.element.firstChild;
    const first = page.body.firstElementChild;
    const begins = first.matches("h1, h2");
    if (!begins) {
      const below = first.matches("h3, h4") ? "" : above.part;
      line.textContent = [above.section, below].filter(Boolean).join(" › ");
    }
    for (const heading of page.body.querySelectorAll(HEADING)) {
      if (heading.matches("h1, h2")) [above.section, above.part] = [heading.textContent, ""];
      else above.part = heading.textContent;
    }
  }
}

function lay(cells, slides) {
  const stage = document.getElementById("stage");
  const above = { section: "", part: "" };
  for (const stack of [...cells.children]) {
    const pages = [];
    for (const page of [...stack.children].flatMap(fill)) {
      if (page.blocks.length) pages.push(page);
      else pages.at(-1)?.notes.push(...page.notes);
    }
    if (!pages.length) continue;
    merge(pages);
    name(pages, above);
    const section = document.createElement("section");
    for (const page of pages) {
      stage.replaceChildren(page.element);
      page.grow();
      page.element.append(...page.notes);
      section.append(page.element);
    }
    slides.append(section);
  }
  stage.remove();
  cells.remove();
}
