// What the judge says of answers: scores over time, shadows beside the models they copy, the worst of their answers.

import { Chart } from "../chart.js";
import { fill, h } from "../dom.js";
import { count, dollars, moment, percent, seconds } from "../format.js";
import { badge, table } from "../parts.js";
import { requestLink } from "./requests.js";

const MOST = 8;
const DAY = 86_400;
const day = (unix) => new Date(unix * 1000).toISOString().slice(5, 10);
const interval = (low, high) => `${percent(low)} to ${percent(high)}`;

/** Means as lines, each with its interval of 95 % as a stroke. */
class ScoreChart extends Chart {
  options() {
    const options = super.options();
    options.scales.y.range = () => [0, 1];
    // A first day alone would stand at the edge of years.
    options.scales.x = { range: ({ data: [times] }) => [times[0] - DAY / 2, times[times.length - 1] + DAY / 2] };
    options.axes[0].incrs = [1, 2, 7, 14, 30].map((days) => days * DAY);
    options.series.slice(1).forEach((one) => Object.assign(one, { points: { show: true, size: 5 }, spanGaps: true }));
    options.hooks.draw = [(plot) => this.strokes(plot)];
    return options;
  }

  strokes(plot) {
    const pen = plot.ctx;
    pen.save();
    pen.lineWidth = devicePixelRatio;
    this.bounds.forEach(([low, high], at) => {
      pen.strokeStyle = plot.series[at + 1].stroke();
      pen.beginPath();
      plot.data[0].forEach((time, index) => {
        if (low[index] === null) return;
        // Side by side, so that those of one day can be told apart.
        const x = plot.valToPos(time, "x", true) + (at - (this.bounds.length - 1) / 2) * 3 * devicePixelRatio;
        pen.moveTo(x, plot.valToPos(low[index], "y", true));
        pen.lineTo(x, plot.valToPos(high[index], "y", true));
      });
      pen.stroke();
    });
    pen.restore();
  }
}

export class EvaluationPanel {
  constructor(place) {
    this.place = place;
    this.chart = null;
    this.drawn = h("div", {});
    this.told = h("div", {});
    fill(place, this.drawn, this.told);
  }

  set(told) {
    this.draw(told);
    const open = [...this.told.querySelectorAll("details[open]")].map((one) => one.id);
    fill(this.told, h("h3", {}, "By model"), scores(told), told.shadows.length > 0 && shadows(told.shadows), told.worst.length > 0 && worst(told.worst), h("p.note", {}, about(told)));
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  }

  draw({ scores: all, over_time: points }) {
    const models = [...all].sort((one, other) => other.count - one.count).slice(0, MOST).map((one) => one.model);
    const times = [...new Set(points.map((one) => one.start))].sort((one, other) => one - other);
    if (String(models) !== String(this.models)) {
      this.destroy();
      this.models = models;
      this.chart = models.length ? new ScoreChart("Scores by day", models.map((name) => ({ name })), { format: percent, times: day, height: 170 }) : null;
      fill(this.drawn, this.chart?.element);
    }
    if (!this.chart) return;
    const found = new Map(points.map((one) => [`${one.start} ${one.model}`, one]));
    const of = (name, what) => times.map((time) => found.get(`${time} ${name}`)?.[what] ?? null);
    this.chart.bounds = models.map((name) => [of(name, "low"), of(name, "high")]);
    this.chart.set(times, ...models.map((name) => of(name, "mean")));
  }

  destroy() {
    this.chart?.destroy();
    this.chart = null;
  }
}

function about({ judge, rubric, budgets }) {
  const spent = budgets.map((one) => `${dollars(one.used)} of ${dollars(one.dollars)} ${one.window === "day" ? "today" : "this month"}`).join(", ");
  return [`${judge} judges by: “${rubric}”`, spent && ` The house has spent ${spent}.`];
}

function scores({ scores: rows }) {
  return table("Scores by model", [
    { name: "Model", head: true, cell: (one) => one.model },
    { name: "Judged", right: true, cell: (one) => count(one.count) },
    { name: "Score", right: true, cell: (one) => percent(one.mean) },
    { name: "95 % interval", right: true, cell: (one) => interval(one.low, one.high) },
  ], rows, { empty: "No answer has been judged yet." });
}

/** The time, and under it the day. */
function when(unix) {
  const parts = moment(unix).split(" ");
  return [parts.pop(), parts.pop() || "today"];
}

/** The shadow's figure, and under it that of the model it copies. */
function beside(shadow, model) {
  return h("span", {}, shadow, h("span.under", {}, model));
}

function shadows(rows) {
  return [h("h3", {}, "Shadows"), table("Shadows beside the models they copy", [
    { name: "Shadow", head: true, cell: (one) => beside(one.shadow, `of ${one.model}`) },
    { name: "Pairs", right: true, cell: (one) => count(one.count) },
    { name: "Agreement", right: true, cell: (one) => beside(percent(one.agreement), interval(one.agreement_low, one.agreement_high)) },
    { name: "Better, worse", right: true, small: true, cell: (one) => `${count(one.preferred)}, ${count(one.against)}` },
    { name: "Score", right: true, cell: (one) => beside(percent(one.shadow_score), percent(one.score)) },
    { name: "An answer", right: true, small: true, cell: (one) => beside(dollars(one.shadow_dollars), dollars(one.dollars)) },
    { name: "Takes", right: true, small: true, cell: (one) => beside(seconds(one.shadow_seconds), seconds(one.seconds)) },
  ], rows)];
}

function worst(rows) {
  return [h("h3", {}, "The shadows' worst answers"), table("The shadows' worst answers", [
    { name: "When", head: true, cell: (one) => h("a", { href: requestLink(one.request_id) }, beside(...when(one.created))) },
    { name: "Shadow", small: true, cell: (one) => beside(one.shadow, `of ${one.model}`) },
    { name: "Score", right: true, cell: (one) => beside(percent(one.shadow_score), percent(one.score)) },
    { name: "Judge", small: true, cell: (one) => (one.preferred < 0 ? badge("worse", "bad") : one.preferred > 0 ? badge("better", "good") : badge("neither", "")) },
    { name: "Texts", long: true, cell: (one) => (one.question === null || one.question === undefined ? h("span.note", {}, "not kept") : texts(one)) },
  ], rows)];
}

function texts(one) {
  const said = (name, text) => h("p", {}, h("span.under", {}, name), text);
  return h("details", { id: `pair-${one.request_id}` }, h("summary", {}, one.question.slice(0, 80)), said("what was asked", one.question), said(`what ${one.model} answered`, one.answer), said(`what ${one.shadow} answered`, one.shadow_answer));
}
