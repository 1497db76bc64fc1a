"use strict";
// What the comparison's page does when it is used: sort and unfold its table, draw and toggle the
// curves (uPlot), show two conversations beside each other. Text comes in by textContent only.
(() => {
  const data = JSON.parse(document.getElementById("comparison").textContent);
  const settings = data.settings;
  const isShown = settings.map(() => true);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = [];

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const colour = (index, alpha = 1) => {
    const lightness = dark.matches ? 68 : 42;
    if (index === 0) return `hsl(215 8% ${dark.matches ? 75 : 35}% / ${alpha})`;
    return `hsl(${(205 + 137.5 * (index - 1)) % 360} 62% ${lightness}% / ${alpha})`;
  };
  const number = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(3)).toString());
  const share = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);

  // The table: a setting is a tbody, its runs are rows that unfold.
  const table = document.getElementById("settings");
  const bodies = () => [...table.tBodies];
  const paint = () => {
    for (const body of bodies()) body.querySelector(".swatch").style.background = colour(Number(body.dataset.setting));
  };
  for (const body of bodies()) {
    const fold = body.querySelector(".fold");
    fold.addEventListener("click", () => {
      const isOpen = fold.getAttribute("aria-expanded") === "true";
      fold.setAttribute("aria-expanded", String(!isOpen));
      for (const row of body.querySelectorAll(".run")) row.hidden = isOpen;
    });
  }
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const isDown = header.getAttribute("aria-sort") !== "descending";
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      const isNumber = header.classList.contains("n");
      const value = (body) => {
        const cell = body.rows[0].cells[column];
        const text = cell.dataset.value ?? cell.textContent;
        return isNumber ? Number(text) : text;
      };
      const compare = (a, b) => (isNumber ? value(a) - value(b) : value(a).localeCompare(value(b)));
      table.append(...bodies().sort((a, b) => (isDown ? -1 : 1) * compare(a, b)));
    });
  });

  // Curves. Each chart is built anew when what is shown changes: they are small.
  const smoothed = (values) => {
    const half = Math.max(1, Math.round(values.length / 40));
    return values.map((value, at) => {
      if (value === null) return null;
      const near = values.slice(Math.max(0, at - half), at + half + 1).filter((one) => one !== null);
      return near.reduce((sum, one) => sum + one, 0) / near.length;
    });
  };
  const isSmooth = () => document.getElementById("smooth").checked;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const draw = (chart) => {
    const { spec, place, at } = chart;
    const range = chart.plot ? [chart.plot.scales.x.min, chart.plot.scales.x.max] : null;
    const isZoomed = chart.plot && chart.isZoomed;
    if (chart.plot) chart.plot.destroy();
    const steps = [...new Set(spec.curves.flatMap((curve, index) => (isShown[index] ? curve.steps : [])))].sort((a, b) => a - b);
    const columns = [steps];
    const series = [{}];
    const bands = [];
    const shown = [];
    const add = (values, options) => {
      columns.push(values);
      series.push({ points: { show: false }, spanGaps: true, ...options });
      return columns.length - 1;
    };
    spec.curves.forEach((curve, index) => {
      if (!isShown[index] || !curve.steps.length) return;
      const place = new Map(curve.steps.map((step, at) => [step, at]));
      const on = (values) => steps.map((step) => (place.has(step) ? values[place.get(step)] : null));
      if (curve.low.length) {
        const high = add(on(curve.high), { stroke: "transparent", width: 0 });
        const low = add(on(curve.low), { stroke: "transparent", width: 0 });
        bands.push({ series: [high, low], fill: colour(index, 0.16) });
      }
      const mean = on(curve.mean);
      const raw = add(mean, { stroke: colour(index, isSmooth() ? 0.3 : 1), width: isSmooth() ? 1 : 1.6 });
      if (isSmooth()) add(smoothed(mean), { stroke: colour(index), width: 1.8, dash: index > 12 ? [6, 3] : undefined });
      shown.push({ index, raw });
    });
    const axis = { stroke: style("--dim"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 } };
    const say = (plot) => {
      const point = plot.cursor.idx;
      at.replaceChildren();
      if (point === null || point === undefined) return;
      at.append(make("span", "", `step ${columns[0][point]}`));
      for (const { index, raw } of shown) {
        const value = columns[raw][point];
        if (value === null || value === undefined) continue;
        const entry = make("span", "", `${settings[index].name} ${spec.is_share ? share(value) : number(value)}`);
        entry.style.color = colour(index);
        at.append(entry);
      }
    };
    chart.plot = new uPlot(
      {
        width: Math.max(place.clientWidth, 200),
        height: 190,
        series,
        bands,
        legend: { show: false },
        scales: { x: { time: false }, y: spec.is_share ? { range: [0, 1] } : {} },
        axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (spec.is_share ? `${Math.round(100 * tick)} %` : number(tick))) }],
        cursor: { sync: { key: "steps" }, points: { show: false } },
        hooks: {
          setCursor: [say],
          setScale: [(plot, key) => { if (key === "x" && steps.length) chart.isZoomed = plot.scales.x.min !== steps[0] || plot.scales.x.max !== steps[steps.length - 1]; }],
        },
      },
      columns,
      place,
    );
    if (isZoomed) chart.plot.setScale("x", { min: range[0], max: range[1] });
  };
  const drawAll = () => { paint(); charts.forEach(draw); };

  const move = (chart, by) => {
    const { plot } = chart;
    const steps = plot.data[0];
    const at = Math.min(steps.length - 1, Math.max(0, (plot.cursor.idx ?? -1) + by));
    plot.setCursor({ left: plot.valToPos(steps[at], "x"), top: plot.bbox.height / 2 / devicePixelRatio }, true);
  };
  for (const spec of data.charts) {
    const box = make("div", "chart");
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", spec.title);
    const place = make("div");
    const at = make("div", "at");
    at.setAttribute("aria-live", "polite");
    box.append(make("h3", "", spec.title), place, at);
    document.getElementById("charts").append(box);
    const chart = { spec, place, at, plot: null, isZoomed: false };
    charts.push(chart);
    box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
      const { plot } = chart;
      const steps = plot.data[0];
      if (by) move(chart, by);
      else if (event.key === "Escape") plot.setScale("x", { min: steps[0], max: steps[steps.length - 1] });
      else if (event.key === "+" || event.key === "-") {
        const middle = steps[plot.cursor.idx ?? Math.floor(steps.length / 2)];
        const half = ((plot.scales.x.max - plot.scales.x.min) / 2) * (event.key === "+" ? 0.5 : 2);
        plot.setScale("x", { min: Math.max(steps[0], middle - half), max: Math.min(steps[steps.length - 1], middle + half) });
      } else return;
      event.preventDefault();
    });
  }
  const legend = document.getElementById("legend");
  settings.forEach((setting, index) => {
    const label = make("label");
    const box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { isShown[index] = box.checked; charts.forEach(draw); });
    const swatch = make("span", "swatch");
    label.append(box, swatch, make("span", "", setting.name));
    legend.append(label);
  });
  const paintLegend = () => [...legend.querySelectorAll(".swatch")].forEach((swatch, index) => { swatch.style.background = colour(index); });
  document.getElementById("smooth").addEventListener("change", () => charts.forEach(draw));
  dark.addEventListener("change", () => { paintLegend(); drawAll(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; charts.forEach(draw); } });
  paintLegend();
  drawAll();

  // Conversations are built when they are opened.
  const bubble = (message, isDivergence) => {
    if (!message) return make("div", "message hollow", "");
    const box = make("div", isDivergence ? "message diverges" : "message");
    box.append(make("span", "role", isDivergence ? `${message.role} · first difference` : message.role));
    if (message.reasoning) box.append(make("span", "reasoning", message.reasoning));
    if (message.text) box.append(make("span", "", message.text));
    for (const [name, given] of message.calls ?? []) box.append(make("span", "call", `${name}(${given})`));
    return box;
  };
  const conversation = (pair) => {
    const grid = make("div", "pair");
    for (let turn = 0; turn < Math.max(pair.left.length, pair.right.length); turn += 1) {
      grid.append(bubble(pair.left[turn], turn === pair.diverges_at), bubble(pair.right[turn], turn === pair.diverges_at));
    }
    return grid;
  };
  const pairs = document.getElementById("pairs");
  data.tasks.forEach((found, index) => {
    const name = settings[index + 1].name;
    pairs.append(make("h3", "", `${name}: ${found.won} won, ${found.lost} lost`));
    if (found.pairs.length < found.won + found.lost) pairs.append(make("p", "dim", `${found.pairs.length} of them have room here.`));
    for (const pair of found.pairs) {
      const details = make("details");
      const summary = make("summary");
      summary.append(make("span", pair.is_won ? "good" : "bad", pair.is_won ? "won " : "lost "), make("span", "", `${pair.cell.replaceAll("/", " · ")} — ${pair.failure.replaceAll("_", " ")} `), make("code", "dim", pair.task_id));
      details.append(summary);
      details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) details.append(conversation(pair)); });
      pairs.append(details);
    }
  });
})();
