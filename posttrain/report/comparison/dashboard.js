"use strict";
// The list of branches and the trainings that run, asked for anew every second and drawn where it
// changed; what a person has chosen, sorted and typed stays.
(() => {
  const body = document.querySelector("#branches tbody");
  const status = document.getElementById("status");
  const baseline = document.getElementById("baseline");
  const filter = document.getElementById("filter");
  const chosen = new Set();
  let state = { branches: [], live: [] };
  let known = "";
  let order = { key: "committed_at", isDown: true };
  const KEYS = [null, "name", "strict_success_rate", "success_rate", "pass_hat_4", "committed_at", "author", "subject"];

  const { make, share, widthOfLabels } = pageParts;

  const drawList = () => {
    const wanted = filter.value.toLowerCase();
    const live = new Set(state.live.flatMap((one) => one.branches));
    const compare = (a, b) => {
      const [first, second] = [a[order.key], b[order.key]];
      if (first === null || second === null) return (first === null) - (second === null);
      const by = typeof first === "number" ? first - second : first.localeCompare(second);
      return order.isDown ? -by : by;
    };
    const shown = state.branches.filter((one) => `${one.name} ${one.author} ${one.subject}`.toLowerCase().includes(wanted));
    body.replaceChildren(
      ...shown.sort(compare).map((one) => {
        const row = make("tr", live.has(one.name) ? "live" : "");
        const box = make("input");
        box.type = "checkbox";
        box.checked = chosen.has(one.name);
        box.setAttribute("aria-label", `compare ${one.name}`);
        box.addEventListener("change", () => (box.checked ? chosen.add(one.name) : chosen.delete(one.name)));
        const first = make("td");
        first.append(box);
        const cells = [make("td", "", one.name), make("td", "n", share(one.strict_success_rate)), make("td", "n", share(one.success_rate)), make("td", "n", share(one.pass_hat_4)), make("td", "", one.committed_at.slice(0, 16).replace("T", " ")), make("td", "", one.author), make("td", "", one.subject)];
        row.append(first, ...cells);
        return row;
      }),
    );
  };

  const drawBaselines = () => {
    const now = baseline.value || (state.branches.some((one) => one.name === "main") ? "main" : "");
    baseline.replaceChildren(
      ...state.branches.map((one) => {
        const option = make("option", "", one.name);
        option.value = one.name;
        option.selected = one.name === now;
        return option;
      }),
    );
  };

  const drawLive = () => {
    const colours = ["--link", "--bad"].map((name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    const dim = getComputedStyle(document.documentElement).getPropertyValue("--dim").trim();
    document.getElementById("live").hidden = !state.live.length;
    const place = document.getElementById("trainings");
    place.replaceChildren();
    for (const one of state.live) {
      const box = make("div", "chart");
      box.append(make("h3", "", `${one.source} of ${one.branches.join(", ") || "edits that are not committed"}`));
      const told = make("p", "dim", one.max_steps ? `step ${one.step} of ${one.max_steps} ` : `step ${one.step} `);
      if (one.max_steps) {
        const meter = make("meter");
        meter.max = one.max_steps;
        meter.value = one.step;
        told.append(meter);
      }
      const curve = make("div");
      box.append(told, curve);
      place.append(box);
      const names = Object.keys(one.curves);
      if (!names.length || one.steps.length < 2) continue;
      const axis = { stroke: dim, grid: { show: false } };
      new uPlot(
        {
          width: Math.max(curve.clientWidth, 200),
          height: 160,
          scales: { x: { time: false } },
          series: [{ label: "step" }, ...names.map((name, index) => ({ label: name, stroke: colours[index], spanGaps: true, points: { show: false } }))],
          axes: [axis, { ...axis, size: widthOfLabels }],
        },
        [one.steps, ...names.map((name) => one.curves[name])],
        curve,
      );
    }
  };

  const ask = async () => {
    try {
      const answer = await fetch("/state.json");
      if (!answer.ok) throw new Error(await answer.text());
      const text = await answer.text();
      if (text === known) return;
      [known, state] = [text, JSON.parse(text)];
      drawBaselines();
      drawList();
      drawLive();
      status.textContent = `${state.branches.length} branches, ${state.live.length || "none"} in training`;
    } catch (error) {
      known = "";
      status.textContent = `no answer (${error.message}): is the dashboard still running?`;
    }
  };

  [...document.querySelectorAll("#branches th")].forEach((header, column) => {
    header.querySelector("button")?.addEventListener("click", () => {
      order = { key: KEYS[column], isDown: order.key === KEYS[column] ? !order.isDown : true };
      for (const other of document.querySelectorAll("#branches th")) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", order.isDown ? "descending" : "ascending");
      drawList();
    });
  });
  filter.addEventListener("input", drawList);
  document.getElementById("compare").addEventListener("submit", (event) => {
    event.preventDefault();
    const names = [baseline.value, ...[...chosen].filter((name) => name !== baseline.value)];
    location.href = `/compare?${names.map((name) => `name=${encodeURIComponent(name)}`).join("&")}`;
  });

  ask();
  setInterval(() => document.hidden || ask(), 1000);
})();
