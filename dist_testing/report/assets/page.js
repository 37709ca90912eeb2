"use strict";
// Search, filters and keys. The page is complete without it, except for the table of all cases and whole logs.
(() => {
  const byId = (id) => document.getElementById(id);
  const BAD = new Set(["failed", "error", "unfinished"]);
  const ORDER = ["failed", "error", "unfinished", "xpassed", "xfailed", "skipped", "passed"];
  const WORDS = {error: "infrastructure", unfinished: "not finished", xpassed: "passed, unexpected", xfailed: "failed, expected"};
  const PHASES = new Set(["start", "import", "init", "setup", "call", "teardown", "destroy"]);
  const STEP = 200;
  let loading = null;

  function load() {
    loading = loading || (async () => {
      const packed = Uint8Array.from(atob(byId("data").textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const data = JSON.parse(await new Response(stream).text());
      const text = (index) => data.texts[index];
      data.list = data.cases.map((row, index) => ({
        index, name: text(row[0]), target: text(row[1]), status: text(row[2]), backend: text(row[3]), world: row[4],
        culprit: row[5], ms: row[6], message: text(row[7]), part: text(row[8]), cause: text(row[9]), anchor: text(row[10]),
        cached: text(row[11]), ranks: row[12],
      }));
      for (const one of data.list) one.words = `${one.name}\n${one.target}\n${one.message}\n${one.cause}`.toLowerCase();
      return data;
    })();
    return loading;
  }

  // Makes an element. Texts become text nodes, never HTML.
  function make(name, attributes, ...children) {
    const svg = ["svg", "rect", "text", "title"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function time(ms) {
    if (ms < 99.5) return `${Math.round(ms)} ms`;
    if (ms < 9995) return `${(ms / 1000).toFixed(2)} s`;
    if (ms < 99500) return `${Math.round(ms / 1000)} s`;
    return `${Math.floor(ms / 60000)} min ${Math.round(ms % 60000 / 1000)} s`;
  }

  function options(select, values) {
    for (const [value, label] of values) select.append(make("option", {value}, label));
    if (values.length < 2) select.parentElement.hidden = true;
  }

  function detail(data, one) {
    const box = make("div", {});
    const facts = [one.target, one.backend, one.part, one.cached, one.cause].filter(Boolean).join(" \u00b7 ");
    box.append(make("p", {class: "muted"}, facts));
    if (one.message) box.append(make("p", {}, one.message));
    if (one.anchor) box.append(make("p", {}, make("a", {href: `#${one.anchor}`}, "The whole failure")));
    const ranks = one.ranks.map((row) => ({rank: row[0], outcome: data.texts[row[1]], words: data.texts[row[2]],
      phases: data.texts[row[3]].split(","), first: row[4], spans: row.slice(5)}));
    const end = Math.max(1, ...ranks.map((rank) => rank.first + rank.spans.reduce((sum, span) => sum + span, 0)));
    if (ranks.length) {
      const picture = make("svg", {viewBox: `0 0 640 ${ranks.length * 18 + 14}`, class: "picture lanes", role: "img",
        "aria-label": `${ranks.length} ranks over ${time(end)}`});
      ranks.forEach((rank, row) => {
        const name = make("text", {x: 0, y: row * 18 + 13, class: "lane-name"}, `rank ${rank.rank}`);
        picture.append(name);
        let at = rank.first;
        rank.spans.forEach((span, index) => {
          const phase = PHASES.has(rank.phases[index]) ? rank.phases[index] : "call";
          const words = make("title", {}, `rank ${rank.rank}: ${rank.phases[index]}, ${time(span)}`);
          picture.append(make("rect", {x: 58 + 582 * Math.max(0, at) / end, y: row * 18 + 3, height: 12,
            width: Math.max(.6, 582 * span / end), class: `ph-${phase}`}, words));
          at += span;
        });
      });
      picture.append(make("text", {x: 640, y: ranks.length * 18 + 11, "text-anchor": "end", class: "axis"}, time(end)));
      box.append(make("figure", {}, picture));
      const told = ranks.filter((rank) => rank.words && rank.words !== "passed");
      for (const rank of told) box.append(make("p", {class: "muted"}, `rank ${rank.rank} ${rank.words}`));
    }
    return box;
  }

  function rowOf(data, one) {
    const bad = BAD.has(one.status);
    const open = make("button", {type: "button", "aria-expanded": "false"}, make("bdi", {class: "case-name"}, one.name));
    const cell = make("td", {}, open);
    if (one.message && one.status !== "passed") cell.append(make("bdi", {class: "message"}, one.message));
    const row = make("tr", {},
      make("td", {class: `word ${bad ? "bad" : one.status}`}, WORDS[one.status] || one.status), cell,
      make("td", {class: "number"}, one.world ? String(one.world) : "\u2013"),
      make("td", {class: "number"}, one.culprit === null ? "\u2013" : `rank ${one.culprit}`),
      make("td", {class: "number"}, time(one.ms)));
    open.addEventListener("click", () => {
      const next = row.nextElementSibling;
      const isOpen = next !== null && next.classList.contains("detail");
      open.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) next.remove();
      else row.after(make("tr", {class: "detail"}, make("td", {colspan: 5}, detail(data, one))));
    });
    return row;
  }

  async function start() {
    if (typeof DecompressionStream === "undefined") return;
    const data = await load();
    const count = (key) => [...data.list.reduce((found, one) => found.set(one[key], (found.get(one[key]) || 0) + 1), new Map())];
    const named = (key) => count(key).filter(([value]) => value !== "").sort((a, b) => a[0] < b[0] ? -1 : 1)
      .map(([value, many]) => [value, `${value} (${many})`]);
    const numbered = (key, word) => count(key).filter(([value]) => value !== null).sort((a, b) => a[0] - b[0])
      .map(([value, many]) => [String(value), `${word(value)} (${many})`]);
    options(byId("f-target"), named("target"));
    options(byId("f-backend"), named("backend"));
    options(byId("f-world"), numbered("world", (value) => value ? String(value) : "no ranks"));
    options(byId("f-culprit"), numbered("culprit", (value) => `rank ${value}`));
    byId("f-culprit").parentElement.hidden = !data.list.some((one) => one.culprit !== null);
    byId("without").hidden = true;
    byId("browser").hidden = false;
    let shown = STEP;
    const fields = ["f-status", "f-target", "f-backend", "f-world", "f-culprit", "f-order"].map(byId);

    function show() {
      const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      const [status, target, backend, world, culprit, order] = fields.map((field) => field.value);
      const found = data.list.filter((one) =>
        (status === "" || (status === "bad" ? BAD.has(one.status) : one.status === status)) &&
        (target === "" || one.target === target) && (backend === "" || one.backend === backend) &&
        (world === "" || String(one.world) === world) && (culprit === "" || String(one.culprit) === culprit) &&
        words.every((word) => one.words.includes(word)));
      if (order === "time") found.sort((a, b) => b.ms - a.ms);
      else if (order === "status") found.sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status) || a.index - b.index);
      byId("rows").replaceChildren(...found.slice(0, shown).map((one) => rowOf(data, one)));
      byId("found").textContent = found.length === data.list.length ? "" : `${found.length} of ${data.list.length} cases`;
      byId("more").hidden = found.length <= shown;
      byId("more").textContent = `Show ${Math.min(STEP, found.length - shown)} more of ${found.length}`;
    }

    const again = () => { shown = STEP; show(); };
    byId("search").addEventListener("input", again);
    for (const field of fields) field.addEventListener("change", again);
    byId("more").addEventListener("click", () => { shown += STEP; show(); });
    show();
  }

  async function openLog(log) {
    if (log.dataset.log === undefined || log.dataset.done !== undefined) return;
    log.dataset.done = "";
    const whole = (await load()).logs[Number(log.dataset.log)];
    // There was no room for it in the page.
    if (whole === undefined) return;
    log.querySelector("pre").textContent = whole;
    log.querySelector("p").hidden = true;
  }

  function reveal() {
    const id = location.hash.slice(1);
    const target = id && byId(id);
    if (target && target.tagName === "DETAILS") target.open = true;
  }

  function step(direction) {
    const every = [...document.querySelectorAll(".failure")];
    if (!every.length) return;
    const at = every.findIndex((one) => one.contains(document.activeElement));
    const next = every[Math.min(every.length - 1, Math.max(0, at < 0 ? (direction > 0 ? 0 : every.length - 1) : at + direction))];
    next.open = true;
    next.querySelector("summary").focus();
    next.scrollIntoView({block: "start"});
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && isTyping) event.target.blur();
    else if (isTyping) return;
    else if (event.key === "/" && !byId("browser").hidden) { event.preventDefault(); byId("search").focus(); }
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
  });
  for (const log of document.querySelectorAll(".log")) log.addEventListener("toggle", () => openLog(log));
  addEventListener("hashchange", reveal);
  reveal();
  start();
})();
