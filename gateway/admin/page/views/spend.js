// What was spent, over time and by whom; and the same as CSV.

import { address, get, query } from "../api.js";
import { Chart } from "../chart.js";
import { fill, h } from "../dom.js";
import { count, dollars, percent } from "../format.js";
import { bar, choice, field, loading, panel, panelWith, problem, table } from "../parts.js";

const DAY = 86400;
const TOP = 7;
const GROUPS = [["tenant", "Tenant"], ["key", "Key"], ["model", "Model"], ["backend", "Provider"], ["user_agent", "User agent"],
  ["user", "End user"], ["tag", "Tag"], ["finish_reason", "Ending"], ["experiment", "Experiment"], ["arm", "Arm"]];
const MOST = 200;
const TIMES = [["1", "24 hours"], ["7", "7 days"], ["30", "30 days"], ["365", "12 months"], ["own", "From … to …"]];
const AMOUNTS = [["usd", "Dollars"], ["requests", "Requests"], ["tokens", "Tokens"]];
const OF = { usd: (row) => row.usd, requests: (row) => row.requests, tokens: (row) => row.prompt_tokens + row.completion_tokens };
const SHOW = { usd: dollars, requests: count, tokens: count };

export function spend(place) {
  const chosen = { by: "tenant", then: "", days: "1", amount: "usd" };
  const controls = h("div.controls", {});
  const day = (name, back) => h("input", { name, type: "date", value: new Date(Date.now() - back * DAY * 1000).toISOString().slice(0, 10), onchange: () => read() });
  const [from, to] = [day("from", 30), day("to", 0)];
  const own = h("div.filters", { hidden: true }, field("From (UTC)", from), field("To, that day included", to, { long: true }));
  const picture = h("div", {}, loading());
  const list = h("div", {});
  const save = h("a.button", { download: "usage.csv" }, "Export CSV");
  fill(place, h("h1", {}, "Spend"), controls, own, h("section.panel", { "aria-label": "Over time" }, picture), panelWith("In all", save, list));
  let chart = null;
  let asked = 0;

  async function read() {
    const mine = (asked += 1);
    fill(controls,
      choice("by", GROUPS, chosen.by, set("by")), h("div", {}, second()), choice("time", TIMES, chosen.days, set("days")), choice("amount", AMOUNTS, chosen.amount, set("amount")));
    const by = [chosen.by, chosen.then];
    own.hidden = chosen.days !== "own";
    const { since, until, interval } = span();
    save.href = address(`/usage${query({ by, interval, since, until, format: "csv" })}`);
    try {
      const [series, all] = await Promise.all([
        get(`/usage${query({ by: chosen.by, interval, since, until, top: TOP })}`), get(`/usage${query({ by, since, until, top: 100 })}`)]);
      if (mine !== asked) return;
      draw(series, interval);
      fill(list, totals(all.rows, chosen));
    } catch (error) {
      if (mine === asked) fill(picture, problem(error));
    }
  }

  /** Whole days of UTC where two of them are given; else up to now. */
  function span() {
    const now = Math.floor(Date.now() / 1000);
    const moment = (input) => Math.floor((input.valueAsNumber || now * 1000) / 1000);
    const since = chosen.days === "own" ? moment(from) : now - Number(chosen.days) * DAY;
    const until = chosen.days === "own" ? Math.max(since, moment(to)) + DAY : "";
    const days = ((until || now) - since) / DAY;
    return { since, until, interval: days <= 2 ? "hour" : days > 92 ? "month" : "day" };
  }

  /** The other group of the table and the export. */
  function second() {
    const options = GROUPS.filter(([name]) => name !== chosen.by).map(([value, text]) => h("option", { value, selected: value === chosen.then }, `and by ${text.toLowerCase()}`));
    return h("select", { name: "then", id: "then", "aria-label": "And by", onchange: (event) => set("then")(event.target.value) }, h("option", { value: "" }, "and by …"), options);
  }

  function set(name) {
    return (value) => {
      chosen[name] = value;
      if (chosen.then === chosen.by) chosen.then = "";
      read();
    };
  }

  function draw(found, interval) {
    chart?.destroy();
    const of = OF[chosen.amount];
    const sums = new Map();
    for (const row of found.rows) sums.set(row[chosen.by], (sums.get(row[chosen.by]) || 0) + of(row));
    const names = [...sums.keys()].sort((one, other) => sums.get(other) - sums.get(one));
    const starts = starting(found, interval);
    const at = new Map(starts.map((start, index) => [start, index]));
    const values = names.map(() => starts.map(() => 0));
    for (const row of found.rows) {
      const index = at.get(row.start);
      if (index !== undefined) values[names.indexOf(row[chosen.by])][index] += of(row);
    }
    if (!names.length) {
      chart = null;
      fill(picture, h("p.empty", {}, "Nothing in this time."));
      return;
    }
    const title = `${AMOUNTS.find(([name]) => name === chosen.amount)[1]} by ${GROUPS.find(([name]) => name === chosen.by)[1].toLowerCase()}`;
    chart = new Chart(title, names.map((name) => ({ name: name || "none", hue: name === "(others)" ? "--series-8" : undefined })), {
      height: 240, format: SHOW[chosen.amount], times: (start) => label(start, interval), stacked: true, rows: 400 });
    fill(picture, chart.element);
    chart.set(starts, ...values);
  }

  read();
  return () => chart?.destroy();
}

