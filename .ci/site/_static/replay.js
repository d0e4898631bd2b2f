// Replay a recorded run: draw the boxes up to a moment, by hand or as time goes by.
// Without this script the page shows the whole run as a picture.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".replay").forEach(replay);
});

function replay(place) {
  const boxes = Array.from(place.querySelectorAll("[data-start]"));
  const line = place.querySelector(".now");
  const { left, scale, end, unit, busy: verb, seconds } = place.dataset;
  const last = Number(end);
  const bar = document.createElement("div");
  const play = button(bar, "Play");
  const step = button(bar, "Step");
  const slider = bar.appendChild(document.createElement("input"));
  Object.assign(slider, { type: "range", min: 0, max: last, step: "any", value: last });
  slider.setAttribute("aria-label", "moment of the run");
  const text = bar.appendChild(document.createElement("output"));
  place.append(bar);

  let running = null;
  let at = last; // the moment that is shown; a slider may round it

  function show(moment) {
    at = moment;
    for (const box of boxes) {
      const start = Number(box.dataset.start);
      const stop = Number(box.dataset.end);
      const done = Math.min(1, Math.max(0, (moment - start) / (stop - start)));
      const shape = box.querySelector("rect");
      shape.setAttribute("width", done * (stop - start) * scale);
      box.style.display = done > 0 ? "" : "none";
    }
    const x = Number(left) + moment * scale;
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    slider.value = moment;
    const busy = boxes.filter((b) => b.dataset.start <= moment && moment < b.dataset.end);
    text.textContent = `${moment.toFixed(1)} ${unit}, ${busy.length} ${verb}`;
  }

  function stop() {
    cancelAnimationFrame(running);
    running = null;
    play.textContent = "Play";
  }

  play.addEventListener("click", () => {
    if (running !== null) return stop();
    const from = at >= last ? 0 : at;
    const began = performance.now();
    play.textContent = "Pause";
    const frame = (now) => {
      const moment = Math.min(last, from + ((now - began) / 1000 / seconds) * last);
      show(moment);
      if (moment < last) running = requestAnimationFrame(frame);
      else stop();
    };
    running = requestAnimationFrame(frame);
  });

  step.addEventListener("click", () => {
    stop();
    const now = at >= last ? -1 : at;
    const ends = boxes.map((b) => Number(b.dataset.end)).filter((e) => e > now + 1e-6);
    show(Math.min(...ends));
  });

  slider.addEventListener("input", () => {
    stop();
    show(Number(slider.value));
  });
}

function button(bar, name) {
  const made = bar.appendChild(document.createElement("button"));
  made.type = "button";
  made.textContent = name;
  return made;
}
