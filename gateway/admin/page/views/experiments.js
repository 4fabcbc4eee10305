// An experiment: its arms, what each shows, and how far that is from the control, with intervals that may be looked at daily.

import { h } from "../dom.js";
import { count, dollars, percent, seconds } from "../format.js";
import { badge, panelWith, table } from "../parts.js";

const METRICS = { score: "score", errors: "errors", refusals: "refusals", blocked: "blocked", cost: "a request", ttft: "TTFT", length: "tokens" };
const KINDS = { better: "good", worse: "bad", different: "warn" };
const WIDTH = 120;

export function experimentPanel(one) {
  const rows = one.arms.flatMap((arm, at) => arm.figures.map((figure, first) => ({ arm, figure, first: !first, control: !at })));
  const about = `of ${one.share === 1 ? "all" : percent(one.share)} ${one.key}s${one.models.length ? ` who ask for ${one.models.join(", ")}` : ""}`;
  return panelWith(`Experiment ${one.name}`, h("span.note", {}, about),
    one.mismatch && h("p", {}, badge("shares do not fit", "bad"), " The arms have other shares of users than their weights give them. Something loses some of one arm's, so do not believe the rest."),
    table(`Arms of the experiment ${one.name}`, [
      { name: "Arm", head: true, cell: ({ arm, first, control }) => first && h("span", {}, arm.name, control && h("span.note", {}, " control"), h("span.under", {}, contents(arm))) },
      { name: "Users", right: true, cell: ({ figure }) => h("span", {}, count(figure.users), h("span.under", {}, `${count(figure.requests)} requests`)) },
      { name: "Metric", cell: ({ figure }) => METRICS[figure.metric] || figure.metric },
      { name: "Mean", right: true, cell: ({ figure }) => between(figure.mean, figure.low, figure.high, figure.unit) },
      { name: "Difference", right: true, cell: ({ figure, control }) => (control ? "–" : between(figure.difference, figure.difference_low, figure.difference_high, figure.unit, true)) },
      { name: "", small: true, cell: ({ figure, control }) => !control && picture(figure, rows) },
      { name: "So far", cell: ({ figure }) => figure.verdict && badge(figure.verdict, KINDS[figure.verdict] || "off") },
    ], rows),
    h("p.note", {}, `Differences are from the control; their intervals hold together with 95 % (each with ${Number((one.confidence * 100).toPrecision(4))} %), however often one looks. Users count, not only their requests.`));
}

function contents(arm) {
  const said = [arm.model && `model ${arm.model}`, arm.prompt && `prompt ${arm.prompt}`, ...arm.guards.map((guard) => `guard ${guard}`), ...arm.without.map((guard) => `without ${guard}`)].filter(Boolean);
  return `${said.join(", ") || "as ever"}; ${count(arm.users)} users`;
}

function between(value, low, high, unit, signed = false) {
  if (value === undefined) return "–";
  return h("span", {}, amount(value, unit, signed), low !== undefined && h("span.under", {}, `${amount(low, unit, signed)} to ${amount(high, unit, signed)}`));
}

function amount(value, unit, signed) {
  const size = signed ? Math.abs(value) : value;
  const sign = signed ? (value < 0 ? "−" : "+") : "";
  if (unit === "share") return `${sign}${(size * 100).toFixed(2)}%`;
  if (unit === "dollars") return sign + (size < 0 ? `−${dollars(-size)}` : dollars(size));
  if (unit === "seconds") return sign + (size < 0 ? `−${seconds(-size)}` : seconds(size));
  return sign + size.toFixed(unit === "tokens" ? 1 : 3);
}

/** The difference's interval as a line, beside where there is none: to one scale for a metric. */
function picture(figure, rows) {
  if (figure.difference_low === undefined) return null;
  const most = Math.max(...rows.filter((row) => row.figure.metric === figure.metric).flatMap(({ figure: each }) => [Math.abs(each.difference_low || 0), Math.abs(each.difference_high || 0)])) || 1;
  const at = (value) => WIDTH / 2 + (value / most) * (WIDTH / 2 - 4);
  const line = (x1, x2, y1, y2, width) => h("line", { x1, x2, y1, y2, stroke: "currentColor", "stroke-width": width });
  const [low, high] = [at(figure.difference_low), at(figure.difference_high)];
  return h("svg", { width: WIDTH, height: 16, viewBox: `0 0 ${WIDTH} 16`, role: "img", "aria-label": `${amount(figure.difference_low, figure.unit, true)} to ${amount(figure.difference_high, figure.unit, true)}` },
    h("g", { opacity: 0.4 }, line(WIDTH / 2, WIDTH / 2, 0, 16, 1)), line(low, high, 8, 8, 2), line(low, low, 4, 12, 2), line(high, high, 4, 12, 2), h("circle", { cx: at(figure.difference), cy: 8, r: 3, fill: "currentColor" }));
}
