// The policy in force, what its last edit changed, what was in force before, and who changed what.

import { get, post } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { count } from "../format.js";
import { badge, loading, panel, panelWith, problem, table } from "../parts.js";

export function policy(place, { live, state }) {
  const may = state.role !== "viewer";
  const current = h("div.stack", {}, loading());
  const history = h("div", {}, loading());
  const audit = h("div", {}, loading());
  const trouble = h("div", {});
  fill(place, h("h1", {}, "Policy"), trouble, current, panel("Check an edit", checker()), panel("Generations", history), panel("Changes by API and command", audit));
  let shown = 0;
  let sure = 0;

  async function read(number = 0) {
    shown = number;
    try {
      const [now, past, log] = await Promise.all([get("/policy"), get("/policy/history"), get("/audit?limit=30")]);
      const generation = number ? await get(`/policy/history/${number}`) : now.policy;
      if (shown !== number) return;
      fill(current, status(now), generation && diffPanel(generation, now.policy));
      fill(history, historyTable(past.generations, now.policy?.generation, generation?.generation));
      fill(audit, auditTable(log));
    } catch (error) {
      fill(current, problem(error));
    }
  }

  function historyTable(generations, inForce, chosen) {
    return table("Generations", [
      { name: "Generation", head: true, cell: (one) => h("button.link", { id: `generation-${one.generation}`, type: "button", onclick: () => read(one.generation === inForce ? 0 : one.generation), "aria-pressed": String(one.generation === chosen) }, String(one.generation)) },
      { name: "In force since", cell: (one) => time(one.since) },
      { name: "Changed", cell: (one) => h("span", {}, h("span.plus", {}, `+${one.added}`), " ", h("span.minus", {}, `−${one.removed}`)) },
      { name: "Files", small: true, wide: true, cell: (one) => one.files.join(", ") },
      { name: "", right: true, cell: (one) => (one.generation === inForce ? badge("in force", "good") : may && h("button.quiet", { id: `back-${one.generation}`, type: "button", onclick: () => rollBack(one.generation) }, sure === one.generation ? "Yes, write it back" : "Roll back", h("span.unseen", {}, ` to generation ${one.generation}`))) },
    ], generations, { empty: "The history begins when 'tollgate serve' runs." });
  }

  async function rollBack(number) {
    if (sure !== number) {
      sure = number;
      announce(`Press again to write generation ${number} back into the policy folder`);
      setTimeout(() => {
        if (sure === number) sure = 0;
      }, 8000);
      await read(number);
      document.getElementById(`back-${number}`)?.focus();
      return;
    }
    sure = 0;
    fill(trouble);
    try {
      const done = await post("/policy/rollback", { generation: number });
      announce(done.in_force ? `Generation ${number} is back in force` : `Generation ${number} was written back`);
    } catch (error) {
      fill(trouble, problem(error));
    }
    read();
  }

  read();
  let seen = live.latest?.generation;
  return live.listen(() => {
    const now = live.latest?.generation;
    if (seen !== undefined && now !== seen) read(shown);
    seen = now;
  });
}

/** Judges files of the reader's own as `tollgate check` would: nothing is written. */
function checker() {
  const files = h("input", { id: "check-files", type: "file", multiple: true, accept: ".yaml,.yml" });
  const text = h("textarea", { id: "check-text", rows: 6, spellcheck: "false", placeholder: "version: 1 …" });
  const verdict = h("div", { "aria-live": "polite" });
  return h("form.ask", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const chosen = await Promise.all([...files.files].map(async (one) => [one.name, await one.text()]));
      if (text.value.trim()) chosen.push(["pasted.yaml", text.value]);
      if (!chosen.length) throw new Error("Choose the folder's files, or paste one.");
      fill(verdict, told(await post("/policy/validate", { files: Object.fromEntries(chosen) })));
    } catch (error) {
      fill(verdict, problem(error));
    }
  } }, h("p.note", {}, "Says what the whole policy folder, as these files are, would come to; the gateway's keys are added. Nothing is written."),
  h("label", { for: "check-files" }, "Files of the folder"), files, h("label", { for: "check-text" }, "Or the text of one"), text,
  h("div.row", {}, h("button", { type: "submit" }, "Validate")), verdict);
}

function told(verdict) {
  const line = (one) => h("li", {}, h("code", {}, `${one.file}:${one.line}`), ` ${one.message}`);
  return [h("p", {}, verdict.valid ? badge("valid", "good") : badge("not valid", "bad"), ` ${verdict.problems.length} problems, ${verdict.warnings.length} warnings`),
    h("ul", {}, [...verdict.problems, ...verdict.warnings].map(line))];
}

function status(now) {
  return [
    now.rejected && h("section.panel.alarm", { role: "alert", "aria-label": "Rejected" },
      h("h2", {}, "The files as they are now are not in force"), h("pre", { tabindex: 0 }, now.rejected)),
    now.drained.length > 0 && h("p.problem", {}, `Drained: ${now.drained.join(", ")}`),
  ];
}

function diffPanel(generation, inForce) {
  const name = generation.generation === inForce?.generation ? `Generation ${generation.generation}, in force` : `Generation ${generation.generation}`;
  const lines = generation.diff.split("\n").filter(Boolean);
  return [
    panelWith(name, `since ${time(generation.since)}`, lines.length
      ? h("pre.diff", { tabindex: 0, "aria-label": `What generation ${generation.generation} changed` }, lines.map((line) => h("span", { class: kind(line) }, `${line}\n`)))
      : h("p.empty", {}, "Nothing was changed from the generation before, or there is none.")),
    Object.entries(generation.files).map(([file, text]) => h("details.panel.raw", {}, h("summary", {}, file), h("pre", { tabindex: 0 }, text))),
  ];
}

function kind(line) {
  if (line.startsWith("+++") || line.startsWith("---")) return "file";
  return line.startsWith("@@") ? "hunk" : line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "same";
}

function auditTable(log) {
  return [
    log.problems.map((text) => h("p.problem", { role: "alert" }, text)),
    table("Changes by API and command", [
      { name: "When", head: true, cell: (one) => (one.at ? time(one.at) : "–") },
      { name: "Who", wide: true, cell: (one) => Object.values(one.by || {}).join(" ") },
      { name: "What", cell: (one) => one.action || "–" },
      { name: "Of", wide: true, cell: (one) => one.target ?? "–" },
      { name: "Result", wide: true, cell: (one) => (one.ok ? badge("done", "good") : badge(one.error || "refused", "bad")) },
      { name: "No.", right: true, small: true, cell: (one) => count(one.number) },
    ], log.entries, { empty: "Nothing was changed by API or command. Edits of files are in the generations above." }),
  ];
}

function time(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}
