// What guards found, and what caches saved, since the workers started.

import { fill, h } from "../dom.js";
import { count, dollars, percent, rate } from "../format.js";
import { total } from "../live_data.js";
import { badge, figure, loading, panel, table } from "../parts.js";

const STRICT = ["block", "redact", "mask"];

export function protection(place, { live }) {
  const saved = h("dl.figures.four", {});
  const caches = h("div", {}, loading());
  const guards = h("div", {}, loading());
  const hits = h("div", {}, loading());
  fill(place, h("h1", {}, "Guards and caches"),
    h("p.note", {}, "Since the workers that run now were started. Prometheus keeps the same figures for longer."),
    saved, panel("Caches", caches), panel("Guards", guards), panel("What guards acted on", hits));
  return live.listen(() => {
    if (!live.latest) return;
    const { counters } = live.latest;
    fill(saved, savings(counters));
    fill(caches, cacheTable(counters, live));
    fill(guards, guardTable(counters));
    fill(hits, hitTable(counters, live));
  });
}

function savings(counters) {
  const hits = total(counters.cache, (_, result) => result === "hit" || result === "shared");
  const saved = total(counters.cache_saved_dollars);
  const spent = total(counters.cost);
  const looks = total(counters.cache, (cache, result) => cache === "exact" && ["hit", "miss", "shared"].includes(result));
  return [
    figure("Saved by caches", dollars(saved), { note: spent + saved ? `${percent(saved / (spent + saved))} of what all would cost` : "" }),
    figure("Tokens saved", count(total(counters.cache_saved_tokens))),
    figure("Answers from caches", count(hits), { note: looks ? `${percent(hits / looks)} of those asked for` : "" }),
    figure("Guard hits", count(total(counters.guard_hits)), { note: `${count(total(counters.guard_cuts))} answers cut` }),
  ];
}

function names(...families) {
  return [...new Set(families.flatMap((family) => Object.keys(family || {}).map((labels) => labels.split("\t")[0])))].sort();
}

function cacheTable(counters, live) {
  const of = (cache, ...results) => total(counters.cache, (name, result) => name === cache && results.includes(result));
  return table("Caches", [
    { name: "Cache", head: true, cell: (cache) => cache },
    { name: "Hits", right: true, cell: (cache) => count(of(cache, "hit")) },
    { name: "Shared in flight", right: true, small: true, cell: (cache) => count(of(cache, "shared")) },
    { name: "Misses", right: true, cell: (cache) => count(of(cache, "miss")) },
    { name: "Bypassed", right: true, small: true, cell: (cache) => count(of(cache, "bypass")) },
    { name: "Kept", right: true, small: true, cell: (cache) => count(of(cache, "kept")) },
    { name: "Hits/s", right: true, cell: (cache) => rate(live.rate("cache", (name, result) => name === cache && (result === "hit" || result === "shared"), 60)) },
    { name: "Tokens saved", right: true, cell: (cache) => count(total(counters.cache_saved_tokens, (name) => name === cache)) },
    { name: "Saved", right: true, cell: (cache) => dollars(total(counters.cache_saved_dollars, (name) => name === cache)) },
  ], names(counters.cache, counters.cache_saved_tokens), { empty: "The policy has no caches, or nothing was asked yet." });
}

function guardTable(counters) {
  const scans = (guard, ...outcomes) => total(counters.guard_scans, (name, _, outcome) => name === guard && (!outcomes.length || outcomes.includes(outcome)));
  return table("Guards", [
    { name: "Guard", head: true, cell: (guard) => guard },
    { name: "Scans", right: true, cell: (guard) => count(scans(guard)) },
    { name: "Clean", right: true, cell: (guard) => count(scans(guard, "clean")) },
    { name: "Found", right: true, cell: (guard) => count(scans(guard, "found")) },
    { name: "Not scanned", right: true, small: true, cell: (guard) => count(total(counters.guard_unscanned, (name) => name === guard)) },
    { name: "Answers looked after", right: true, small: true, cell: (guard) => count(total(counters.guard_streams, (name) => name === guard)) },
    { name: "Answers cut", right: true, cell: (guard) => count(total(counters.guard_cuts, (name) => name === guard)) },
  ], names(counters.guard_scans, counters.guard_hits, counters.guard_streams), { empty: "The policy has no guards, or nothing was asked yet." });
}

function hitTable(counters, live) {
  const rows = Object.entries(counters.guard_hits || {}).filter(([, value]) => value > 0).map(([labels, value]) => [...labels.split("\t"), value]);
  rows.sort((one, other) => other[3] - one[3]);
  return table("What guards acted on", [
    { name: "Guard", head: true, cell: ([guard]) => guard },
    { name: "In the", cell: ([, direction]) => (direction === "input" ? "request" : "answer") },
    { name: "Action", cell: ([, , action]) => badge(action, action === "block" ? "bad" : STRICT.includes(action) ? "warn" : "") },
    { name: "Findings", right: true, cell: (row) => count(row[3]) },
    { name: "Findings/s", right: true, cell: ([guard, direction, action]) => rate(live.rate("guard_hits", (...labels) => labels.join() === [guard, direction, action].join(), 60)) },
  ], rows, { empty: "Nothing was found." });
}
