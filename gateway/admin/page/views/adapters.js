// Adapters: those of tenants, which an operator may delete, those that servers list, and servers that do not say.

import { remove } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { bytes, moment } from "../format.js";
import { badge, panel, problem, table } from "../parts.js";

/** Nothing where the policy has none. `trouble`, where questions and problems stand, is false for who may not delete. */
export function adapterPanels(told, trouble, read) {
  if (!told.enabled) return [];
  const silent = told.servers.filter((one) => one.problem || one.left_out);
  const listed = told.listed.length || told.servers.length;
  return [
    panel("Adapters of tenants", table("Adapters of tenants", [
      { name: "Adapter", head: true, cell: (one) => h("span", {}, one.model, h("span.under", {}, one.id)) },
      { name: "Tenant", cell: (one) => h("span", {}, one.tenant, one.shared_with.length > 0 && h("span.under", {}, `shared with ${one.shared_with.join(", ")}`)) },
      { name: "Rank", right: true, small: true, cell: (one) => String(one.rank) },
      { name: "Size", right: true, small: true, cell: (one) => bytes(one.bytes) },
      { name: "Uploaded", small: true, cell: (one) => moment(one.created_at) },
      { name: "Loaded by", cell: (one) => one.held_by.join(", ") || "–" },
      trouble && { name: "", right: true, cell: (one) => h("button.quiet", { id: `remove-${one.id}`, type: "button", onclick: () => ask(one, trouble, read) }, "Delete", h("span.unseen", {}, ` the adapter ${one.model} of ${one.tenant}`)) },
    ].filter(Boolean), told.adapters, { empty: "No tenant has uploaded one." })),
    listed && panel("Adapters that servers list", table("Adapters that servers list", [
      { name: "Adapter", head: true, cell: (one) => h("span", {}, one.model, hidden(one)) },
      { name: "Listed by", cell: (one) => one.listed_by.join(", ") },
      { name: "Loaded by", small: true, cell: (one) => one.ready_on.join(", ") || "–" },
    ], told.listed, { empty: "No server lists any." }),
    told.listed_left_out > 0 && h("p.note", {}, `and ${told.listed_left_out} more`),
    silent.map((one) => h("p", {}, h("span.note", {}, `${one.name} `), one.problem && badge(one.problem, "warn"), one.left_out > 0 && badge(`lists ${one.left_out} that cannot be asked for`, "warn")))),
  ].filter(Boolean);
}

/** Whether it is to be deleted. */
function ask(one, trouble, read) {
  fill(trouble, panel(`Delete ${one.model} of ${one.tenant}`,
    h("p", {}, "Requests to it are refused from now on. It cannot be brought back."),
    h("div.row", {},
      h("button.danger", { id: "discard", type: "button", onclick: () => discard(one, trouble, read) }, "Delete"),
      " ",
      h("button.quiet", { type: "button", onclick: () => fill(trouble) }, "Keep"))));
}

async function discard(one, trouble, read) {
  fill(trouble);
  try {
    await remove(`/adapters/${encodeURIComponent(one.id)}`);
    announce(`${one.model} of ${one.tenant} is deleted`);
  } catch (error) {
    fill(trouble, problem(error));
  }
  read();
}

function hidden(one) {
  if (one.hidden_by_model) return h("span.under", {}, "hidden by a model of the policy");
  return one.hidden_from.length > 0 && h("span.under", {}, `hidden by their own from ${one.hidden_from.join(", ")}`);
}
