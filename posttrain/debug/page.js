"use strict";
// The debugger's page. It keeps the last state that the server told and draws it; every action is one
// POST. Text comes in by textContent only.
(() => {
  const { make, bubble, unfolding, dark } = pageParts;
  const $ = (id) => document.getElementById(id);
  const key = location.hash.slice(1) || sessionStorage.getItem("key") || "";
  sessionStorage.setItem("key", key);
  history.replaceState(null, "", "/"); // the key is not left in the address
  let state = null; // of the session, null where none is open
  let view = "episodes";
  let [isPlaying, lastBreak] = [false, "error"];

  // -- asking

  const say = (text, isBad = false) => { $("said").textContent = text; $("said").className = isBad ? "bad" : ""; };
  const ask = async (name, given = {}) => {
    const options = { method: "POST", headers: { Authorization: `Bearer ${key}` }, body: JSON.stringify(given) };
    return fetch(`/${name}`, options).then((answer) => answer.json()).catch(() => ({ error: "the debugger does not answer: start `posttrain debug --ui` again" }));
  };
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  // Asks, waits while it plays, and draws what came of it. Gives the answer; its `error` says what is wrong.
  const run = async (name, given) => {
    let answer = await ask(name, given);
    while (answer.playing && !answer.error) {
      const { name: what, seconds, progress } = answer.playing;
      setPlaying(true);
      say(`${what} … ${progress[1] ? `${progress[0]} of ${progress[1]} plays, ` : ""}${seconds.toFixed(0)} s`);
      await pause(300);
      answer = await ask("state");
    }
    setPlaying(false);
    if ("session" in answer) state = answer.session;
    say(answer.error ?? answer.said ?? "", Boolean(answer.error));
    draw();
    return answer;
  };
  const setPlaying = (is) => {
    if (is && !isPlaying) $("dialog").close();
    if (is !== isPlaying) { isPlaying = is; drawActions(); }
  };

  // -- drawing

  const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const heat = (share) => `hsl(${Math.round(8 + 132 * share)} 55% ${dark.matches ? 42 : 58}%)`;
  const show = (name) => {
    view = name === "session" && !state ? "episodes" : name;
    for (const one of ["episodes", "map", "session"]) $(one).hidden = one !== view;
    drawActions();
  };
  const button = (text, onclick, className = "") => Object.assign(make("button", className, text), { type: "button", onclick });

  const drawActions = () => {
    const had = document.activeElement?.dataset?.key;
    $("actions").replaceChildren(...ACTIONS.filter((one) => one.label && (!one.view || one.view === view)).map((one) => {
      const made = Object.assign(button(`${one.label} `, one.act, "plain"), { title: one.about, disabled: isPlaying || (one.shows === "session" && !state) });
      made.append(make("kbd", "", one.key));
      made.dataset.key = one.key;
      if (one.shows) made.setAttribute("aria-pressed", one.shows === view);
      return made;
    }));
    if (had) document.querySelector(`[data-key="${CSS.escape(had)}"]`)?.focus();
  };

  const draw = () => {
    drawActions();
    if (!state) return;
    const [{ about }, hadFocus] = [state, $("session").contains(document.activeElement)];
    $("about").textContent = `episode ${about.episode} of ${about.stage}${about.step === null ? "" : `, step ${about.step}`} · task ${about.task} ${about.cell}, split ${about.split} · ${about.player} plays on · mode ${state.mode}${state.anyway ? " anyway" : ""}`;
    $("tree").replaceChildren(...state.nodes.filter((one) => one.parent === null).flatMap((one) => branches(one, 0)));
    $("turns").replaceChildren(...state.turns.map(turn));
    $("turns").querySelector(".here")?.scrollIntoView({ block: "nearest" });
    $("standing").textContent = `Turn ${state.at} of branch ${state.current}`;
    $("warnings").textContent = `Playing on: ${state.warnings.join("; ")}`;
    $("look").replaceChildren(...look());
    $("tokens").replaceChildren(...tokens());
    $("goal").textContent = state.goal;
    const advantage = state.advantage === null ? "no advantage is recorded" : `advantage ${number(state.advantage, 3)}`;
    $("scores").textContent = [...Object.entries(state.scores).map(([name, value]) => `${name} ${number(value)}`), advantage, state.feedback].filter(Boolean).join(" · ");
    $("tools").replaceChildren(...state.tools.map(({ name, description, parameters }) => {
      const [kind, more] = state.offered.includes(name) ? ["", ""] : ["dim", " (not offered)"];
      return unfolding(make("summary", kind, `${name}${more}: ${description}`), () => make("pre", "", JSON.stringify(JSON.parse(parameters), null, 1)));
    }));
    if (hadFocus && !$("session").contains(document.activeElement)) document.querySelector("#turns .here .at")?.focus({ preventScroll: true });
  };

  const branches = (node, depth) => {
    const line = make("div", node.number === state.current ? "branch here" : "branch");
    line.style.paddingLeft = `${0.3 + 1.2 * depth}rem`;
    const go = button("", () => run("go", { at: Math.max(1, node.differs ?? 1), node: node.number }));
    go.ariaCurrent = node.number === state.current ? "true" : null;
    const came = node.parent === null ? `recorded${node.episode ? ` ${node.episode}` : ""}` : `from turn ${node.at}${node.is_edited ? ", edited" : ""}`;
    const differs = node.differs === null || node.number === 0 ? "" : `differs from turn ${node.differs}`;
    go.append(make("span", "", `${node.number}  ${came}`), make("span", node.is_success ? "good" : "bad", node.result), make("span", "dim", `reward ${number(node.reward)}`), make("span", "dim", differs));
    line.append(go);
    return [line, ...state.nodes.filter((one) => one.parent === node.number).flatMap((one) => branches(one, depth + 1))];
  };

  const turn = (one, index) => {
    const isHere = index + 1 === state.at;
    const line = make("div", isHere ? "turn here" : "turn");
    const go = Object.assign(button(String(index + 1), () => run("go", { at: index + 1 }), "at"), { ariaLabel: `turn ${index + 1}`, ariaCurrent: isHere ? "step" : null });
    line.append(go, make("span", "text", one.text));
    if (isHere && state.pending) line.append(make("span", "text edited", `edited, not played on: ${state.pending.text} ${state.pending.calls.map(([name, given]) => `${name}(${given})`).join(" ")}`));
    line.append(...one.results.map((result) => make("span", result.outcome && result.outcome !== "ok" ? "tool bad" : "tool", `← ${result.outcome === "ok" ? "" : `${result.outcome} `}${result.text}`)));
    const figures = make("span", "figures");
    for (const [value, text] of [[one.logprob, `least log-prob ${number(one.logprob)}`], [one.entropy, `most entropy ${number(one.entropy)}`], [one.value, `success from here ${Math.round(100 * one.value)} %`]]) if (value !== null) figures.append(make("span", "", text));
    if (one.is_suggested) figures.append(make("span", "edited", "edit this turn first"));
    line.append(figures);
    return line;
  };

  const look = () => {
    const found = state.read.map((message) => {
      const box = bubble(message, message.is_edited ? "edited: what follows is counterfactual" : "");
      if (message.id in state.draft.results) box.append(button("edit this result", () => editResult(message.id), "plain"));
      return box;
    });
    if (state.pending) found.push(bubble(state.pending, "edited, not played on"));
    if (state.has_other_task) found.push(make("p", "edited", "The system text or the tools on offer are edited, too."));
    return found;
  };

  const tokens = () => {
    if (!state.tokens) return [make("p", "dim", "Tokens are a model's; who plays on here reads messages.")];
    const { read, written, num } = state.tokens;
    const [box, told, line] = [make("div", "tokens"), make("p", "figures", " "), make("span", "written")];
    written.forEach(([text, logprob, entropy, isTrained]) => {
      const title = `log-prob ${number(logprob, 3)}, entropy ${number(entropy, 3)} nats${isTrained ? "" : ", not trained on"}`;
      const token = Object.assign(make("span", isTrained ? "" : "untrained", text), { title, tabIndex: -1, onfocus: () => { told.textContent = `${JSON.stringify(text)}: ${title}`; } });
      token.style.background = `hsl(8 80% 55% / ${Math.min(0.75, -(logprob ?? -9) / 5).toFixed(2)})`;
      line.append(token);
    });
    if (written.length) line.firstChild.tabIndex = 0;
    walk(line, () => [...line.children]);
    box.append(unfolding(make("summary", "dim", "the tokens read before"), () => make("span", "read", read)), line);
    const about = `${num} tokens written${num > written.length ? `, of which the first ${written.length} are shown` : ""}; the redder, the less probable; struck out: not trained on; arrows move along them`;
    return [make("h2", "", "Tokens"), make("p", "dim", num ? about : "none are recorded for this turn"), box, told];
  };

  // Arrows move the focus along what `all` lists, which is one stop of the Tab key.
  const walk = (place, all, perRow = () => 1) => place.addEventListener("keydown", (event) => {
    const [items, at] = [all(), all().indexOf(document.activeElement)];
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow(), ArrowUp: -perRow() }[event.key];
    if (!by || at < 0) return;
    event.preventDefault();
    items[at].tabIndex = -1;
    Object.assign(items[Math.min(items.length - 1, Math.max(0, at + by))], { tabIndex: 0 }).focus();
  });

  // -- episodes, and a training's groups

  const search = async () => {
    const given = [...new FormData($("filter"))].filter(([, value]) => value !== "").map(([name, value]) => [name, ["low", "high"].includes(name) ? Number(value) : value]);
    const answer = await run("episodes", Object.fromEntries(given));
    if (!answer.episodes) return;
    $("found").textContent = answer.told;
    const select = $("filter").elements.stage;
    if (select.length === 1) select.append(...answer.stages.map((name) => make("option", "", name)));
    $("rows").replaceChildren(...answer.episodes.map((one) => {
      const [row, first] = [Object.assign(make("tr"), { onclick: () => open(one.episode) }), make("td")];
      first.append(button(String(one.episode)));
      const result = `${one.result}${one.failure ? ` (${one.failure})` : ""}`;
      row.append(first, make("td", "", `${one.stage} ${one.part}`.trim()), make("td", "n", one.step ?? "–"), make("td", "wide", `${one.task.slice(0, 12)} ${one.cell}`), make("td", "n wide", one.num_turns), make("td", one.result === "success" ? "good" : "bad", result), make("td", "n", number(one.reward, 3)));
      return row;
    }));
  };
  const open = async (episode, others = []) => {
    for (const one of ["compared", "world"]) $(one).replaceChildren();
    if ((await run("open", { episode, others })).error) return;
    show("session");
    if (others.length) await compare(state.nodes.map((one) => one.number));
    else focusIn("#turns .here .at");
  };

  const drawMap = async (given = {}) => {
    const answer = await run("groups", given);
    if (!answer.groups) return;
    $("run").replaceChildren(...answer.runs.map((one) => Object.assign(make("option", "", String(one)), { selected: one === answer.run })));
    if (!answer.groups.length) { $("group").textContent = "No training's episodes are in the trace store."; return; }
    const rewards = answer.groups.map((one) => one.reward ?? 0);
    const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
    $("scale").textContent = `mean reward of a group, from ${number(low)} (red) to ${number(high)} (green)`;
    const steps = new Map();
    for (const one of answer.groups) steps.set(one.step, [...(steps.get(one.step) ?? []), one]);
    $("grid").replaceChildren(...[...steps].map(([step, groups]) => {
      const row = make("div", "step");
      row.append(make("span", "", String(step)), ...groups.map((one) => {
        const told = `step ${one.step}, task ${one.task_id} ${one.cell}: mean reward ${number(one.reward, 3)}, ${one.num_failed} of ${one.episodes.length} failed`;
        const cell = Object.assign(button("", () => open(one.episodes[0], one.episodes.slice(1))), { tabIndex: -1, title: told, ariaLabel: told });
        cell.style.background = heat(high > low ? ((one.reward ?? 0) - low) / (high - low) : 0.5);
        cell.dataset.task = one.task_id;
        cell.onfocus = () => {
          $("group").textContent = told;
          for (const other of $("grid").querySelectorAll("button")) other.classList.toggle("same", other.dataset.task === one.task_id);
        };
        return cell;
      }));
      return row;
    }));
    $("grid").querySelector("button").tabIndex = 0;
  };
  walk($("grid"), () => [...$("grid").querySelectorAll("button")], () => document.activeElement.parentElement.querySelectorAll("button").length);

  const compare = async (nodes) => {
    const answer = await run("compare", { nodes });
    if (!answer.compared) return answer;
    const columns = Object.assign(make("div", "columns"), { tabIndex: 0 });
    columns.append(...answer.compared.map((one, place) => {
      const column = make("div");
      column.append(make("strong", one.is_success ? "good" : "bad", `branch ${one.number}: ${one.result}, reward ${number(one.reward)}`));
      one.turns.forEach((messages, index) => column.append(...messages.map((message, at) => bubble(message, place && !at && index + 1 === one.differs ? `turn ${index + 1}, first difference` : ""))));
      return column;
    }));
    const heading = make("h2", "", "Side by side ");
    heading.append(button("close", () => $("compared").replaceChildren(), "plain"));
    $("compared").replaceChildren(heading, columns);
    columns.focus({ preventScroll: true });
    $("compared").scrollIntoView();
    return answer;
  };

  // -- asking the person

  // A dialog: `fields` are elements or [name, label, element]; `send` gives the answer of the server.
  const prompt = (title, about, fields, send) => {
    const form = $("form");
    const problem = Object.assign(make("p", "bad"), { role: "alert" });
    const asked = Object.assign(make("h2", "", title), { id: "asked" });
    const rows = fields.map((field) => {
      if (!Array.isArray(field)) return field;
      const label = make("label", "", field[1]);
      label.append(field[2].type === "checkbox" ? "" : make("br"), Object.assign(field[2], { name: field[0] }));
      return label;
    });
    const done = send ? [make("button", "plain", "Do it (Enter; in a text Ctrl+Enter)"), " "] : [];
    form.replaceChildren(asked, make("p", "dim", about), ...rows, problem, ...done, button("Leave it (Esc)", () => $("dialog").close(), "plain"));
    form.onsubmit = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      if (isPlaying) return;
      const answer = await send(form.elements);
      if (answer?.error) problem.textContent = answer.error;
      else $("dialog").close();
    };
    $("dialog").showModal();
    const first = form.querySelector("input, textarea, select");
    first?.focus();
    first?.select?.();
  };
  const field = (tag, value, options = {}) => Object.assign(make(tag), { value }, options);
  const choice = (names, value) => {
    const made = make("select");
    made.append(...names.map((name) => make("option", "", name)));
    return Object.assign(made, { value });
  };
  const plays = (value) => field("input", value, { type: "number", min: 1, max: 256, required: true });

  const editMessage = () => {
    const { message } = state.draft;
    const [calls, text] = [make("div"), field("textarea", message.content)];
    let isAsked = 0;
    const given = () => [...calls.children].map((one) => ({ id: one.dataset.call, name: one.querySelector("select").value, arguments: one.querySelector("textarea").value }));
    const check = async () => { // as one types; of several questions the last one's answer counts
      const asked = (isAsked += 1);
      await pause(150);
      if (asked !== isAsked) return;
      const { problems } = await ask("check", { calls: given() });
      if (problems && asked === isAsked) [...calls.children].forEach((one, index) => { one.querySelector(".bad").textContent = problems[index]; });
    };
    const addCall = (call) => {
      const box = make("div", "call");
      box.dataset.call = call.id;
      const name = Object.assign(choice(state.offered, call.name), { ariaLabel: "tool", onchange: check });
      const given = field("textarea", call.arguments, { spellcheck: false, ariaLabel: "arguments, as JSON", oninput: check });
      const wrong = Object.assign(make("p", "bad"), { ariaLive: "polite" });
      box.append(name, " ", button("remove this call", () => box.remove(), "plain"), given, wrong);
      calls.append(box);
      return given;
    };
    message.tool_calls.forEach(addCall);
    const add = button("add a call", () => { addCall({ id: "", name: state.offered[0], arguments: "{}" }).focus(); check(); }, "plain");
    prompt("Edit the agent's message", `In place of what it wrote at turn ${state.at}.`, [calls, add, ["content", "text", text]], async () => {
      const wrong = (await ask("check", { calls: given() })).problems?.find(Boolean);
      return wrong ? { error: wrong } : run("message", { message: { role: "assistant", content: text.value, reasoning_content: message.reasoning_content, tool_calls: given() } });
    });
    check();
  };
  const editResult = (call) => {
    const ids = Object.keys(state.draft.results);
    if (!ids.length) { say("no tool answered before this turn", true); return; }
    const [text, which] = [field("textarea", state.draft.results[call ?? ids[0]]), choice(ids, call ?? ids[0])];
    which.onchange = () => { text.value = state.draft.results[which.value]; };
    prompt("Edit a tool's result", "What follows is counterfactual: its outcome counts for nothing.", [["call", "of the call", which], ["text", "text", text]], () => run("result", { call_id: which.value, text: text.value }));
  };
  const editSystem = () => prompt("Edit the system text", "Before the whole conversation.", [["text", "text", field("textarea", state.draft.system)]], ({ text }) => run("system", { text: text.value }));
  const editTools = () => prompt("Tools on offer", "", state.tools.map(({ name }) => [name, ` ${name} `, field("input", name, { type: "checkbox", checked: state.offered.includes(name) })]), (elements) =>
    run("offer", { names: [...elements].filter((one) => one.checked).map((one) => one.value) }));
  const setMode = () => prompt("Mode", "stub: answers as recorded, no tool runs · pin: tools run anew, the policy is greedy · live: they run, and it samples.",
    [["mode", "mode", choice(["stub", "pin", "live"], state.mode)], ["anyway", " go on where the world answers otherwise than recorded ", field("input", "", { type: "checkbox", checked: state.anyway })]],
    ({ mode, anyway }) => run("mode", { mode: mode.value, anyway: anyway.checked }));
  const setBreak = () => prompt("Stand at the next turn where", "tool NAME [KEY=VALUE …] · error · credit · logprob BOUND · entropy BOUND · part BRANCH",
    [["condition", "condition", field("input", lastBreak, { required: true })]], ({ condition }) => run("break", { condition: (lastBreak = condition.value) }));
  const fork = () => prompt("Fork", `Branches from turn ${state.at}, each to its end. ${state.warnings.join("; ")}.`,
    [["num", "branches", plays(4)], ["temperature", "temperature", field("input", 1, { type: "number", min: 0, max: 10, step: "any", required: true })]],
    ({ num, temperature }) => run("play", { num: Number(num.value), temperature: Number(temperature.value) }));
  const guess = () => {
    const [num, cost] = [plays(8), make("p", "dim")];
    num.oninput = () => { cost.textContent = `${num.value * state.turns.length} plays: ${num.value} from each of ${state.turns.length} turns`; };
    num.oninput();
    prompt("Suggest the turn to edit first", "It is the one over which success falls the most.", [["num", "plays on from each turn", num], cost], () => run("suggest", { num: Number(num.value) }));
  };
  const save = () => prompt("Verify the edit and save it", "The policy plays on as often with the edit and without it; the edit goes to data/edits where it helps.",
    [["num", "plays with it, and as many without", plays(8)]], ({ num }) => run("save", { num: Number(num.value) }));
  const world = async () => { const answer = await run("world"); $("world").textContent = answer.world ?? ""; };
  const askCompare = () => prompt("Compare branches", "Their numbers; the first is the one that the others are held against.",
    [["nodes", "branches", field("input", [state.nodes[state.current].parent ?? 0, state.current].join(" "), { required: true })]],
    ({ nodes }) => compare(nodes.value.trim().split(/[\s,]+/).map(Number)));
  const help = () => {
    const legend = Object.assign(make("div"), { id: "legend" });
    for (const { key, about } of ACTIONS) legend.appendChild(make("div")).append(make("kbd", "", key), about);
    prompt("Keys", "", [legend]);
  };
  const move = (by) => {
    if (view !== "session") {
      const items = [...$("rows").querySelectorAll("button")];
      items[Math.min(items.length - 1, Math.max(0, items.indexOf(document.activeElement) + by))]?.focus();
    } else if (state.at + by >= 1 && state.at + by <= state.turns.length) run("go", { at: state.at + by });
  };
  const focusIn = (selector) => document.querySelector(selector)?.focus();

  const toSession = (key, label, about, act) => ({ key, label, about, act, view: "session" });
  const ACTIONS = [
    { key: "l", label: "Episodes", shows: "episodes", about: "the list of episodes", act: async () => { show("episodes"); if (!$("rows").childElementCount) await search(); focusIn("#rows button"); } },
    { key: "h", label: "Rollouts", shows: "map", about: "a training's groups, step by step", act: async () => { show("map"); await drawMap(); focusIn("#grid button[tabindex='0']"); } },
    { key: "d", label: "Session", shows: "session", about: "the episode that is open", act: () => show("session") },
    { key: "j", about: "the next turn, or row (also ↓)", act: () => move(1) },
    { key: "k", about: "the turn or row before (also ↑)", act: () => move(-1) },
    { key: "/", label: "Filter", view: "episodes", about: "search for episodes", act: () => { show("episodes"); focusIn("#filter select"); } },
    toSession("e", "Edit", "edit the agent's message", () => editMessage()),
    toSession("r", "Result", "edit a tool's result before the turn", () => editResult()),
    toSession("y", "System", "edit the system text", () => editSystem()),
    toSession("o", "Offer", "choose the tools on offer", () => editTools()),
    toSession("u", "Undo", "drop what was edited and not played on", () => run("undo")),
    toSession("b", "Break", "stand at the next turn where something holds", () => setBreak()),
    toSession("m", "Mode", "stub, pin or live", () => setMode()),
    toSession("s", "Step", "the policy writes one turn", () => run("play", { only_one_turn: true })),
    toSession("c", "Continue", "the policy plays on to the end", () => run("play")),
    toSession("f", "Fork", "play on several times", () => fork()),
    toSession("g", "Suggest", "suggest the turn to edit first", () => guess()),
    toSession("w", "Save", "verify the edit and save it", () => save()),
    toSession("x", "Compare", "branches side by side", () => askCompare()),
    toSession("t", "", "to the tree of branches (Enter goes there)", () => focusIn("#tree [aria-current]")),
    toSession("n", "", "to the tokens (arrows move along them)", () => focusIn(".tokens .written [tabindex='0']")),
    toSession("v", "", "the state of the world before the turn", () => world()),
    { key: "?", label: "Keys", about: "all keys", act: () => help() },
    { key: "Escape", about: "leave a field or a dialog", act: () => document.activeElement.blur() },
  ];

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.key === "Enter" && $("dialog").open) $("form").requestSubmit();
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const isTyping = event.target.matches("input, textarea, select");
    if ($("dialog").open || (isTyping && event.key !== "Escape") || event.defaultPrevented) return;
    const pressed = { ArrowDown: "j", ArrowUp: "k" }[event.key] ?? event.key;
    const action = ACTIONS.find((one) => one.key === pressed);
    if (!action || isPlaying) return;
    if (action.view === "session" && !state) { say("open an episode first", true); return; }
    event.preventDefault();
    if (action.view === "session") show("session");
    action.act();
  });
  // The event comes later than the closing: the next dialog may be open by then.
  $("dialog").addEventListener("close", () => { if ($("dialog").open) return; document.activeElement.blur(); if (view === "session") document.querySelector("#turns .here .at")?.focus({ preventScroll: true }); });
  $("filter").onsubmit = (event) => { event.preventDefault(); search(); };
  $("run").onchange = () => drawMap({ run: Number($("run").value) });
  $("see-world").onclick = world;
  show("episodes");
  run("state").then(() => (state ? show("session") : search()));
})();
