// An experiment: its arms, and by each metric what they show and how far that is from the control.

import { h } from "../dom.js";
import { count, percent, seconds } from "../format.js";
import { badge, panelWith, table } from "../parts.js";

const METRICS = { score: "Score", errors: "Errors", refusals: "Refusals", blocked: "Blocked by a guard", cost: "$ for 1,000 requests", ttft: "Time to first token", length: "Tokens of an answer" };
const KINDS = { better: "good", worse: "bad", different: "warn" };
const WIDTH = 120;

export function experimentPanel(one) {
  const about = `of ${one.share === 1 ? "all" : percent(one.share)} ${one.key}s${one.models.length ? ` who ask for ${one.models.join(", ")}` : ""}`;
  return panelWith(`Experiment ${one.name}`, h("span.note", {}, about),
    one.mismatch && h("p", {}, badge("shares do not fit", "bad"), " The arms have other shares of users than their weights give them. Something loses some of one arm's: do not believe the rest."),
    h("p.note", {}, `Differences are from the control, ${one.arms[0].name}. Their intervals hold together with 95 % (each with ${Number((one.confidence * 100).toPrecision(4))} %), however often one looks, and count users, not only requests.`),
    table(`Arms of the experiment ${one.name}`, [
      { name: "Arm", head: true, cell: (arm) => h("span", {}, arm.name, h("span.under", {}, contents(arm))) },
      { name: "Should be", right: true, small: true, cell: (arm) => percent(arm.share) },
      { name: "Users", right: true, cell: (arm) => count(arm.users) },
      { name: "Requests", right: true, cell: (arm) => count(arm.requests) },
    ], one.arms),
    one.arms[0].figures.map(({ metric }, at) => [
      h("h3", {}, METRICS[metric] || metric),
      byMetric(one, metric, one.arms.map((arm) => ({ arm: arm.name, figure: arm.figures[at] }))),
    ]));
}

function byMetric(one, metric, rows) {
  return table(`${METRICS[metric] || metric} in the experiment ${one.name}`, [
    { name: "Arm", head: true, cell: ({ arm, figure }) => h("span", {}, arm, h("span.under", {}, verdict(figure))) },
    { name: "Known of", right: true, small: true, cell: ({ figure }) => h("span", {}, `${count(figure.users)} ${one.key}s`, h("span.under", {}, `${count(figure.requests)} requests`)) },
    { name: "Mean", right: true, cell: ({ figure }) => between(figure.mean, figure.low, figure.high, figure.unit) },
    { name: "Difference", right: true, cell: ({ figure }) => between(figure.difference, figure.difference_low, figure.difference_high, figure.unit, true) },
    { name: "", small: true, cell: ({ figure }) => picture(figure, rows) },
  ], rows);
}

function contents(arm) {
  const said = [arm.model && `model ${arm.model}`, arm.prompt && `prompt ${arm.prompt}`, ...arm.guards.map((guard) => `guard ${guard}`), ...arm.without.map((guard) => `without ${guard}`)].filter(Boolean);
  return said.join(", ") || "as ever";
}

function verdict(figure) {
  if (!figure.verdict) return "control";
  if (figure.verdict === "no difference") return "none so far";
  return figure.verdict in KINDS ? badge(figure.verdict, KINDS[figure.verdict]) : figure.verdict;
}

function between(value, low, high, unit, signed = false) {
  if (value === undefined) return "–";
  return h("span", {}, amount(value, unit, signed), low !== undefined && h("span.under", {}, `${amount(low, unit, signed)} to ${amount(high, unit, signed)}`));
}

function amount(value, unit, signed) {
  const sign = value < 0 ? "−" : signed ? "+" : "";
  const size = Math.abs(value);
  if (unit === "share") return `${sign}${(size * 100).toFixed(2)}%`;
  if (unit === "dollars") return `${sign}$${Number((size * 1000).toPrecision(signed ? 2 : 3))}`;
  if (unit === "seconds") return sign + seconds(size);
  return sign + size.toFixed(unit === "tokens" ? 1 : 3);
}

/** The difference's interval as a line, beside where there is none: to one scale for a metric. */
function picture(figure, rows) {
  if (figure.difference_low === undefined) return null;
  const most = Math.max(...rows.flatMap(({ figure: each }) => [Math.abs(each.difference_low || 0), Math.abs(each.difference_high || 0)])) || 1;
  const at = (value) => WIDTH / 2 + (value / most) * (WIDTH / 2 - 4);
  const line = (x1, x2, y1, y2, width) => h("line", { x1, x2, y1, y2, stroke: "currentColor", "stroke-width": width });
  const [low, high] = [at(figure.difference_low), at(figure.difference_high)];
  return h("svg", { width: WIDTH, height: 16, viewBox: `0 0 ${WIDTH} 16`, role: "img", "aria-label": `${amount(figure.difference_low, figure.unit, true)} to ${amount(figure.difference_high, figure.unit, true)}` },
    h("g", { opacity: 0.4 }, line(WIDTH / 2, WIDTH / 2, 0, 16, 1)), line(low, high, 8, 8, 2), line(low, low, 4, 12, 2), line(high, high, 4, 12, 2), h("circle", { cx: at(figure.difference), cy: 8, r: 3, fill: "currentColor" }));
}
