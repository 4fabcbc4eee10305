// What several views are made of: tables, figures, bars, states, notes.

import { h } from "./dom.js";
import { percent } from "./format.js";

/**
 * A table. Each column is {name, cell(row), right, small, head}: `right` aligns numbers, `small` marks a column that
 * narrow screens leave out, `head` makes its cells the rows' headers.
 */
export function table(caption, columns, rows, { empty = "Nothing yet.", onpick, key } = {}) {
  if (!rows.length) return h("p.empty", {}, empty);
  const kind = (column) => [column.right && "right", column.small && "small", column.wide && "wide", column.long && "long"].filter(Boolean).join(" ") || null;
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

/** How a backend is used, in words and a colour; null where nothing keeps it from being asked. */
export function outOfUse({ drained, disabled }) {
  if (!drained && !disabled) return null;
  return h("span", {}, drained && badge("drained", "warn"), disabled && badge(`disabled: ${disabled}`, "off"));
}

/** The regions to which content may go. */
export function regions(within) {
  return !within ? "anywhere" : within.join(", ") || badge("nowhere", "bad");
}

export function status(code, error) {
  const kind = code < 400 ? "good" : code === 499 ? "" : code === 429 || code < 500 ? "warn" : "bad";
  return badge(error ? `${code} ${error}` : String(code), kind);
}

/** What is read of a request: its status, and whether a cache answered it. */
export function outcome(one) {
  return one.cached ? [status(one.status, one.error), " ", badge("cached", "cached")] : status(one.status, one.error);
}

/** A field with its label. */
export function field(label, input, { note = "", long = false } = {}) {
  return h(long ? "label.field.long" : "label.field", {}, label, input, note && h("span.under", {}, note));
}

const MOST = 300;

/** A drop-down of names, or, of very many, a field that proposes them. `offer` replaces them and keeps what is chosen. */
export class Picker {
  constructor(name, label, { any = "all", onchange } = {}) {
    Object.assign(this, { name, any, onchange });
    this.element = field(label, null);
    this.offer([]);
  }

  get value() {
    return this.input.value.trim();
  }

  offer(names, chosen = this.input?.value || "") {
    const all = [...new Set([...(chosen ? [chosen] : []), ...names])].filter(Boolean).sort();
    const had = this.input && document.activeElement === this.input;
    const options = all.map((one) => h("option", { value: one }, one));
    if (all.length <= MOST) {
      this.input = h("select", { name: this.name, onchange: this.onchange }, h("option", { value: "" }, this.any), options);
      this.list = null;
    } else {
      this.list = h("datalist", { id: `names-${this.name}` }, options);
      this.input = h("input", { name: this.name, list: this.list.id, placeholder: this.any, spellcheck: "false", autocomplete: "off", onchange: this.onchange });
    }
    this.input.value = chosen;
    this.element.replaceChildren(this.element.firstChild, this.input, ...(this.list ? [this.list] : []));
    if (had) this.input.focus();
  }
}

const SPANS = [["", "any time"], ["900", "15 minutes"], ["3600", "1 hour"], ["86400", "24 hours"], ["604800", "7 days"], ["2592000", "30 days"], ["own", "from … to …"]];

/** From when to when: one of some spans up to now, or two moments. */
export class TimeRange {
  constructor(onchange) {
    this.span = h("select", { name: "span", onchange: () => {
      this.show();
      onchange();
    } }, SPANS.map(([value, text]) => h("option", { value }, text)));
    const moment = (name) => h("input", { name, type: "datetime-local", onchange });
    [this.from, this.to] = [moment("from"), moment("to")];
    this.own = [field("From", this.from, { long: true }), field("To", this.to, { long: true })];
    this.element = [field("Time", this.span), ...this.own];
    this.show();
  }

  show() {
    for (const one of this.own) one.hidden = this.span.value !== "own";
  }

  /** {since, until} in Unix time; empty where there is none. */
  get value() {
    const unix = (input) => (input.value ? Math.floor(new Date(input.value).getTime() / 1000) : "");
    if (this.span.value === "own") return { since: unix(this.from), until: unix(this.to) };
    return { since: this.span.value ? Math.floor(Date.now() / 1000) - Number(this.span.value) : "", until: "" };
  }
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
