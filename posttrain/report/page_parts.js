"use strict";
// What several pages draw alike: charts over training steps (uPlot) and conversations. Text comes in
// by textContent only.
const pageParts = (() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");

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
  const tickLabel = (tick) => Number(tick.toPrecision(10)).toString(); // as many digits as the ticks differ in
  // The width of an axis is that of its widest label; uPlot asks again until the widths stay.
  const widthOfLabels = (plot, labels, index) => {
    const axis = plot.axes[index];
    plot.ctx.font = axis.font[0];
    const widest = Math.max(0, ...(labels ?? []).map((label) => plot.ctx.measureText(label ?? "").width));
    return Math.ceil(axis.ticks.size + axis.gap + widest / devicePixelRatio);
  };
  const share = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const smoothed = (values) => {
    const half = Math.max(1, Math.round(values.length / 40));
    return values.map((value, at) => {
      if (value === null) return null;
      const near = values.slice(Math.max(0, at - half), at + half + 1).filter((one) => one !== null);
      return near.reduce((sum, one) => sum + one, 0) / near.length;
    });
  };

  // The columns of uPlot for the curves that are shown: a band, the raw line, the smoothed one.
  const columnsOf = (spec, isShown, isSmooth) => {
    const steps = [...new Set(spec.curves.flatMap((curve, index) => (isShown(index) ? curve.steps : [])))].sort((a, b) => a - b);
    const found = { columns: [steps], series: [{}], bands: [], shown: [] };
    const add = (values, options) => {
      found.columns.push(values);
      found.series.push({ points: { show: false }, spanGaps: true, ...options });
      return found.columns.length - 1;
    };
    spec.curves.forEach((curve, index) => {
      if (!isShown(index) || !curve.steps.length) return;
      const place = new Map(curve.steps.map((step, at) => [step, at]));
      const on = (values) => steps.map((step) => (place.has(step) ? values[place.get(step)] : null));
      if (curve.low.length) {
        const high = add(on(curve.high), { stroke: "transparent", width: 0 });
        const low = add(on(curve.low), { stroke: "transparent", width: 0 });
        found.bands.push({ series: [high, low], fill: colour(index, 0.16) });
      }
      const mean = on(curve.mean);
      const raw = add(mean, { stroke: colour(index, isSmooth ? 0.3 : 1), width: isSmooth ? 1 : 1.6, points: { show: curve.steps.length <= 12 } });
      if (isSmooth) add(smoothed(mean), { stroke: colour(index), width: 1.8, dash: index > 12 ? [6, 3] : undefined });
      found.shown.push({ name: curve.name, index, raw, resumed: curve.resumed ?? [] });
    });
    return found;
  };

  // A chart is built anew when what is shown changes: it is small.
  const draw = (chart, isShown, isSmooth) => {
    const { spec, place, at } = chart;
    const range = chart.plot ? [chart.plot.scales.x.min, chart.plot.scales.x.max] : null;
    const isZoomed = chart.plot && chart.isZoomed;
    if (chart.plot) chart.plot.destroy();
    const { columns, series, bands, shown } = columnsOf(spec, isShown, isSmooth && !spec.is_unsmoothed);
    const steps = columns[0];
    const axis = { stroke: style("--dim"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 } };
    const say = (plot) => {
      const point = plot.cursor.idx;
      at.replaceChildren();
      if (point === null || point === undefined) return;
      at.append(make("span", "", `${spec.x ?? "step"} ${number(steps[point])}`));
      for (const { name, index, raw } of shown) {
        const value = columns[raw][point];
        if (value === null || value === undefined) continue;
        const entry = make("span", "", `${name} ${spec.is_share ? share(value) : number(value)}`);
        entry.style.color = colour(index);
        at.append(entry);
      }
    };
    // Where a run had been stopped and was gone on with.
    const markResumed = (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.setLineDash([4, 4]);
      for (const { index, resumed } of shown) {
        ctx.strokeStyle = colour(index, 0.8);
        for (const step of resumed.filter((one) => one >= plot.scales.x.min && one <= plot.scales.x.max)) {
          const left = plot.valToPos(step, "x", true);
          ctx.beginPath();
          ctx.moveTo(left, bbox.top);
          ctx.lineTo(left, bbox.top + bbox.height);
          ctx.stroke();
        }
      }
      ctx.restore();
    };
    chart.plot = new uPlot(
      {
        width: Math.max(place.clientWidth, 200),
        height: 190,
        series,
        bands,
        legend: { show: false },
        scales: { x: { time: false }, y: spec.is_share ? { range: [0, 1] } : spec.is_log ? { distr: 3 } : {} },
        axes: [{ ...axis, size: 32 }, { ...axis, size: widthOfLabels, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : spec.is_share ? `${Math.round(100 * tick)} %` : tickLabel(tick))) }],
        cursor: { sync: { key: spec.x ?? "steps" }, points: { show: false } },
        hooks: {
          draw: [markResumed],
          setCursor: [say],
          setScale: [(plot, key) => { if (key === "x" && steps.length) chart.isZoomed = plot.scales.x.min !== steps[0] || plot.scales.x.max !== steps[steps.length - 1]; }],
        },
      },
      columns,
      place,
    );
    if (isZoomed) chart.plot.setScale("x", { min: range[0], max: range[1] });
  };

  const onKey = (chart, event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    const { plot } = chart;
    const steps = plot.data[0];
    if (by) {
      const at = Math.min(steps.length - 1, Math.max(0, (plot.cursor.idx ?? -1) + by));
      plot.setCursor({ left: plot.valToPos(steps[at], "x"), top: plot.bbox.height / 2 / devicePixelRatio }, true);
    } else if (event.key === "Escape") plot.setScale("x", { min: steps[0], max: steps[steps.length - 1] });
    else if (event.key === "+" || event.key === "-") {
      const middle = steps[plot.cursor.idx ?? Math.floor(steps.length / 2)];
      const half = ((plot.scales.x.max - plot.scales.x.min) / 2) * (event.key === "+" ? 0.5 : 2);
      plot.setScale("x", { min: Math.max(steps[0], middle - half), max: Math.min(steps[steps.length - 1], middle + half) });
    } else return;
    event.preventDefault();
  };

  // names: a label with a box each, and a function that tells which are ticked.
  const makeLegend = (place, names, onChange) => {
    const isShown = names.map(() => true);
    const swatches = names.map((name, index) => {
      const label = make("label");
      const box = make("input");
      box.type = "checkbox";
      box.checked = true;
      box.addEventListener("change", () => { isShown[index] = box.checked; onChange(); });
      const swatch = make("span", "swatch");
      label.append(box, swatch, make("span", "", name));
      place.append(label);
      return swatch;
    });
    const paint = () => swatches.forEach((swatch, index) => { swatch.style.background = colour(index); });
    paint();
    dark.addEventListener("change", paint);
    return (index) => isShown[index];
  };

  // specs: {title, is_share, is_log, is_unsmoothed, x, curves: [{name, steps, mean, low, high, resumed}]}. Without
  // `isShown` each chart of several curves has a legend of its own.
  const drawCharts = (container, specs, smoothBox, isShown) => {
    const charts = specs.map((spec) => {
      const box = make("div", "chart");
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", spec.title);
      const [place, at] = [make("div"), make("div", "at")];
      at.setAttribute("aria-live", "polite");
      box.append(make("h3", "", spec.title), place, at);
      const chart = { spec, place, at, plot: null, isZoomed: false, isShown: isShown ?? (() => true) };
      if (!isShown && spec.curves.length > 1) {
        const legend = make("div", "legend");
        chart.isShown = makeLegend(legend, spec.curves.map((curve) => curve.name), () => draw(chart, chart.isShown, smoothBox.checked));
        box.append(legend);
      }
      box.addEventListener("keydown", (event) => onKey(chart, event));
      container.append(box);
      return chart;
    });
    const redraw = () => charts.forEach((chart) => draw(chart, chart.isShown, smoothBox.checked));
    smoothBox.addEventListener("change", redraw);
    dark.addEventListener("change", redraw);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
    redraw();
    return redraw;
  };

  const bubble = (message, note) => {
    if (!message) return make("div", "message hollow", "");
    const box = make("div", note ? "message diverges" : "message");
    box.append(make("span", "role", note ? `${message.role} · ${note}` : message.role));
    if (message.reasoning) box.append(make("span", "reasoning", message.reasoning));
    if (message.text) box.append(make("span", "", message.text));
    for (const [name, given] of message.calls ?? []) box.append(make("span", "call", `${name}(${given})`));
    return box;
  };

  // A summary that unfolds into what `build` makes when it is opened first.
  const unfolding = (summary, build) => {
    const details = make("details");
    details.append(summary);
    details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) details.append(build()); });
    return details;
  };

  return { make, colour, share, dark, widthOfLabels, drawCharts, makeLegend, bubble, unfolding };
})();
