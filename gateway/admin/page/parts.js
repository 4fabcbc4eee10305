// What several views are made of: tables, figures, bars, states, notes.

import { h } from "./dom.js";
import { percent } from "./format.js";

/**
 * A table. Each column is {name, cell(row), right, small, head}: `right` aligns numbers, `small` marks a column that
 * narrow screens leave out, `head` makes its cells the rows' headers.
 */
export function table(caption, columns, rows, { empty = "Nothing yet.", onpick, key } = {}) {
  if (!rows.length) return h("p.empty", {}, empty);
  const kind = (column) => [column.right && "right", column.small && "small", column.wide && "wide"].filter(Boolean).join(" ") || null;
  const line = (row) => h("tr", onpick ? { class: "pick", onclick: () => onpick(row) } : {}, columns.map((column) =>
    h(column.head ? "th" : "td", { class: kind(column), scope: column.head ? "row" : null }, column.cell(row))));
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption },
    h("table", { id: key },
      h("caption.unseen", {}, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { class: kind(column), scope: "col" }, column.name)))),
      h("tbody", {}, rows.map(line))));
}

export function panel(title, ...children) {
  return h("section.panel", { "aria-label": title }, h("header", {}, h("h2", {}, title)), ...children);
}

export function panelWith(title, beside, ...children) {
  return h("section.panel", { "aria-label": title },
    h("header", {}, h("h2", {}, title), h("div.beside", {}, beside)), ...children);
}

/** A figure with its name, and what else is to be said of it. */
export function figure(name, value, { unit = "", note = "", kind = "" } = {}) {
  return h("div.figure", { class: kind ? `figure ${kind}` : "figure" },
    h("dt", {}, name), h("dd", {}, value, unit && h("span.unit", {}, unit), h("span.note", {}, note || "\u00a0")));
}

/** A share as a bar, and in words for who does not see it. */
export function bar(share, label, { limited = true } = {}) {
  const part = Math.max(0, Math.min(1, share || 0));
  const kind = !limited ? "plain" : share >= 1 ? "full" : share >= 0.8 ? "near" : "";
  return h("span.bar", { class: `bar ${kind}`, role: "img", "aria-label": label || percent(share) },
    h("span", { vars: { "--share": `${part * 100}%` } }));
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}`, title: text.length > 40 ? text : null }, text);
}

export function status(code, error) {
  const kind = code < 400 ? "good" : code === 499 ? "" : code === 429 || code < 500 ? "warn" : "bad";
  return badge(error ? `${code} ${error}` : String(code), kind);
}

export function problem(error) {
  return h("p.problem", { role: "alert" }, error.message);
}

export function loading() {
  return h("p.empty", {}, "Loading …");
}

/** Buttons of which one is chosen. */
export function choice(label, options, chosen, onchoose) {
  return h("div.choice", { role: "group", "aria-label": label }, options.map(([value, text]) =>
    h("button", { id: `${label}-${value}`.replaceAll(" ", "-"), type: "button",
      "aria-pressed": String(value === chosen), onclick: () => onchoose(value) }, text)));
}
