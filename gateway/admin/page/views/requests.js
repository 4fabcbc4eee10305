// The newest requests that fit a filter, a page at a time.

import { get, query } from "../api.js";
import { fill, h } from "../dom.js";
import { count, dollars, moment, seconds } from "../format.js";
import { Picker, TimeRange, field, loading, outcome, problem, table } from "../parts.js";
import { explainLink } from "./explain.js";

export const requestLink = (id) => `#/requests/${encodeURIComponent(id)}`;

export function requestTable(rows, { brief = false } = {}) {
  const columns = [
    { name: "Time", head: true, cell: (one) => h("a", { href: requestLink(one.id), title: one.id }, moment(one.created)) },
    { name: "Status", cell: outcome },
    { name: "Model", wide: true, cell: (one) => (one.answered_model && one.answered_model !== one.model ? `${one.model} → ${one.answered_model}` : one.model) },
    { name: "Tenant", cell: (one) => one.tenant },
    { name: "Key", small: true, cell: (one) => one.key },
    { name: "Backend", small: true, cell: (one) => one.backend || "–" },
    { name: "In", right: true, small: true, cell: (one) => count(one.prompt_tokens) },
    { name: "Out", right: true, cell: (one) => count(one.completion_tokens) },
    { name: "Cost", right: true, cell: (one) => dollars(one.usd) },
    { name: "Took", right: true, cell: (one) => seconds(one.seconds) },
    { name: "User agent", small: true, wide: true, cell: (one) => one.user_agent || "–" },
    { name: "", small: true, cell: (one) => h("a", { href: explainLink(one.key, one.model), onclick: (event) => event.stopPropagation(), title: "What would happen to such a request now" }, "why?") },
  ];
  return table(brief ? "Newest requests" : "Requests", brief ? columns.filter((one) => one.name !== "User agent") : columns, rows, {
    empty: "No requests yet. Send one, or try the playground.",
    onpick: (one) => {
      if (!getSelection().toString()) location.hash = requestLink(one.id);
    },
  });
}

const OUTCOMES = [["", "all"], ["answered", "answered by a model"], ["cached", "answered by a cache"], ["failed", "failed (5xx)"], ["limited", "limited (429)"], ["refused", "refused (other 4xx)"], ["left", "client left (499)"]];

export function requests(place) {
  const list = h("div", {}, loading());
  const more = h("div.more", {});
  const now = () => search();
  const pickers = [["tenant", "Tenant"], ["key", "Key"], ["model", "Model"], ["backend", "Backend"], ["error", "Error"]].map(([name, label]) => new Picker(name, label, { onchange: now }));
  const time = new TimeRange(now);
  const kind = h("select", { name: "outcome", onchange: now }, OUTCOMES.map(([value, text]) => h("option", { value }, text)));
  const form = h("form.filters", { role: "search", "aria-label": "Filter requests", onsubmit: (event) => {
    event.preventDefault();
    search();
  } },
  time.element, field("Outcome", kind), pickers.map((one) => one.element),
  field("Slower than, s", h("input", { name: "min_seconds", type: "number", min: 0, step: "any" })),
  h("button", { type: "submit" }, "Search"));
  const jump = h("form.filters", { role: "search", "aria-label": "Open a request by its id", onsubmit: (event) => {
    event.preventDefault();
    const id = new FormData(jump).get("id").trim();
    if (id) location.hash = requestLink(id);
  } }, h("label.field.long", {}, "Request id", h("input", { name: "id", spellcheck: "false", autocomplete: "off", placeholder: "req_…" })), h("button", { type: "submit" }, "Open"));
  fill(place, h("h1", {}, "Requests"), h("section.panel", {}, h("div.filter-row", {}, form, jump), list, more));
  let rows = [];
  let asked = 0;
  async function search(after = "") {
    const mine = (asked += 1);
    const { span, from, to, ...typed } = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
    const values = { ...typed, ...time.value };
    try {
      const found = await get(`/requests${query({ ...values, limit: 50, after })}`);
      if (mine !== asked) return;
      rows = after ? [...rows, ...found.requests] : found.requests;
      fill(list, rows.length || !found.searched_to ? requestTable(rows) : h("p.empty", {}, `None since ${moment(found.searched_to)}.`));
      fill(more, found.next && h("button", { id: "older", type: "button", onclick: () => search(found.next) }, found.searched_to ? `Search before ${moment(found.searched_to)}` : "Older"));
    } catch (error) {
      if (mine === asked) fill(list, problem(error));
    }
  }
  search();
  const month = Math.floor(Date.now() / 1000) - 30 * 86400;
  const used = (by, most = 100) => get(`/usage${query({ by, since: month, top: most })}`).then((found) => found.rows.map((row) => row[by]));
  const named = (path, of) => get(path).then((found) => found[of].map((one) => one.id || one.name));
  const offer = (name, ...sources) => Promise.allSettled(sources).then((all) => pickers.find((one) => one.name === name).offer(
    all.flatMap((one) => one.value || []).filter((one) => one && one !== "(others)" && one !== "ok")));
  offer("tenant", named("/tenants", "tenants"), used("tenant"));
  offer("key", named("/keys", "keys"), used("key"));
  offer("model", named("/models", "models"), used("model"));
  offer("backend", named("/backends", "backends"));
  offer("error", used("reason"));
}
