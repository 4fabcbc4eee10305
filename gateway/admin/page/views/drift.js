// Drifts: what differs from the same hour of four weeks, since when, and how the distribution has changed.

import { h } from "../dom.js";
import { count, dollars, moment, percent, seconds } from "../format.js";
import { badge, panelWith, table } from "../parts.js";

const NAMES = {
  prompt_tokens: "prompt tokens", completion_tokens: "answer tokens", first_token: "time to first token", inter_token: "time between tokens",
  seconds: "whole time", cost: "cost of a request", refusals: "refusals", json_failures: "answers that are no JSON", languages: "languages",
};
const WIDTH = 150;
const HEIGHT = 34;

/** Nothing where the policy does not look for drifts. */
export function driftPanel(found) {
  if (!found.enabled) return null;
  const state = h("span.note", {}, found.judged_until ? `judged up to ${moment(found.judged_until + 3600)}, ${count(found.settled)} of ${count(found.measures)} measures known` : "no hour was judged yet");
  return panelWith("Drift", state,
    found.drifts.length > 0 && h("p.note", {}, "Grey: four weeks at these hours; green: the last six hours. docs/drift.md tells what to do about one."),
    table("Drifts", [
      { name: "Measure", head: true, cell: (one) => h("span", {}, title(one), h("span.under", {}, `${one.model} ${one.route}`)) },
      { name: "Since", cell: (one) => h("span", {}, moment(one.since), h("span.under", {}, one.until ? badge("over", "off") : badge(one.test === "psi" ? "jump" : "creep", "warn"))) },
      { name: "Is", right: true, cell: (one) => h("span", {}, value(one, one.now), h("span.under", {}, `was ${value(one, one.before)}`)) },
      { name: "PSI", right: true, small: true, cell: (one) => one.psi.toFixed(3) },
      { name: "Last week", small: true, cell: line },
      { name: "Four weeks and now", cell: bars },
    ], found.drifts, { empty: "Nothing drifts." }));
}

function title(one) {
  return (NAMES[one.measure] || one.measure.replace("_", " ")) + (one.name ? `: ${one.name}` : "");
}

function value(one, number) {
  if (one.kind === "share" || one.kind === "kind") return percent(number);
  if (one.measure === "cost") return dollars(number);
  if (one.measure.endsWith("tokens")) return count(number);
  return one.kind === "position" ? number.toFixed(3) : seconds(number);
}

function line(one) {
  const known = one.hours.filter((each) => each !== null && each !== undefined);
  if (!known.length) return "–";
  const high = Math.max(...known) || 1;
  let pen = "M";
  const path = one.hours.map((each, at) => {
    if (each === null || each === undefined) {
      pen = "M";
      return "";
    }
    const point = `${pen}${(at / (one.hours.length - 1) * WIDTH).toFixed(1)} ${(HEIGHT - 1 - each / high * (HEIGHT - 3)).toFixed(1)}`;
    pen = "L";
    return point;
  }).join("");
  return h("svg.spark", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": `${title(one)} by the hour, from 0 to ${value(one, high)}` },
    h("path", { d: path }));
}

function bars(one) {
  if (!one.bars.length) return "–";
  const high = Math.max(...one.bars.flatMap((bar) => [bar.before, bar.now])) || 1;
  const step = WIDTH / one.bars.length;
  const rect = (kind, share, at) => h("rect", { class: kind, x: at.toFixed(1), y: (HEIGHT - share / high * HEIGHT).toFixed(1), width: (step * 0.4).toFixed(1), height: (share / high * HEIGHT).toFixed(1) });
  return h("svg.spark", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": one.bars.map((bar) => `${bar.name}: ${percent(bar.before)}, now ${percent(bar.now)}`).join("; ") },
    one.bars.map((bar, at) => h("g", {}, h("title", {}, `${bar.name}: ${percent(bar.before)}, now ${percent(bar.now)}`),
      rect("before", bar.before, at * step + step * 0.08), rect("now", bar.now, at * step + step * 0.5))));
}
