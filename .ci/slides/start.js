"use strict";
lay(document.getElementById("cells"), document.querySelector(".reveal .slides"));
Reveal.initialize({
  width: 1280,
  height: 720,
  margin: 0,
  minScale: 0.1,
  maxScale: 4,
  center: false,
  display: "flex",
  hash: true,
  transition: "none",
  slideNumber: "c/t",
  controls: false,
  scrollActivationWidth: null, // a phone shows slides too
  plugins: [RevealNotes],
}).then(() => {
  document.documentElement.dataset.ready = "yes";
});
