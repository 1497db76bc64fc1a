"use strict";
// The annotation page. It shows what the server hands out, and every judgement is one POST. Text comes
// in by textContent only.
(() => {
  const { make, bubble } = pageParts;
  const $ = (id) => document.getElementById(id);
  const key = location.hash.slice(1) || sessionStorage.getItem("key") || "";
  sessionStorage.setItem("key", key);
  history.replaceState(null, "", "/"); // the key is not left in the address
  let [item, isPair, turns, at, marks, corrections, isBusy] = [null, false, [], 0, {}, {}, false];

  const say = (text, isBad = false) => { $("said").textContent = text; $("said").className = isBad ? "bad" : "dim"; };
  const run = async (name, given = {}) => {
    if (isBusy) return;
    isBusy = true;
    const body = JSON.stringify({ who: $("who").value.trim(), ...given });
    const options = { method: "POST", headers: { Authorization: `Bearer ${key}` }, body };
    const answer = await fetch(`/${name}`, options).then((one) => one.json()).catch(() => ({ error: "the page's server does not answer: start `posttrain annotate` again" }));
    isBusy = false;
    if (answer.error) { say(answer.error, true); return; }
    draw(answer);
  };

  const draw = (told) => {
    [item, isPair, turns, at, marks, corrections] = [told.item, told.episodes?.length === 2, [], 0, {}, {}];
    const others = Object.entries(told.by).map(([who, count]) => `${who} ${count}`).join(", ");
    const alpha = told.alpha === null ? "" : `, alpha ${told.alpha.toFixed(2)} on ${told.num_shared} shared items`;
    $("figures").textContent = `${told.num_own} of ${told.num_items} by ${$("who").value} (${others || "nobody yet"}${alpha})`;
    $("comment").value = "";
    say(item ? "" : "nothing is left for you to judge");
    $("episodes").replaceChildren(...(told.episodes ?? []).map((messages, index) => {
      const column = make("div");
      if (isPair) column.append(make("h2", "", "AB"[index]));
      for (const message of messages) {
        const box = bubble(message);
        if (!isPair && message.role === "assistant") turns.push({ box, place: message.place, draft: message.draft });
        column.append(box);
      }
      return column;
    }));
    drawActions();
    mark();
  };
  const mark = () => turns.forEach(({ box, place }, index) => {
    box.classList.toggle("here", index === at);
    box.classList.toggle("bad", marks[place] === 0);
    box.classList.toggle("good", marks[place] === 1);
    box.classList.toggle("corrected", place in corrections);
  });
  const correct = () => {
    const turn = turns[at];
    if (!turn) return;
    $("correction").value = corrections[turn.place] ?? turn.draft;
    $("correcting").hidden = false;
    $("correction").focus();
  };
  const corrected = () => {
    const { place, draft } = turns[at];
    const text = $("correction").value.trim();
    if (text && text !== draft) corrections[place] = text; else delete corrections[place];
    $("correcting").hidden = true;
    mark();
  };
  const move = (step) => { at = Math.min(Math.max(at + step, 0), turns.length - 1); mark(); turns[at]?.box.scrollIntoView({ block: "nearest" }); };
  const markTurn = (value) => { if (turns[at]) { marks[turns[at].place] = value; mark(); } };
  const judge = (given) => { if (item) run("say", { item, comment: $("comment").value, ...given }); };

  const ofPair = [["a", "A is better"], ["b", "B is better"], ["t", "tie"]];
  const ofOne = [["1", "bad"], ["2", ""], ["3", "middling"], ["4", ""], ["5", "good"], ["j", "next turn"], ["k", "turn before"], ["+", "good turn"], ["-", "bad turn"], ["e", "write what this turn should have been"], ["s", "save the marks and corrections alone"]];
  const press = (pressed) => {
    if (isPair && "abt".includes(pressed)) judge({ winner: { a: "a", b: "b", t: "tie" }[pressed] });
    else if (!isPair && "12345".includes(pressed)) judge({ rating: Number(pressed), marks, corrections });
    else if (!isPair && pressed === "s") judge({ marks, corrections });
    else if (!isPair && pressed === "e") correct();
    else if (!isPair && (pressed === "j" || pressed === "k")) move(pressed === "j" ? 1 : -1);
    else if (!isPair && (pressed === "+" || pressed === "-")) markTurn(pressed === "+" ? 1 : 0);
    else if (pressed === "c") $("comment").focus();
    else if (pressed === "n") $("who").select();
    else if (pressed === "u") run("back");
    else return false;
    return true;
  };
  const drawActions = () => $("actions").replaceChildren(...[...(isPair ? ofPair : ofOne), ["u", "judge the last one again"], ["c", "comment"], ["n", "your name"]].map(([pressed, about]) => {
    const made = Object.assign(make("button", "plain", `${about} `), { type: "button", onclick: () => press(pressed) });
    made.append(make("kbd", "", pressed));
    return made;
  }));

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.matches("input, textarea")) {
      if (event.key === "Escape" || (event.key === "Enter" && event.target.id === "who")) event.target.blur();
      return;
    }
    if (event.key.length === 1 && press(event.key)) event.preventDefault();
  });
  $("correction").onblur = corrected;
  $("who").value = sessionStorage.getItem("who") ?? JSON.parse($("page-data").textContent).who;
  $("who").onchange = () => { sessionStorage.setItem("who", $("who").value); run("next"); };
  run("next");
})();
