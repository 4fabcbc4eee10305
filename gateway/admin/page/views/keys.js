// API keys: who has which, with which limits; made, changed, rotated and revoked. A key's text is shown once.

import { get, patch, post, query, remove } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { count, dollars } from "../format.js";
import { badge, field, loading, panel, panelWith, problem, regions, table } from "../parts.js";

const QUOTAS = [["requests_per_minute", "Requests a minute"], ["tokens_per_minute", "Tokens a minute"], ["tokens_per_day", "Tokens a day"], ["concurrent_requests", "Requests at once"]];
const BUDGETS = [["usd_per_day", "Dollars a day"], ["usd_per_month", "Dollars a month"]];
const OVERLAPS = [["0s", "not at all"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"]];
const path = (id, more = "") => `/keys/${encodeURIComponent(id)}${more}`;

export function keys(place, { state }) {
  const may = state.role !== "viewer";
  const list = h("div", {}, loading());
  const secret = h("div", {});
  const form = h("div", {});
  const trouble = h("div", {});
  const find = h("input", { id: "find-key", type: "search", autocomplete: "off", spellcheck: "false", oninput: () => show() });
  let found = [];
  let bounds = { tenants: {}, tiers: {}, residency: [] };
  let names = { tenants: [], models: [] };
  fill(place, h("h1", {}, "Keys"), secret, trouble, form, panelWith("API keys",
    [may && h("button.main", { id: "new-key", type: "button", onclick: () => ask(null) }, "New key"), h("label", { for: "find-key", class: "unseen" }, "Find a key"), find], list));
  find.placeholder = "Find by id, tenant or model";

  async function read() {
    try {
      ({ keys: found, ...bounds } = await get("/keys"));
      show();
    } catch (error) {
      fill(list, problem(error));
    }
  }

  function show() {
    const wanted = find.value.trim().toLowerCase();
    const fits = (one) => !wanted || [one.id, one.tenant, one.tier, ...one.models].some((text) => text.toLowerCase().includes(wanted));
    fill(list, keyTable(found.filter(fits).slice(0, 500), bounds, may && { ask, rotate, revoke }),
      may && found.some((one) => !one.changeable) && h("p.note", {}, "A key that stands in a file of the operator's own is changed and rotated there; this page writes keys.yaml, keys.jsonl and the state folder."),
      found.length > 500 && h("p.note", {}, `${count(found.length)} keys; the first 500 that fit are shown.`));
  }

  /** Does what `work` does, says so, and reads the keys anew. */
  async function make(done, work) {
    fill(trouble);
    try {
      const told = await work();
      announce(done);
      fill(form);
      if (told.key) reveal(told);
      if (told.in_force === false) fill(trouble, h("p.problem", { role: "alert" }, `It is written to ${told.file}, and not in force in every worker yet. See Policy for why.`));
      if (told.problems) fill(trouble, h("p.problem", { role: "alert" }, told.problems));
    } catch (error) {
      fill(trouble, problem(error));
      place.scrollIntoView({ block: "start" });
    }
    await read();
  }

  function reveal(told) {
    const text = h("output", { id: "secret", tabindex: 0 }, told.key);
    const copy = h("button", { type: "button", onclick: async () => {
      try {
        await navigator.clipboard.writeText(told.key);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(text);
      }
    } }, "Copy");
    fill(secret, h("section.panel.secret", { "aria-label": "The new key" },
      h("p", {}, h("b", {}, `Key ${told.id}. `), "Keep it now: it is shown this once, and kept nowhere.",
        told.previous_until && ` The one before is accepted until ${when(told.previous_until)}.`),
      text, h("div.row", {}, copy, h("button.quiet", { id: "seen", type: "button", onclick: () => fill(secret) }, "I have it"))));
    text.focus();
  }

  function ask(one) {
    fill(form, keyForm(one, names, () => fill(form), (body) => (one
      ? make(`The limits of ${one.id} are changed`, () => patch(path(one.id), { version: one.version, ...body }))
      : make("The key is made", () => post("/keys", body)))));
    form.querySelector("input, select")?.focus();
    form.scrollIntoView({ block: "nearest" });
  }

  function rotate(one) {
    const overlap = h("select", { id: "overlap" }, OVERLAPS.map(([value, text]) => h("option", { value }, text)));
    overlap.value = "24h";
    sure(`Rotate ${one.id}`, "Another key is made under the same id, with the same limits.", "Rotate",
      () => make(`${one.id} is rotated`, () => post(path(one.id, "/rotate"), { overlap: overlap.value })),
      field("The key as it is now is accepted for another", overlap, { long: true }));
  }

  function revoke(one) {
    sure(`Revoke ${one.id}`, "Whoever sends it is refused from now on; requests in flight end as ever. It cannot be brought back.", "Revoke",
      () => make(`${one.id} is revoked`, () => remove(path(one.id))), null, "danger");
  }

  function sure(title, about, verb, work, more = null, kind = "main") {
    fill(form, panel(title, h("form.key-form", { onsubmit: (event) => {
      event.preventDefault();
      work();
    } }, h("p", {}, about), more, h("div.row", {}, h(`button.${kind}`, { id: "sure", type: "submit" }, verb), h("button", { type: "button", onclick: () => fill(form) }, "Cancel")))));
    form.querySelector("select, button").focus();
    form.scrollIntoView({ block: "nearest" });
  }

  read();
  if (may) {
    Promise.allSettled([get("/tenants"), get("/models"), get(`/usage${query({ by: "tenant", top: 100 })}`)]).then(([tenants, models]) => {
      names = { tenants: tenants.value?.tenants.map((one) => one.name) || [], tiers: [...new Set(tenants.value?.tenants.map((one) => one.tier))], models: models.value?.models.map((one) => one.name) || [] };
    });
  }
}

function keyTable(rows, bounds, act) {
  return table("API keys", [
    { name: "Key", head: true, cell: (one) => h("span", {}, one.id, one.rotated_until && h("span.under", {}, `the one before until ${when(one.rotated_until)}`)) },
    { name: "Tenant", cell: (one) => h("span", {}, one.tenant, h("span.under", {}, `tier ${one.tier}`)) },
    { name: "Models", wide: true, cell: (one) => (one.models.join() === "*" ? "all" : one.models.join(", ")) },
    { name: "Limits", cell: (one) => limits(one, bounds) },
    { name: "Stays in", cell: (one) => staysIn(one, bounds) },
    { name: "Opens", small: true, cell: (one) => one.scopes.join(", ") },
    { name: "Expires", cell: (one) => (one.expired ? badge(`expired ${one.expires}`, "bad") : one.expires || "never") },
    { name: "From", small: true, wide: true, cell: (one) => one.allow_ips.join(", ") || "anywhere" },
    act && { name: "", right: true, cell: (one) => h("span", {},
      button("Limits", one, () => act.ask(one), one.changeable), button("Rotate", one, () => act.rotate(one), one.changeable), button("Revoke", one, () => act.revoke(one), true)) },
  ].filter(Boolean), rows, { empty: "No key fits." });
}

function button(verb, one, onclick, enabled) {
  return h("button.quiet", { type: "button", id: `${verb}-${one.id}`, onclick, disabled: !enabled, title: enabled ? null : `It is in ${one.where}, which the gateway does not write.` }, verb, h("span.unseen", {}, ` ${one.id}`));
}

/** Its own, and those that it shares with all keys of its tenant, and of its tier. */
function limits(one, { tenants, tiers }) {
  const lines = [["", one], [", its tenant's", tenants[one.tenant]], [", its tier's", tiers[one.tier]]].flatMap(([whose, bound]) => (bound ? [
    ...QUOTAS.filter(([name]) => bound.quotas[name]).map(([name, label]) => `${count(bound.quotas[name])} ${label.toLowerCase()}${whose}`),
    ...BUDGETS.filter(([name]) => bound.budget[name]).map(([name, label]) => `${dollars(bound.budget[name])} ${label.toLowerCase().replace("dollars ", "")}${whose}`),
  ] : []));
  return lines.length ? lines.map((text) => h("span.under", {}, text)) : h("span.note", {}, "none");
}

/** Where its content may go, and who says so. */
function staysIn(one, { tenants, residency }) {
  const by = [one.residency.length && "it", tenants[one.tenant]?.residency.length && "its tenant", residency.length && "the policy"].filter(Boolean);
  return h("span", {}, regions(one.stays_in), tenants[one.tenant]?.local_only && [" ", badge("local only")],
    by.length > 0 && h("span.under", {}, `by ${by.join(", ")}`));
}

function keyForm(one, names, cancel, send) {
  const input = (name, attributes = {}) => h("input", { name, autocomplete: "off", spellcheck: "false", ...attributes });
  const number = (name, value, attributes = {}) => input(name, { type: "number", min: 1, step: 1, value: value ?? "", placeholder: "no limit", ...attributes });
  const tenants = h("datalist", { id: "tenant-names" }, (names.tenants || []).map((text) => h("option", { value: text })));
  const tiers = h("datalist", { id: "tier-names" }, (names.tiers || []).map((text) => h("option", { value: text })));
  const admin = h("input", { type: "checkbox", name: "admin" });
  const tomorrow = new Date(Date.now() + 86400000).toISOString().slice(0, 10);
  const form = h("form.key-form", { onsubmit: (event) => {
    event.preventDefault();
    send(bodyOf(new FormData(form), one));
  } },
  h("div.filters", {},
    !one && field("Id", input("id", { placeholder: "made up" })),
    !one && field("Tenant", input("tenant", { required: true, value: "default", list: tenants.id })),
    field("Tier", input("tier", { value: one?.own_tier || "", list: tiers.id, placeholder: "its tenant's" })),
    field("Models, with commas", input("models", { required: true, value: one ? one.models.join(", ") : "*" }), { long: true }),
    field("Expires (the day it ends)", input("expires", { type: "date", min: tomorrow, value: one?.expires || "" }), { long: true }),
    field("Only from, with commas", input("allow_ips", { value: one ? one.allow_ips.join(", ") : "", placeholder: "anywhere" }), { long: true }),
    field("Stays in regions, with commas", input("residency", { value: one ? one.residency.join(", ") : "", placeholder: "its tenant's" }), { long: true })),
  h("div.filters", {},
    QUOTAS.map(([name, label]) => field(label, number(name, one?.quotas[name]))),
    BUDGETS.map(([name, label]) => field(label, number(name, one?.budget[name], { min: 0.01, step: "any" }))),
    h("label.tick", {}, h("input", { type: "checkbox", name: "strict", checked: one?.quotas.strict }), "Tokens strictly"),
    !one && h("label.tick", {}, admin, "Opens this page, not the models")),
  tenants, tiers,
  h("div.row", {}, h("button.main", { id: "send-key", type: "submit" }, one ? "Change" : "Make the key"), h("button", { type: "button", onclick: cancel }, "Cancel")));
  return panel(one ? `Limits of ${one.id}` : "New key", form);
}

/** What a form says, as the API takes it: of a change all, of a new key what was given. */
function bodyOf(form, one) {
  const text = (name) => String(form.get(name) ?? "").trim();
  const words = (name) => text(name).split(/[\s,]+/).filter(Boolean);
  const numbers = (names) => Object.fromEntries(names.filter(([name]) => text(name)).map(([name]) => [name, Number(text(name))]));
  const all = {
    ...(one ? {} : { id: text("id"), tenant: text("tenant"), scopes: form.get("admin") ? ["admin"] : ["inference"] }),
    tier: text("tier"), models: words("models"), expires: text("expires"), allow_ips: words("allow_ips"), residency: words("residency"),
    quotas: { ...numbers(QUOTAS), ...(form.get("strict") ? { strict: true } : {}) }, budget: numbers(BUDGETS),
  };
  const empty = (value) => value === "" || (typeof value === "object" && !Object.keys(value).length);
  return Object.fromEntries(Object.entries(all).filter(([, value]) => one || !empty(value)).map(([name, value]) => [name, empty(value) ? null : value]));
}

function when(text) {
  return new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
