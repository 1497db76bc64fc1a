"use strict";
// The list of branches: sorted, filtered, and chosen for a comparison. A reload asks git anew.
(() => {
  const { branches, baseline: drawn } = JSON.parse(document.getElementById("page-data").textContent);
  const body = document.querySelector("#branches tbody");
  const baseline = document.getElementById("baseline");
  const filter = document.getElementById("filter");
  const chosen = new Set();
  let order = { key: "committed_at", isDown: true };
  const KEYS = [null, "name", "strict_success_rate", "strict_success_rate", "success_rate", "pass_hat_4", "verdict", "committed_at", "author", "subject"];

  const { make, share } = pageParts;

  const rowOf = (one) => {
    const row = make("tr");
    const box = make("input");
    box.type = "checkbox";
    box.checked = chosen.has(one.name);
    box.setAttribute("aria-label", `compare ${one.shown}`);
    box.addEventListener("change", () => (box.checked ? chosen.add(one.name) : chosen.delete(one.name)));
    const first = make("td");
    first.append(box);
    const cells = [make("td", "", one.shown), make("td", "n", share(one.strict_success_rate)), make("td", "n", one.strict_success_rate === null ? "" : `${share(one.strict_ci_low).slice(0, -2)} … ${share(one.strict_ci_high)}`), make("td", "n", share(one.success_rate)), make("td", "n", share(one.pass_hat_4)), make("td", "", one.verdict), make("td", "n", one.committed_at.slice(0, 16).replace("T", " ")), make("td", "", one.author), make("td", "", one.subject)];
    row.append(first, ...cells);
    return row;
  };

  const drawList = () => {
    const wanted = filter.value.toLowerCase();
    const compare = (a, b) => {
      const [first, second] = [a[order.key], b[order.key]];
      if (first === null || second === null) return (first === null) - (second === null);
      const by = typeof first === "number" ? first - second : first.localeCompare(second);
      return order.isDown ? -by : by;
    };
    const shown = branches.filter((one) => `${one.name} ${one.author} ${one.subject}`.toLowerCase().includes(wanted));
    body.replaceChildren(...shown.sort(compare).map(rowOf));
  };

  for (const { name, shown } of branches) {
    const option = make("option", "", shown);
    option.value = name;
    option.selected = name === drawn;
    baseline.append(option);
  }
  baseline.addEventListener("change", () => { location.href = `/?baseline=${encodeURIComponent(baseline.value)}`; });
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
  drawList();
})();
