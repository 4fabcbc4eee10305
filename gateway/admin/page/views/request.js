// One request: what it was, and when each stage did what.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { count, dollars, moment, percent, seconds } from "../format.js";
import { badge, loading, outcome, panel, panelWith, problem, table } from "../parts.js";
import { spans } from "../spans.js";
import { explainLink } from "./explain.js";

export function request(place, { argument }) {
  fill(place, h("h1", {}, "Request"), loading());
  let gone = false;
  written(`/requests/${encodeURIComponent(argument)}`, () => gone).then((found) => {
    if (!gone) fill(place, heading(argument), found.request && facts(found.request), found.receipt ? receiptParts(found.receipt) : h("p.empty", {}, "Its receipt is not kept any more: receipts are there for an hour."));
  }, (error) => {
    if (!gone) fill(place, heading(argument), problem(error));
  });
  return () => {
    gone = true;
  };
}

/** What was asked a moment ago may not be written yet. */
async function written(path, isGone, tries = 6) {
  for (let left = tries; ; left -= 1) {
    try {
      return await get(path);
    } catch (error) {
      if (error.status !== 404 || left <= 1 || isGone()) throw error;
      await new Promise((resume) => setTimeout(resume, 700));
    }
  }
}

function heading(id) {
  return h("div.heading", {}, h("p", {}, h("a", { href: "#/requests" }, "Requests")), h("h1.id", {}, id));
}

function facts(one) {
  const pairs = [
    ["Status", outcome(one)],
    ["Time", moment(one.created)],
    ["Model", one.model],
    ["Answered by", one.answered_model ? [one.answered_model, one.backend ? ` at ${one.backend}${one.target_model ? ` (${one.target_model})` : ""}` : ""].join("") : "–"],
    ["Tenant", `${one.tenant}, tier ${one.tier}`],
    ["Key", one.key],
    ["Tokens", `${count(one.prompt_tokens)} in${one.cached_tokens ? ` (${count(one.cached_tokens)} cached)` : ""}, ${count(one.completion_tokens)} out${one.estimated ? ", estimated" : ""}`],
    ["Cost", dollars(one.usd)],
    ["Took", seconds(one.seconds)],
    ["Attempts", count(one.attempts)],
    ["User agent", one.user_agent || "–"],
    ["First token, between tokens", [one.first_token, one.inter_token].map((each) => each == null ? "–" : `${(each * 1000).toFixed(1)} ms`).join(", ")],
    ["Finish", `${one.finish_reason || "–"}${one.model_refused ? " (the model refused)" : ""}`],
    ["End user", one.end_user || "–"],
    ["Tags", (one.tags || []).join(", ") || "–"],
    ["Now", h("a", { href: explainLink(one.key, one.model) }, "what would happen to such a request, and why?")],
  ];
  return h("section.panel", { "aria-label": "Facts" }, h("dl.facts", {}, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

function receiptParts(receipt) {
  return [
    costPanel(receipt.stages.quota),
    panelWith("Waterfall", `${seconds(receipt.stages.trace?.seconds)} in all`, waterfall(receipt)),
    h("details.panel.raw", {}, h("summary", {}, "Receipt, as it is kept"), h("pre", { tabindex: 0 }, JSON.stringify(receipt, null, 2))),
  ];
}

const SOURCES = { cache: "A cache answered: nothing is charged.", estimated: "The backend did not say what it used: the tokens are estimated.", backend: "The tokens are those that the backend reported." };

/** What was charged, for what, and what was held for it before it was known. */
function costPanel(quota) {
  if (!quota || quota.cost_usd === undefined) return null;
  const held = [
    quota.reserved_tokens > 0 && `${count(quota.reserved_tokens)} tokens`,
    quota.reserved_usd !== undefined && dollars(quota.reserved_usd),
  ].filter(Boolean).join(" and ");
  const back = quota.reserved_usd !== undefined && `, ${dollars(Math.max(0, quota.reserved_usd - quota.cost_usd))} of it given back`;
  return panelWith("Cost", dollars(quota.cost_usd),
    h("p", {}, held ? ["Reserved when it was admitted: ", h("b", {}, held), ", the most that it was to come to. Charged when it had ended: ", h("b", {}, `${count(quota.used_tokens)} tokens and ${dollars(quota.cost_usd)}`), back || "", "."]
      : "Nothing was reserved: its key and tenant have no limit on tokens or dollars."),
    h("p.note", {}, SOURCES[quota.source] || "", quota.price_factor !== undefined && ` A batch's line: ${percent(quota.price_factor)} of the price.`,
      quota.unpriced?.length > 0 && ` Without a price, and not charged: ${quota.unpriced.join(", ")}.`),
    quota.spent?.length > 0 && table("Charges", [
      { name: "For", head: true, cell: (one) => one.purpose },
      { name: "Model", wide: true, cell: (one) => `${one.backend} / ${one.target}` },
      { name: "Tokens in", right: true, cell: (one) => count(one.prompt_tokens) },
      { name: "Tokens out", right: true, cell: (one) => count(one.completion_tokens) },
      { name: "", small: true, cell: (one) => one.estimated && badge("estimated", "warn") },
      { name: "Cost", right: true, cell: (one) => dollars(one.cost_usd) },
    ], quota.spent));
}

function waterfall(receipt) {
  const { all, lines } = spans(receipt);
  const share = (value) => `${Math.max(0, Math.min(100, (value / all) * 100))}%`;
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", { vars: { "--at": `${part * 100}%` } }, seconds(part * all)));
  return h("div.waterfall", {},
    h("div.axis", { "aria-hidden": "true" }, marks),
    h("ol", {}, lines.map((line) => h("li", {},
      h("span.stage", {}, line.name, line.state && badge(line.state, line.kind)),
      h("span.lane", { role: "img", "aria-label": line.seconds === null ? "no time known" : `from ${seconds(line.at)} for ${seconds(line.seconds)}` },
        line.seconds !== null && h("span", { class: `span ${line.hue}`, vars: { "--from": share(line.at), "--long": share(line.seconds) } })),
      h("span.took", {}, line.seconds === null ? "" : seconds(line.seconds)),
      line.note && h("span.about", {}, line.note)))));
}
