"use strict";
// Search and keys. The page is complete without them.
(() => {
  const byId = (id) => document.getElementById(id);
  const search = byId("search");
  const rows = [...document.querySelectorAll("#rows tr")].map((row) => ({row, words: row.textContent.toLowerCase()}));
  byId("controls").hidden = false;
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const {row, words} of rows) {
      row.hidden = !wanted.every((word) => words.includes(word));
      count += row.hidden ? 0 : 1;
    }
    byId("found").textContent = `${count} of ${rows.length} cases`;
  });

  function step(direction) {
    const every = [...document.querySelectorAll(".failure")];
    const at = every.findIndex((one) => one.contains(document.activeElement));
    const next = every[Math.max(0, Math.min(every.length - 1, at + direction))];
    if (!next) return;
    next.open = true;
    next.querySelector("summary").focus();
    next.scrollIntoView({block: "start"});
  }

  function reveal() {
    const target = location.hash && byId(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target === search) search.blur();
    else if (event.target === search) return;
    else if (event.key === "/") { event.preventDefault(); search.focus(); }
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
  });
  addEventListener("hashchange", reveal);
  reveal();
})();
