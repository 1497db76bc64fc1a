"use strict";
// What the report's page draws: its charts, and the failed episodes as they are filtered and opened.
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const { make } = pageParts;

  const smooth = document.getElementById("smooth");
  for (const [name, charts] of Object.entries(data.charts)) {
    const place = document.getElementById(`${name}-charts`) ?? document.getElementById(`${name}-chart`);
    if (place) pageParts.drawCharts(place, charts, smooth);
  }

  const episodes = document.getElementById("episodes");
  if (!episodes) return;
  const spoken = (name) => name.replaceAll("/", " · ").replaceAll("_", " ");
  const conversation = (one) => {
    const box = make("div", "episode");
    const facts = make("dl", "facts");
    const told = [["wanted", one.wanted], ["task", one.task_id], ["ended as", spoken(one.stop_reason)], ["turns", one.turns], ["reward", one.reward.toFixed(3)]];
    for (const [name, value] of told) if (value !== "") facts.append(make("dt", "", name), make("dd", "", value));
    box.append(facts, ...one.messages.map((message) => pageParts.bubble(message)));
    return box;
  };
  const rows = data.failures.map((one) => {
    const summary = make("summary");
    summary.append(make("span", "bad", `${spoken(one.failure)} `), make("span", "dim", `${spoken(one.cell)} `), make("span", "", one.opening));
    const element = pageParts.unfolding(summary, () => conversation(one));
    episodes.append(element);
    return { element, one };
  });

  const counted = make("span", "dim");
  const filters = ["failure", "cell"].map((key) => {
    const select = make("select");
    select.setAttribute("aria-label", key);
    const values = [...new Set(data.failures.map((one) => one[key]))].sort();
    for (const value of ["", ...values]) {
      const option = make("option", "", value ? spoken(value) : `every ${key === "failure" ? "class" : key}`);
      option.value = value;
      select.append(option);
    }
    select.addEventListener("change", () => filter());
    return { key, select };
  });
  const filter = () => {
    let num = 0;
    for (const { element, one } of rows) {
      element.hidden = !filters.every(({ key, select }) => !select.value || one[key] === select.value);
      num += !element.hidden;
    }
    counted.textContent = ` ${num} of ${rows.length}`;
  };
  document.getElementById("filters").append(...filters.map(({ select }) => select), counted);
  filter();
})();