/** When each interval begins, those without any requests included. */
function starting(found, interval) {
  const starts = [];
  const first = new Date(found.since * 1000);
  let at = interval === "month" ? Date.UTC(first.getUTCFullYear(), first.getUTCMonth()) / 1000
    : interval === "day" ? Math.floor(found.since / DAY) * DAY : found.since;
  while (at < found.until) {
    starts.push(at);
    const day = new Date(at * 1000);
    at = interval === "month" ? Date.UTC(day.getUTCFullYear(), day.getUTCMonth() + 1) / 1000 : at + (interval === "day" ? DAY : 3600);
  }
  return starts;
}

function label(start, interval) {
  const at = new Date(start * 1000);
  if (interval === "hour") return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const month = at.toLocaleDateString("en", { month: "short", timeZone: "UTC" });
  return interval === "month" ? `${month} ${at.getUTCFullYear()}` : `${at.getUTCDate()} ${month}`;
}

function totals(rows, { by, then, amount }) {
  const of = OF[amount];
  const all = rows.reduce((sum, row) => sum + of(row), 0);
  const sorted = [...rows].sort((one, other) => of(other) - of(one));
  const heading = (group) => GROUPS.find(([name]) => name === group)[1];
  const shown = table("In all", [
    { name: heading(by), head: true, wide: true, cell: (row) => row[by] || "none" },
    ...(then ? [{ name: heading(then), wide: true, cell: (row) => row[then] || "none" }] : []),
    { name: "Share", cell: (row) => h("span.with-bar", {}, bar(all ? of(row) / all : 0, "", { limited: false }), h("span.number", {}, percent(all ? of(row) / all : 0))) },
    { name: "Cost", right: true, cell: (row) => dollars(row.usd) },
    { name: "Requests", right: true, cell: (row) => count(row.requests) },
    { name: "Not answered", right: true, small: true, cell: (row) => h("span", { title: `${count(row.refused)} of them refused before a model was asked` }, count(row.errors)) },
    { name: "Tokens in", right: true, small: true, cell: (row) => count(row.prompt_tokens) },
    { name: "of them cached", right: true, small: true, cell: (row) => count(row.cached_tokens) },
    { name: "Tokens out", right: true, small: true, cell: (row) => count(row.completion_tokens) },
  ], sorted.slice(0, MOST), { empty: "Nothing in this time." });
  return sorted.length > MOST ? [shown, h("p.note", {}, `${count(sorted.length - MOST)} more rows are in the export.`)] : shown;
}
