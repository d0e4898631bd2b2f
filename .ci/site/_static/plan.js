// "Plan your cluster": shows the planned case that the controls choose, from the page's own data.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector(".planner");
  if (place) planner(place, JSON.parse(document.querySelector("script.plans").textContent));
});

const PART = {
  computing: ["computing", "#0072b2"],
  host: ["waiting for the host to launch kernels", "#999999"],
  tp: ["messages of tensor parallelism", "#e69f00"],
  pp: ["messages between pipeline stages", "#56b4e9"],
  bubble: ["pipeline bubble", "#d55e00"],
  dp: ["gradients and weights between replicas", "#009e73"],
  optimizer: ["optimizer", "#cc79a7"],
};
const AGAIN = {
  none: "nothing is recomputed",
  selective: "the attention's core is recomputed",
  full: "every block is recomputed",
};
const three = (x) => Number(x.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
const million = (tokens) => `${three(tokens / 1e6)} million tokens`;

function planner(place, data) {
  const form = place.querySelector("form");
  const { model, machine, gpus, tokens, link, plan } = Object.fromEntries(
    [...place.querySelectorAll("select, input")].map((control) => [control.id, control])
  );
  options(model, data.model, (one) => one.title);
  model.selectedIndex = 1;
  options(machine, data.machine, (_, name) => `8 ${name}s each`);
  slide(gpus, data.gpus.length, 2);
  slide(tokens, data.tokens.length, 0);
  slide(link, data.links.length, data.links.indexOf(1));
  let rows = []; // the front of this case, the smallest plan first

  function choose() {
    const values = { gpus: data.gpus[gpus.value], tokens: data.tokens[tokens.value] };
    say(gpus, `${values.gpus} GPUs`);
    say(tokens, million(values.tokens));
    const alone = values.gpus === Math.min(...data.gpus); // one machine uses no network
    const times = data.links[link.value];
    const speed = three(times * data.machine[machine.value].network * 8e-9);
    const own = times === 1 ? ", the machine's own" : "";
    say(link, alone ? "one machine needs none" : `${speed} Gbit/s for each GPU${own}`);
    link.disabled = alone;
    const key = [model.value, machine.value, values.gpus, values.tokens, ...(alone ? [] : [times])];
    rows = data.fronts[key.join(" ")].map(read).reverse();
    const fit = rows.filter((row) => row.gigabytes <= limit());
    slide(plan, rows.length, Math.max(0, fit.length - 1));
    show();
  }

  const limit = () => (data.fits * data.machine[machine.value].memory) / 1e9; // gigabytes

  function show() {
    const row = rows[plan.value];
    const words = `${title(row)}: ${three(row.seconds)} s, ${three(row.gigabytes)} GB`;
    say(plan, words);
    const { peak } = data.machine[machine.value];
    const { parameters } = data.model[model.value];
    const [n, batch] = [data.gpus[gpus.value], data.tokens[tokens.value]];
    const share = (100 * 6 * parameters * batch) / (row.seconds * n * peak);
    const fits = row.gigabytes <= limit();
    const smallest = rows.every((other) => other.gigabytes > limit());
    place.querySelector(".chosen").textContent =
      (smallest ? "No plan fits into these GPUs. The smallest is " : fits ? "" : "Too large: ") +
      `${words} on the fullest GPU. A step trains ${million(batch)}, ` +
      `${three(batch / row.seconds / n)} a second on each GPU: ${three(share)} % of its peak. ` +
      `${AGAIN[row.recompute][0].toUpperCase()}${AGAIN[row.recompute].slice(1)}.`;
    front(place.querySelector(".front"), rows, row, limit(), (number) => {
      plan.value = number;
      show();
    });
    parts(place, row);
    const batches = batch / data.model[model.value].context / row.dp / row.micro;
    timeline(place, row, batches);
  }

  function read([pp, dp, tp, micro, chunks, zero, recompute, gigabytes, seconds, thousandths]) {
    const parts = data.parts.map((name, k) => [name, thousandths[k] / 1000]);
    const again = data.recompute[recompute];
    return { pp, dp, tp, micro, chunks, zero, recompute: again, gigabytes, seconds, parts };
  }

  form.addEventListener("input", choose);
  form.addEventListener("submit", (event) => event.preventDefault());
  plan.addEventListener("input", show);
  let wide = 0; // the pictures are as wide as the page
  new ResizeObserver(() => {
    if (wide !== place.clientWidth) requestAnimationFrame(show);
    wide = place.clientWidth;
  }).observe(place);
  choose();
}

function options(select, named, text) {
  for (const [name, one] of Object.entries(named)) select.add(new Option(text(one, name), name));
}

function slide(range, count, value) {
  Object.assign(range, { min: 0, max: count - 1, step: 1, value, disabled: count < 2 });
}

function say(range, text) {
  range.parentElement.querySelector("output").textContent = text;
  range.setAttribute("aria-valuetext", text);
}

function title(row) {
  const words = ["pp", "dp", "tp"].filter((a) => row[a] > 1).map((a) => `${a} = ${row[a]}`);
  words.push(`micro-batches of ${row.micro}`);
  if (row.chunks > 1) words.push(`${row.chunks} chunks`);
  if (row.zero) words.push(`ZeRO-${row.zero}`);
  return words.join(", ");
}

function draw(inside, tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return inside.appendChild(made);
}

function picture(box, tall, words) {
  const wide = box.clientWidth;
  box.replaceChildren();
  const look = { width: wide, height: tall, role: "img", "aria-label": words };
  return [draw(box, "svg", { ...look, "font-size": 14, fill: "currentColor" }), wide];
}

// Both axes are logarithmic; a label is a digit times a power of ten.
function front(box, rows, chosen, limit, pick) {
  const tall = 320, left = 64, below = 44;
  const [svg, wide] = picture(box, tall, `${rows.length} plans; chosen: ${title(chosen)}`);
  const axis = (values, from, to) => {
    const [low, high] = [Math.min(...values) / 1.15, Math.max(...values) * 1.15].map(Math.log);
    const at = (x) => from + ((Math.log(x) - low) / (high - low)) * (to - from);
    const ticks = (digits) =>
      [-2, -1, 0, 1, 2, 3, 4, 5].flatMap((power) => digits.map((d) => Number(`${d}e${power}`)))
        .filter((x) => Math.log(x) > low && Math.log(x) < high);
    const few = ticks([1, 2, 5]);
    return [at, few.length > 2 ? few : ticks([1, 1.5, 2, 3, 4, 5, 6, 8])];
  };
  const [x, xs] = axis([...rows.map((row) => row.gigabytes), limit], left, wide - 8);
  const [y, ys] = axis(rows.map((row) => row.seconds), tall - below, 10);
  const edge = x(limit);
  const grey = { fill: "#888", "fill-opacity": 0.25 };
  draw(svg, "rect", { x: edge, y: 0, width: wide - edge, height: tall - below, ...grey });
  for (const gb of xs)
    draw(svg, "text", { x: x(gb), y: tall - below + 18, "text-anchor": "middle" }, gb);
  for (const s of ys) {
    draw(svg, "line", { x1: left, x2: wide, y1: y(s), y2: y(s), stroke: "#888", "stroke-opacity": 0.4 });
    draw(svg, "text", { x: left - 6, y: y(s) + 5, "text-anchor": "end" }, `${s} s`);
  }
  draw(svg, "text", { x: wide - 8, y: tall - 6, "text-anchor": "end" }, "GB of the fullest GPU");
  rows.forEach((row, number) => {
    const place = { cx: x(row.gigabytes), cy: y(row.seconds), r: row === chosen ? 9 : 5 };
    const dot = draw(svg, "circle", { ...place, fill: row === chosen ? "#d55e00" : "#0072b2" });
    draw(dot, "title", {}, `${title(row)}: ${three(row.seconds)} s`);
    dot.addEventListener("click", () => pick(number));
  });
}

function parts(place, row) {
  const words = row.parts.map(([name, share]) => `${PART[name][0]} ${three(100 * share)} %`);
  const [svg, wide] = picture(place.querySelector(".bar"), 36, words.join(", "));
  const whole = row.parts.reduce((sum, [, share]) => sum + share, 0);
  let x = 0;
  place.querySelector(".parts tbody").replaceChildren(
    ...row.parts.map(([name, share]) => {
      const [text, color] = PART[name];
      const width = (share / whole) * wide;
      draw(svg, "rect", { x, y: 2, width, height: 32, fill: color });
      x += width;
      const line = document.createElement("tr");
      const swatch = document.createElement("span");
      Object.assign(swatch.style, { color, marginRight: ".4em" });
      swatch.textContent = "■";
      line.insertCell().append(swatch, text);
      line.insertCell().textContent = three(share * row.seconds);
      line.insertCell().textContent = (100 * share).toFixed(1);
      return line;
    })
  );
}

// 1F1B with a flush; with v chunks, interleaved: what each rank does, in order. Ranks take p
// micro-batches through a chunk, then the same p through the next one.
function orders(p, m, v) {
  const every = (chunks) => {
    const list = [];
    for (let first = 0; first < m; first += p)
      for (const chunk of chunks)
        for (let k = first; k < Math.min(first + p, m); k++) list.push({ chunk, micro: k });
    return list;
  };
  const chunks = [...Array(v).keys()];
  return Array.from({ length: p }, (_, rank) => {
    const of = (kind) => ({ chunk, micro }) => ({ kind, micro, stage: chunk * p + rank });
    const forwards = every(chunks).map(of("F"));
    const backwards = every([...chunks].reverse()).map(of("B"));
    const below = p - 1 - rank;
    const warm = Math.min(v > 1 ? (v - 1) * p + 2 * below : below, m * v);
    const turns = forwards.slice(warm).flatMap((one, k) => [one, backwards[k]]);
    return [...forwards.slice(0, warm), ...turns, ...backwards.slice(m * v - warm)];
  });
}

// When each computation runs, as early as its rank and its input allow, without messages: a list
// of {rank, start, stop, kind, micro, stage}. `forward` and `backward` are of all chunks of a rank.
function pipeline(p, m, v, forward, backward) {
  const ends = {}, boxes = [], seconds = { F: forward / v, B: backward / v };
  const ranks = orders(p, m, v).map((order, rank) => ({ rank, order, next: 0, free: 0 }));
  const source = ({ kind, micro, stage }) =>
    kind === "F" ? (stage ? `F${micro} ${stage - 1}` : null)
      : stage === p * v - 1 ? `F${micro} ${stage}` : `B${micro} ${stage + 1}`;
  while (boxes.length < 2 * m * v * p)
    for (const own of ranks)
      for (; own.next < own.order.length; own.next++) {
        const one = own.order[own.next], needs = source(one);
        if (needs && !(needs in ends)) break;
        const start = Math.max(own.free, needs ? ends[needs] : 0);
        own.free = ends[`${one.kind}${one.micro} ${one.stage}`] = start + seconds[one.kind];
        boxes.push({ ...one, rank: own.rank, start, stop: own.free });
      }
  return boxes;
}

// The pipeline's schedule. Of many micro-batches it shows the first ones: more look alike.
function timeline(place, { pp, chunks, recompute, parts, seconds }, batches) {
  const m = Math.min(batches, Math.max(2 * pp, 16));
  const share = Object.fromEntries(parts);
  const each = ((share.computing + share.host + share.tp) * seconds) / batches;
  const forward = each / (recompute === "full" ? 4 : 3);
  const boxes = pipeline(pp, m, chunks, forward, each - forward);
  const end = Math.max(...boxes.map(({ stop }) => stop));
  const words = `${three(batches)} micro-batches go through ` +
    `${pp === 1 ? "one rank" : `${pp} ranks${chunks > 1 ? `, with ${chunks} chunks each` : ""}`}`;
  place.querySelector(".batches").textContent =
    `${words}${m < batches ? `; the picture has ${m} of them` : ""}. Forwards are blue, backwards ` +
    `green. ${pp > 1 ? "The gaps are the bubble. " : ""}The picture takes ${three(end)} s.`;
  const tall = Math.max(4, Math.min(28, Math.floor(420 / pp)));
  const [svg, wide] = picture(place.querySelector(".timeline"), tall * pp + 4, words);
  const left = tall > 15 ? 64 : 0, scale = (wide - left) / end;
  for (const kind of ["F", "B"]) {
    const d = boxes.filter((box) => box.kind === kind).map(({ rank, start, stop }) =>
      `M${(left + start * scale).toFixed(2)} ${rank * tall + 1}h${((stop - start) * scale).toFixed(2)}` +
      `v${tall - 2}H${(left + start * scale).toFixed(2)}z`);
    const lines = { stroke: "white", "stroke-width": (each * scale) / chunks > 12 ? 1 : 0 };
    draw(svg, "path", { d: d.join(""), fill: kind === "F" ? "#0072b2" : "#009e73", ...lines });
  }
  for (let rank = 0; rank < pp && left; rank++)
    draw(svg, "text", { x: 0, y: rank * tall + tall / 2 + 5 }, `rank ${rank}`);
  if ((forward * scale) / chunks > 24 && left)
    for (const { rank, start, micro } of boxes) {
      const at = { x: left + start * scale + 4, y: rank * tall + tall / 2 + 5, fill: "white" };
      draw(svg, "text", at, micro);
    }
}
