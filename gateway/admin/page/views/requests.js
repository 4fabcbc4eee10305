// The newest requests that fit a filter, a page at a time.

import { get, query } from "../api.js";
import { fill, h } from "../dom.js";
import { count, dollars, moment, seconds } from "../format.js";
import { loading, problem, status, table } from "../parts.js";

export const requestLink = (id) => `#/requests/${encodeURIComponent(id)}`;

export function requestTable(rows, { brief = false } = {}) {
  const columns = [
    { name: "Time", head: true, cell: (one) => h("a", { href: requestLink(one.id), title: one.id }, moment(one.created)) },
    { name: "Status", cell: (one) => status(one.status, one.error) },
    { name: "Model", wide: true, cell: (one) => (one.answered_model && one.answered_model !== one.model ? `${one.model} → ${one.answered_model}` : one.model) },
    { name: "Tenant", cell: (one) => one.tenant },
    { name: "Key", small: true, cell: (one) => one.key },
    { name: "Backend", small: true, cell: (one) => one.backend || "–" },
    { name: "In", right: true, small: true, cell: (one) => count(one.prompt_tokens) },
    { name: "Out", right: true, cell: (one) => count(one.completion_tokens) },
    { name: "Cost", right: true, cell: (one) => dollars(one.usd) },
    { name: "Took", right: true, cell: (one) => seconds(one.seconds) },
    { name: "User agent", small: true, wide: true, cell: (one) => one.user_agent || "–" },
  ];
  return table(brief ? "Newest requests" : "Requests", brief ? columns.filter((one) => one.name !== "User agent") : columns, rows, {
    empty: "No requests yet. Send one, or try the playground.",
    onpick: (one) => {
      if (!getSelection().toString()) location.hash = requestLink(one.id);
    },
  });
}

export function requests(place) {
  const list = h("div", {}, loading());
  const more = h("div.more", {});
  const field = (name, label, attributes = {}) => h("label.field", {}, label, h("input", { name, spellcheck: "false", autocomplete: "off", ...attributes }));
  const form = h("form.filters", { role: "search", "aria-label": "Filter requests", onsubmit: (event) => {
    event.preventDefault();
    search();
  } },
  field("tenant", "Tenant"), field("key", "Key"), field("model", "Model"), field("backend", "Backend"),
  field("error", "Error"), field("min_seconds", "Slower than, s", { type: "number", min: 0, step: "any" }),
  h("label.tick", {}, h("input", { type: "checkbox", name: "failed", value: "true" }), "Failed only"),
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
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
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
}
