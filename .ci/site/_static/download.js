// The theme opens its links in a new page. A notebook is saved.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const link = document.querySelector("a.btn-download-notebook-button");
  if (link) link.download = link.href.split("/").pop();
});
