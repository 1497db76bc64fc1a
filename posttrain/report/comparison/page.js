"use strict";
// What the comparison's page does when it is used: sort and unfold its table, toggle curves, show two
// conversations beside each other.
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const settings = data.settings;
  const { make, colour } = pageParts;

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

  const isShown = pageParts.makeLegend(document.getElementById("legend"), settings.map((setting) => setting.name), () => redraw());
  const redraw = pageParts.drawCharts(document.getElementById("charts"), data.charts, document.getElementById("smooth"), isShown);
  paint();
  pageParts.dark.addEventListener("change", paint);

  const conversation = (pair) => {
    const grid = make("div", "pair");
    for (let turn = 0; turn < Math.max(pair.left.length, pair.right.length); turn += 1) {
      const note = turn === pair.diverges_at ? "first difference" : "";
      grid.append(pageParts.bubble(pair.left[turn], note), pageParts.bubble(pair.right[turn], note));
    }
    return grid;
  };
  const pairs = document.getElementById("pairs");
  data.tasks.forEach((found, index) => {
    const name = settings[index + 1].name;
    pairs.append(make("h3", "", `${name}: ${found.won} won, ${found.lost} lost`));
    if (found.pairs.length < found.won + found.lost) pairs.append(make("p", "dim", `${found.pairs.length} of them have room here.`));
    for (const pair of found.pairs) {
      const summary = make("summary");
      summary.append(make("span", pair.is_won ? "good" : "bad", pair.is_won ? "won " : "lost "), make("span", "", `${pair.cell.replaceAll("/", " · ")} — ${pair.failure.replaceAll("_", " ")} `), make("code", "dim", pair.task_id));
      pairs.append(pageParts.unfolding(summary, () => conversation(pair)));
    }
  });
})();
