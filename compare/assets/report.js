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
  const titled = (s) => (s.slot >= 0 ? `slot ${s.slot}` : slotName(s));
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

  const table = (headers, rows, left, hints = {}) => {
    const head = el("tr", {}, ...headers.map((h, i) =>
      el("th", { ...(left.includes(i) ? { class: "l" } : {}), ...(hints[h] ? { title: hints[h] } : {}) }, h)));
    const body = rows.map((r) => el("tr", {}, ...r.map((c, i) => el("td", left.includes(i) ? { class: "l" } : {}, c))));
    return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
  };

  const everything = [...R.slots, ...R.others];
  const cos = (v) => (v === null || v === undefined ? "-" : v >= 0.9995 && v < 0.9999995 ? v.toFixed(6) : v.toFixed(4));

  function slots() {
    const where = (name, b, by) => (b === null ? `${name} = ?` : by === "value" ? `${name} = ${b}` : `${name} (says ${b})`);
    const rows = everything.map((s) => [
      slotName(s), where(s.left, s.left_boundary, s.left_by), where(s.reference, s.reference_boundary, s.reference_by),
      cos(s.cosine.p50), cos(s.cosine_trimmed.p50), num(s.rel_l2.p50), num(s.judged.match_limit), num(s.judged.noise_limit),
      num(s.norm_left.p50), num(s.norm_reference.p50), num(s.norm_ratio.p50), el("b", { class: s.verdict }, s.verdict),
    ]);
    const more = everything.map((s) => [
      slotName(s), s.rows, cos(s.cosine.p01), cos(s.cosine.min), cos(s.cosine_trimmed.p01), s.trimmed_channels, num(s.rel_l2.p99),
      num(s.rel_l2.max), `${num(s.norm_ratio.p01)}..${num(s.norm_ratio.p99)}`, num(s.max_abs), num(s.ulp_p50), num(s.ulp_p99),
      s.nan_rows, s.zero_rows, s.constant_rows, s.duplicate_rows, s.massive_rows, s.outlier_rows,
    ]);
    const hints = {
      trimmed: "cosine without massive channels", "match to": "the largest relative L2 that is a match",
      "noise to": "the largest one that is noise", ulp: "distance in bf16 steps, median over channels",
    };
    $("slots").append(
      table(["slot", "left", "reference", "cosine", "trimmed", "rel L2", "match to", "noise to", "norm L", "norm R", "ratio",
        "verdict"], rows, [1, 2, 11], hints),
      el("details", {}, el("summary", {}, "All measures"),
        table(["slot", "rows", "cosine p01", "min", "trimmed p01", "channels left out", "rel L2 p99", "max", "ratio p01..p99",
          "max abs", "ulp p50", "ulp p99", "not finite", "zero", "one value", "repeated", "massive", "odd"], more, [])));
  }

  const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const shade = (near) => (dark() ? `hsl(${215 - 45 * near} ${40 + 45 * near}% ${19 + 49 * near}%)`
    : `hsl(${215 - 45 * near} ${45 + 30 * near}% ${94 - 60 * near}%)`);
  const nearness = (v, kind) => (kind === "rel_l2" ? 1 / (1 + 6 * v) : Math.max(0, (v - 0.3) / 0.7) ** 3);
  const cut = (text, width) => {
    const most = Math.max(4, Math.floor(width / 6.4));
    const tail = Math.min(4, most - 2); // names differ at their end: hidden_states[1]
    return text.length <= most ? text : text.slice(0, most - tail - 1) + "…" + text.slice(-tail);
  };

  // A heatmap of a matrix: deep colour = near. The best cell of every row is outlined.
  function heat(box, matrix, kind) {
    box.replaceChildren();
    const full = Math.max(300, box.clientWidth || 1080), label = Math.min(210, Math.round(full * 0.3));
    const cell = Math.min(120, Math.max(9, (full - label - 8) / matrix.columns.length));
    const height = 24, top = 30, width = Math.ceil(label + cell * matrix.columns.length + 8);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${top + height * matrix.rows.length + 6}`, width, role: "img",
      style: `width:${width}px` });
    const every = Math.max(1, Math.ceil(30 / cell));
    matrix.columns.forEach((c, i) => {
      if (i % every === 0)
        picture.append(svg("text", { x: label + cell * (i + 0.5), y: top - 8, "text-anchor": "middle" }, cut(c, cell * every)));
    });
    matrix.rows.forEach((name, r) => {
      const line = matrix[kind][r];
      const known = line.filter((v) => v !== null);
      const best = kind === "rel_l2" ? Math.min(...known) : Math.max(...known);
      const text = svg("text", { x: label - 8, y: top + height * r + 16, "text-anchor": "end" }, cut(name, label - 12));
      hover(text, name);
      picture.append(text);
      line.forEach((v, c) => {
        const tile = svg("rect", { x: label + cell * c + 0.5, y: top + height * r + 0.5, width: Math.max(1, cell - 1),
          height: height - 2, rx: 2, fill: v === null ? "transparent" : shade(nearness(v, kind)),
          stroke: v !== null && v === best ? "#e8590c" : "none", "stroke-width": 2, class: "tile" });
        hover(tile, `${name} against ${matrix.columns[c]}: ${kind === "rel_l2" ? "relative L2" : "cosine"} ${num(v)}`);
        picture.append(tile);
      });
    });
    box.append(picture);
  }

  // Everything that depends on the width or the colours is drawn again when these change.
  const redraws = [];
  const drawn = (draw) => { redraws.push(draw); draw(); };
  let waiting = 0, lastWidth = innerWidth;
  const again = () => redraws.forEach((draw) => draw());
  addEventListener("resize", () => {
    if (innerWidth === lastWidth) return;
    lastWidth = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(again);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  function heatmaps() {
    for (const [id, matrix] of [["sweep", R.sweep], ["matrix", R.matrix]]) {
      const card = $(id);
      if (!matrix) { card.hidden = true; continue; }
      const box = card.querySelector(".plot"), buttons = [...card.querySelectorAll("button")];
      let kind = "rel_l2";
      const draw = () => {
        buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.kind === kind)));
        card.querySelector(".scale").replaceChildren(...[1, 0.75, 0.5, 0.25, 0].map((near) =>
          el("i", { style: `background:${shade(near)}` })));
        heat(box, matrix, kind);
      };
      buttons.forEach((b) => b.addEventListener("click", () => { kind = b.dataset.kind; draw(); }));
      drawn(draw);
    }
  }

  // One line per slot over positions; norms on a logarithmic axis, both sides. limits: horizontal lines.
  function chart(box, lines, log, low, high, limits) {
    box.replaceChildren();
    const W = Math.max(300, box.clientWidth || 1080), H = W < 600 ? 190 : 240, left = 58, right = 12, top = 10, bottom = 28;
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    const points = lines.flatMap((l) => l.points).filter((p) => p[1] !== null && (!log || p[1] > 0));
    if (!points.length) {
      box.append(el("p", { class: "dim" }, log && lines.some((l) => l.points.length) ? "no difference at all" : "no rows"));
      return;
    }
    const f = log ? Math.log10 : (v) => v;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const [x, y] of points) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, f(y)); y1 = Math.max(y1, f(y)); }
    if (low !== undefined) { y0 = Math.min(y0, low); y1 = Math.max(y1, high); }
    for (const limit of limits || []) if (limit.at > 0) { y0 = Math.min(y0, f(limit.at)); y1 = Math.max(y1, f(limit.at)); }
    if (y1 - y0 < 1e-9) { y0 -= 0.5; y1 += 0.5; }
    if (x1 === x0) x1 = x0 + 1;
    const X = (x) => left + ((x - x0) / (x1 - x0)) * (W - left - right);
    const Y = (y) => H - bottom - ((f(y) - y0) / (y1 - y0)) * (H - top - bottom);
    for (let i = 0; i <= 4; i++) {
      const v = y0 + ((y1 - y0) * i) / 4, at = H - bottom - ((H - top - bottom) * i) / 4;
      picture.append(svg("line", { x1: left, x2: W - right, y1: at, y2: at, class: "axis" }));
      picture.append(svg("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, num(log ? 10 ** v : v)));
    }
    const marks = new Set();
    for (let i = 0, n = W < 600 ? 4 : 8; i <= n; i++) marks.add(Math.round(x0 + ((x1 - x0) * i) / n));
    for (const x of marks) picture.append(svg("text", { x: X(x), y: H - 8, "text-anchor": "middle" }, x));
    for (const limit of limits || []) {
      if (limit.at <= 0) continue;
      const line = svg("line", { x1: left, x2: W - right, y1: Y(limit.at), y2: Y(limit.at), class: "limit" });
      hover(line, `${limit.name}: ${num(limit.at)}`);
      picture.append(line, svg("text", { x: W - right - 4, y: Y(limit.at) - 4, "text-anchor": "end" }, limit.name));
    }
    for (const line of lines) {
      const good = line.points.filter((p) => p[1] !== null && (!log || p[1] > 0));
      picture.append(svg("path", { d: good.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join(""),
        fill: "none", stroke: line.color, "stroke-width": 1.6, "stroke-dasharray": line.dash || "none", opacity: 0.9 }));
      if (good.length <= 400)
        for (const p of good) {
          const dot = svg("circle", { cx: X(p[0]), cy: Y(p[1]), r: W < 600 ? 2.5 : 3.2, fill: line.color, opacity: 0.55 });
          hover(dot, `${line.name}, position ${p[0]}, token ${p[2]}: ${num(p[1])}`);
          picture.append(dot);
        }
    }
    box.append(picture);
  }

  function series() {
    const card = $("series");
    if (!everything.length) { card.hidden = true; return; }
    const phases = [...new Set(everything.flatMap((s) => s.series.phase))];
    const trimmed = card.querySelector("[name=trimmed]");
    const slotBox = card.querySelector("[name=slot]"), phaseBox = card.querySelector("[name=phase]");
    slotBox.append(el("option", { value: "all" }, "all slots"), ...everything.map((s) => el("option", { value: s.slot }, titled(s))));
    phaseBox.append(el("option", { value: "all" }, "all phases"), ...phases.map((p) => el("option", { value: p }, p)));
    const draw = () => {
      const chosen = everything.filter((s) => (slotBox.value === "all" ? s.slot >= 0 || !R.slots.length : String(s.slot) === slotBox.value));
      const pick = (s, field) => s.series.position.map((p, i) => [p, s.series[field][i], s.series.token_id[i]])
        .filter((_, i) => phaseBox.value === "all" || s.series.phase[i] === phaseBox.value);
      const lines = (field) => chosen.map((s) => ({ name: titled(s), color: color(s.slot), points: pick(s, field) }));
      card.querySelector(".legend").replaceChildren(
        ...chosen.map((s) => el("span", {}, el("i", { style: `background:${color(s.slot)}` }), titled(s))));
      const one = chosen.length === 1 ? chosen[0].judged : null;
      chart($("cosine-plot"), lines(trimmed.checked ? "cosine_trimmed" : "cosine"), false, 0.9, 1);
      chart($("rel-plot"), lines("rel_l2"), true, undefined, undefined,
        one ? [{ at: one.match_limit, name: "match to" }, { at: one.noise_limit, name: "noise to" }] : []);
      const both = chosen.flatMap((s) => [
        { name: `${titled(s)} left`, color: color(s.slot), points: pick(s, "norm_left") },
        { name: `${titled(s)} reference`, color: color(s.slot), points: pick(s, "norm_reference"), dash: "5 4" }]);
      chart($("norm-plot"), both, true);
    };
    for (const control of [slotBox, phaseBox, trimmed]) control.addEventListener("change", draw);
    drawn(draw);
  }

  function worst() {
    const card = $("worst"), all = everything.flatMap((s) => s.worst.map((w) => ({ slot: s.slot, ...w })));
    if (!all.length) { card.hidden = true; return; }
    const slotBox = card.querySelector("[name=slot]"), phaseBox = card.querySelector("[name=phase]"), find = card.querySelector("input");
    slotBox.append(el("option", { value: "all" }, "all slots"), ...[...new Set(all.map((w) => w.slot))].map((s) => el("option", { value: s }, titled({ slot: s }))));
    phaseBox.append(el("option", { value: "all" }, "all phases"), ...[...new Set(all.map((w) => w.phase))].map((p) => el("option", { value: p }, p)));
    const draw = () => {
      const text = find.value.toLowerCase();
      const rows = all.filter((w) => (slotBox.value === "all" || String(w.slot) === slotBox.value)
        && (phaseBox.value === "all" || w.phase === phaseBox.value)
        && (!text || String(w.token ?? "").toLowerCase().includes(text) || String(w.position) === text || String(w.token_id) === text));
      card.querySelector(".rows").replaceChildren(table(
        ["slot", "position", "token id", "token", "phase", "round", "cosine", "trimmed", "rel L2", "ratio"],
        rows.map((w) => [slotName(w), w.position, w.token_id, w.token === null ? "" : el("code", {}, JSON.stringify(w.token)),
          w.phase, w.round < 0 ? "" : w.round, cos(w.cosine), cos(w.cosine_trimmed), num(w.rel_l2), num(w.norm_ratio)]), [3, 4]));
      card.querySelector(".count").textContent = `${rows.length} of ${all.length} rows`;
    };
    for (const box of [slotBox, phaseBox, find]) box.addEventListener("input", draw);
    draw();
  }

  function groups() {
    const rows = everything.flatMap((s) => s.groups.map((g) => [slotName(s), g.name, g.rows, cos(g.cosine_p50),
      cos(g.cosine_trimmed_p50), num(g.rel_l2_p50), num(g.rel_l2_p99), num(g.norm_ratio_p50)]));
    if (!rows.length) { $("groups").hidden = true; return; }
    $("groups").append(el("details", {}, el("summary", {}, "By phase, acceptance, position and round"),
      table(["slot", "rows of", "count", "cosine", "trimmed", "rel L2", "p99", "norm ratio"], rows, [1])));
  }

  if (everything.length) slots(); else $("slots").hidden = true;
  heatmaps(); series(); worst(); groups();
  document.documentElement.dataset.drawn = "yes";
})();
