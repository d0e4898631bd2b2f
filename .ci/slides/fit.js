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

// Lay one slide of the notebook out. Return its pages.
function fill(slide) {
  const pages = [new Page()];
  const page = () => pages.at(-1);
  const next = () => pages.push(new Page());

  // Put a block where it fits, or cut it, or let it scroll.
  function put(block) {
    if (page().take([block])) return;
    if (!page().bare && !scrollsHere(block)) {
      const rest = page().room > 200 ? cut(page(), block) : null;
      next();
      return put(rest ?? block);
    }
    const rest = cut(page(), block);
    if (rest) {
      next();
      return put(rest);
    }
    scroll(page(), block);
  }

  function scrollsHere(block) {
    return block.matches("pre.output, .output:has(pre)") && page().room > 300;
  }

  for (const unit of [...slide.children]) {
    if (unit.matches("aside")) {
      page().notes.push(unit);
      continue;
    }
    const blocks = blocksOf(unit);
    const answers = blocks.some(isAnswer);
    if (answers && early(page())) {
      // code and its answer begin a page; below a text, only the answer does
      const first = blocks.findIndex(isAnswer);
      if (unit.matches(".text")) blocks.splice(0, first).forEach(put);
      next();
    }
    const question = nextQuestion(unit, blocks);
    const later = blocks.splice(question);
    if (page().take(blocks)) {
      if (later.length) next();
      later.forEach(put);
      continue;
    }
    if (!page().bare) {
      if (unit.matches(".code") && page().thin && page().take(blocks.slice(0, 1))) {
        next();
        blocks.slice(1).forEach(put);
        continue;
      }
      next();
      if (page().take(blocks)) continue;
    }
    blocks.forEach(put);
  }
  return pages.filter((one) => one.blocks.length);
}

// Where the next question begins in a text with an answer: it gets a page of its own.
function nextQuestion(unit, blocks) {
  const after = blocks.findLastIndex(isAnswer) + 1;
  return unit.matches(".text") && after && blocks.slice(after).some(asks) ? after : blocks.length;
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

// A page with very little goes to its neighbour, if both fit there and no answer comes too early.
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
    if ((first.thin || little) && !told && !idea && first.take(blocks, [SMALLEST, 1, 0.9])) {
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
    const pages = [...stack.children].flatMap(fill);
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
