// What would happen to a request now, stage by stage, with the lines of the policy. Nothing is sent.

import { get, post } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { badge, panelWith, problem } from "../parts.js";

const PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/v1/embeddings"];
const KINDS = { passes: "", changes: "warn", answers: "cached", refuses: "bad" };

/** Asks of a key and a model: `#/explain/alice/gpt-4o-mini`, as requests link here. */
export const explainLink = (key, model) => `#/explain/${encodeURIComponent(key)}/${encodeURIComponent(model)}`;

export function explain(place, { argument }) {
  const cut = argument.indexOf("/");
  const asked = cut < 0 ? [argument, ""] : [argument.slice(0, cut), argument.slice(cut + 1)];
  const key = h("input", { id: "explain-key", required: true, value: asked[0], autocomplete: "off", spellcheck: "false", list: "explain-keys" });
  const known = h("datalist", { id: "explain-keys" });
  const path = h("select", { id: "explain-path" }, h("option", { value: "" }, "as its body tells"), PATHS.map((one) => h("option", { value: one }, one)));
  const body = h("textarea", { id: "explain-body", rows: 7, required: true, spellcheck: "false" });
  body.value = JSON.stringify({ model: asked[1] || "…", messages: [{ role: "user", content: "Hello" }] }, null, 2);
  const told = h("div.stack", { "aria-live": "polite" });
  const form = h("form.ask", { onsubmit: (event) => {
    event.preventDefault();
    ask();
  } }, h("p.note", {}, "Decided by this worker's limits, breakers, load and caches. Nothing is sent or counted."),
  h("label", {}, "API key's id", key), known, h("label", {}, "Path", path), h("label", {}, "Body of the request", body),
  h("div.row", {}, h("button.main", { type: "submit" }, "Explain")));
  fill(place, h("h1", {}, "Explain a request"), h("section.panel", { "aria-label": "The request" }, form), told);
  get("/keys").then((found) => fill(known, found.keys.slice(0, 300).map((one) => h("option", { value: one.id }))), () => {});
  if (asked[1]) ask();

  async function ask() {
    try {
      const wanted = { key: key.value.trim(), body: JSON.parse(body.value), ...(path.value && { path: path.value }) };
      const found = await post("/explain", wanted);
      fill(told, panelWith("What would happen", `policy ${found.generation}`, h("p", {}, found.outcome.said), h("ol.steps", {}, found.steps.map(step)),
        found.assumed.length > 0 && h("p.note", {}, `Taken as given: ${found.assumed.join("; ")}.`)));
      announce(found.outcome.said);
    } catch (error) {
      fill(told, problem(error));
    }
  }
}

function step(one) {
  return h("li", {}, h("b", {}, one.stage), " ", one.verdict !== "passes" && badge(one.verdict, KINDS[one.verdict]), " ", one.said, lines(one.policy),
    (one.rows.length > 0 || one.alternatives.length > 0) && h("ul", {}, one.rows.map(([text, policy]) => h("li", {}, text, lines(policy))),
      one.alternatives.map((other) => h("li", {}, h("s", {}, other.what), `: ${other.why}`, lines(other.policy)))));
}

function lines(policy) {
  return policy.map((line) => h("code.line", { title: line.key }, ` ${line.at || line.key}${line.written ? "" : " (default)"}`));
}
