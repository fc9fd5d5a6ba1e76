"use strict";
// Draws the report from the result in #result. Text goes in by textContent only: token text comes from strangers.
(() => {
  const R = JSON.parse(document.getElementById("result").textContent);
  const COLORS = ["#2f6fed", "#e8590c", "#0ca678", "#ae3ec9", "#f08c00", "#1098ad", "#e03131", "#5f3dc4"];
  const color = (i) => COLORS[((i % COLORS.length) + COLORS.length) % COLORS.length];
  const $ = (id) => document.getElementById(id);
  const el = (name, attributes, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children.map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
    return node;
  };
  const svg = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const num = (v) => {
    if (v === null || v === undefined) return "-";
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e4 || size < 1e-3) return v.toExponential(1);
    return size < 10 ? v.toFixed(4) : v.toPrecision(4);
  };
  const slotName = (s) => ({ "-1": "last", "-2": "embed" }[String(s.slot)] || String(s.slot));

  const tip = el("div", { class: "tip", role: "status" });
  document.body.append(tip);
  const hover = (node, text) => {
    node.addEventListener("mousemove", (e) => {
      tip.textContent = text;
      tip.style.display = "block";
      tip.style.left = Math.min(e.clientX + 14, innerWidth - 330) + "px";
      tip.style.top = e.clientY + 14 + "px";
    });
    node.addEventListener("mouseleave", () => (tip.style.display = "none"));
  };

  const table = (headers, rows, left) => {
    const head = el("tr", {}, ...headers.map((h, i) => el("th", left.includes(i) ? { class: "l" } : {}, h)));
    const body = rows.map((r) => el("tr", {}, ...r.map((c, i) => el("td", left.includes(i) ? { class: "l" } : {}, c))));
    return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
  };

  function slots() {
    const where = (name, b, by) => (b === null ? `${name} = ?` : by === "value" ? `${name} = ${b}` : `${name} (says ${b})`);
    const rows = [...R.slots, ...R.others].map((s) => [
      slotName(s), where(s.left, s.left_boundary, s.left_by), where(s.reference, s.reference_boundary, s.reference_by),
      num(s.cosine.p50), num(s.cosine_trimmed.p50), num(s.rel_l2.p50), num(s.rel_l2.p99), num(s.judged.match_limit),
      num(s.norm_left.p50), num(s.norm_reference.p50), num(s.norm_ratio.p50), num(s.max_abs), num(s.ulp_p50),
      s.slot < 0 ? "" : el("b", { class: s.verdict }, s.verdict),
    ]);
    $("slots").append(table(["slot", "left", "reference", "cosine", "trimmed", "rel L2", "p99", "limit", "norm L",
      "norm R", "ratio", "max abs", "ulp", "verdict"], rows, [1, 2, 13]));
  }

  // A heatmap of a matrix: dark = near. The best cell of every row is outlined.
  function heat(box, matrix, kind) {
    box.replaceChildren();
    const wide = Math.max(matrix.columns.length, 6), label = 210, cell = Math.min(120, Math.max(11, (1080 - label) / wide));
    const height = 24, top = 46, width = label + cell * matrix.columns.length + 8;
    const picture = svg("svg", { viewBox: `0 0 ${Math.max(width, 1088)} ${top + height * matrix.rows.length + 6}`, role: "img" });
    const every = Math.ceil(matrix.columns.length / Math.max(1, Math.floor((cell * matrix.columns.length) / 34)));
    matrix.columns.forEach((c, i) => {
      if (i % every === 0 || cell > 30)
        picture.append(svg("text", { x: label + cell * (i + 0.5), y: top - 8, "text-anchor": "middle" }, c.length * 6 > cell && c.length > 4 ? c.slice(0, Math.max(3, Math.floor(cell / 6) - 1)) + "…" : c));
    });
    matrix.rows.forEach((name, r) => {
      const line = matrix[kind][r];
      const known = line.filter((v) => v !== null);
      const best = kind === "rel_l2" ? Math.min(...known) : Math.max(...known);
      const text = svg("text", { x: label - 8, y: top + height * r + 16, "text-anchor": "end" }, name.length > 32 ? name.slice(0, 31) + "…" : name);
      picture.append(text);
      line.forEach((v, c) => {
        const near = v === null ? 0 : kind === "rel_l2" ? 1 / (1 + 6 * v) : Math.max(0, (v - 0.3) / 0.7) ** 3;
        const tile = svg("rect", { x: label + cell * c + 0.5, y: top + height * r + 0.5, width: cell - 1, height: height - 2, rx: 2,
          fill: v === null ? "transparent" : `hsl(${215 - 60 * near} 75% ${92 - 58 * near}%)`,
          stroke: v !== null && v === best ? "#e8590c" : "none", "stroke-width": 2, class: "tile" });
        hover(tile, `${name} against ${matrix.columns[c]}: ${kind === "rel_l2" ? "relative L2" : "cosine"} ${num(v)}`);
        picture.append(tile);
      });
    });
    box.append(picture);
  }

  function heatmaps() {
    for (const [id, matrix] of [["sweep", R.sweep], ["matrix", R.matrix]]) {
      const card = $(id);
      if (!matrix) { card.hidden = true; continue; }
      const box = card.querySelector(".plot"), buttons = [...card.querySelectorAll("button")];
      const draw = (kind) => {
        buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.kind === kind)));
        heat(box, matrix, kind);
      };
      buttons.forEach((b) => b.addEventListener("click", () => draw(b.dataset.kind)));
      draw("rel_l2");
    }
  }

  // One line per slot over positions; norms on a logarithmic axis, both sides.
  function chart(box, lines, log, low, high) {
    box.replaceChildren();
    const W = 1080, H = 250, left = 62, right = 12, top = 10, bottom = 30;
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    const points = lines.flatMap((l) => l.points).filter((p) => p[1] !== null && (!log || p[1] > 0));
    if (!points.length) { box.append(el("p", { class: "dim" }, "no rows")); return; }
    const f = log ? Math.log10 : (v) => v;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const [x, y] of points) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, f(y)); y1 = Math.max(y1, f(y)); }
    if (low !== undefined) { y0 = Math.min(y0, low); y1 = Math.max(y1, high); }
    if (y1 - y0 < 1e-9) { y0 -= 0.5; y1 += 0.5; }
    if (x1 === x0) x1 = x0 + 1;
    const X = (x) => left + ((x - x0) / (x1 - x0)) * (W - left - right);
    const Y = (y) => H - bottom - ((f(y) - y0) / (y1 - y0)) * (H - top - bottom);
    for (let i = 0; i <= 4; i++) {
      const v = y0 + ((y1 - y0) * i) / 4, at = H - bottom - ((H - top - bottom) * i) / 4;
      picture.append(svg("line", { x1: left, x2: W - right, y1: at, y2: at, class: "axis" }));
      picture.append(svg("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, num(log ? 10 ** v : v)));
    }
    for (let i = 0; i <= 8; i++) {
      const x = Math.round(x0 + ((x1 - x0) * i) / 8);
      picture.append(svg("text", { x: X(x), y: H - 10, "text-anchor": "middle" }, x));
    }
    for (const line of lines) {
      const good = line.points.filter((p) => p[1] !== null && (!log || p[1] > 0));
      picture.append(svg("path", { d: good.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join(""),
        fill: "none", stroke: line.color, "stroke-width": 1.6, "stroke-dasharray": line.dash || "none", opacity: 0.9 }));
      if (good.length <= 400)
        for (const p of good) {
          const dot = svg("circle", { cx: X(p[0]), cy: Y(p[1]), r: 3.5, fill: line.color, opacity: 0.55 });
          hover(dot, `${line.name}, position ${p[0]}, token ${p[2]}: ${num(p[1])}`);
          picture.append(dot);
        }
    }
    box.append(picture);
  }

  function series() {
    const card = $("series");
    if (!R.slots.length) { card.hidden = true; return; }
    const phases = [...new Set(R.slots.flatMap((s) => s.series.phase))];
    const slotBox = card.querySelector("[name=slot]"), phaseBox = card.querySelector("[name=phase]");
    slotBox.append(el("option", { value: "all" }, "all slots"), ...R.slots.map((s) => el("option", { value: s.slot }, `slot ${s.slot}`)));
    phaseBox.append(el("option", { value: "all" }, "all phases"), ...phases.map((p) => el("option", { value: p }, p)));
    card.querySelector(".legend").append(...R.slots.map((s) => el("span", {}, el("i", { style: `background:${color(s.slot)}` }), `slot ${s.slot}`)));
    const draw = () => {
      const chosen = R.slots.filter((s) => slotBox.value === "all" || String(s.slot) === slotBox.value);
      const pick = (s, field) => s.series.position.map((p, i) => [p, s.series[field][i], s.series.token_id[i]])
        .filter((_, i) => phaseBox.value === "all" || s.series.phase[i] === phaseBox.value);
      const lines = (field) => chosen.map((s) => ({ name: `slot ${s.slot}`, color: color(s.slot), points: pick(s, field) }));
      chart($("cosine-plot"), lines("cosine"), false, 0.9, 1);
      chart($("rel-plot"), lines("rel_l2"), true);
      const both = chosen.flatMap((s) => [
        { name: `slot ${s.slot} left`, color: color(s.slot), points: pick(s, "norm_left") },
        { name: `slot ${s.slot} reference`, color: color(s.slot), points: pick(s, "norm_reference"), dash: "5 4" }]);
      chart($("norm-plot"), both, true);
    };
    slotBox.addEventListener("change", draw);
    phaseBox.addEventListener("change", draw);
    draw();
  }

  function worst() {
    const card = $("worst"), all = R.slots.flatMap((s) => s.worst.map((w) => ({ slot: s.slot, ...w })));
    if (!all.length) { card.hidden = true; return; }
    const slotBox = card.querySelector("[name=slot]"), phaseBox = card.querySelector("[name=phase]"), find = card.querySelector("input");
    slotBox.append(el("option", { value: "all" }, "all slots"), ...[...new Set(all.map((w) => w.slot))].map((s) => el("option", { value: s }, `slot ${s}`)));
    phaseBox.append(el("option", { value: "all" }, "all phases"), ...[...new Set(all.map((w) => w.phase))].map((p) => el("option", { value: p }, p)));
    const draw = () => {
      const text = find.value.toLowerCase();
      const rows = all.filter((w) => (slotBox.value === "all" || String(w.slot) === slotBox.value)
        && (phaseBox.value === "all" || w.phase === phaseBox.value)
        && (!text || String(w.token ?? "").toLowerCase().includes(text) || String(w.position) === text || String(w.token_id) === text));
      card.querySelector(".rows").replaceChildren(table(["slot", "position", "token id", "token", "phase", "round", "cosine", "rel L2"],
        rows.map((w) => [w.slot, w.position, w.token_id, w.token === null ? "" : el("code", {}, JSON.stringify(w.token)), w.phase, w.round, num(w.cosine), num(w.rel_l2)]), [3, 4]));
      card.querySelector(".count").textContent = `${rows.length} of ${all.length} rows`;
    };
    for (const box of [slotBox, phaseBox, find]) box.addEventListener("input", draw);
    draw();
  }

  function groups() {
    const rows = R.slots.flatMap((s) => s.groups.map((g) => [s.slot, g.name, g.rows, num(g.cosine_p50), num(g.rel_l2_p50), num(g.norm_ratio_p50)]));
    if (!rows.length) { $("groups").hidden = true; return; }
    $("groups").append(el("details", {}, el("summary", {}, "By phase, position and round"), table(["slot", "rows of", "count", "cosine", "rel L2", "norm ratio"], rows, [1])));
  }

  if (R.slots.length) slots(); else $("slots").hidden = true;
  heatmaps(); series(); worst(); groups();
  document.documentElement.dataset.drawn = "yes";
})();
