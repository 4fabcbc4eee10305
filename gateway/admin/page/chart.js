// Charts of series over time: drawn by uPlot, and as a table for who does not see them.

import { h } from "./dom.js";
import { clock } from "./format.js";

const HUES = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7", "--series-8"];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");

export class Chart {
  /**
   * `series` are {name, format, hue, bars}. `set(times, ...values)` draws; the times are Unix time.
   */
  constructor(title, series, { height = 150, format, times = clock, stacked = false, rows = 60 } = {}) {
    Object.assign(this, { title, series, height, format, times, stacked, rows });
    this.data = [[], ...series.map(() => [])];
    this.place = h("div.plot", { role: "img", "aria-label": title });
    this.legend = h("ul.legend", {}, series.map((one, at) =>
      h("li", {}, h("span.swatch", { vars: { "--hue": `var(${this.hue(at)})` } }), one.name, h("output", { "aria-hidden": "true" }))));
    this.table = h("div.scroll", { tabindex: 0, role: "region", "aria-label": `${title}, as a table` });
    const details = h("details.data", {}, h("summary", {}, "Data", h("span.unseen", {}, ` of ${title}`)), this.table);
    details.addEventListener("toggle", () => this.tabulate());
    this.details = details;
    this.element = h("figure.chart", {}, h("figcaption", {}, h("span", {}, title), this.legend), this.place, details);
    this.resizing = new ResizeObserver(() => this.fit());
    this.resizing.observe(this.place);
    this.repaint = () => this.draw(true);
    dark.addEventListener("change", this.repaint);
  }

  hue(at) {
    return this.series[at].hue || HUES[at % HUES.length];
  }

  set(times, ...values) {
    this.data = [times, ...values];
    this.draw();
    if (this.details.open) this.tabulate();
    this.tell(times.length - 1);
  }

  destroy() {
    this.resizing.disconnect();
    dark.removeEventListener("change", this.repaint);
    this.plot?.destroy();
    this.plot = null;
  }

  drawn() {
    if (!this.stacked) return this.data;
    const [times, ...values] = this.data;
    const sums = times.map(() => 0);
    return [times, ...values.map((one) => one.map((value, at) => (sums[at] += value || 0)))];
  }

  draw(anew = false) {
    if (anew) {
      this.plot?.destroy();
      this.plot = null;
    }
    if (this.plot) this.plot.setData(this.drawn());
    else if (this.place.clientWidth && this.data[0].length) this.plot = new uPlot(this.options(), this.drawn(), this.place);
  }

  fit() {
    const width = this.place.clientWidth;
    if (!width) return;
    if (!this.plot) this.draw();
    else if (this.plot.width !== width) this.plot.setSize({ width, height: this.height });
  }

  options() {
    const ink = style("--faint");
    const grid = { stroke: style("--line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const order = this.series.map((_, at) => at);
    return {
      width: this.place.clientWidth,
      height: this.height,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 24, values: (_, splits) => splits.map((at) => this.times(at)) },
        { ...axis, size: 56, space: 32, values: (_, splits) => splits.map((value) => this.format(value)) },
      ],
      series: [{}, ...order.map((at) => ({
        label: this.series[at].name,
        stroke: style(this.hue(at)),
        fill: this.stacked || this.series[at].filled ? style(this.hue(at)) + (this.stacked ? "cc" : "22") : undefined,
        width: 1.5,
        points: { show: false },
        spanGaps: false,
        ...(this.stacked ? { paths: uPlot.paths.bars({ size: [0.8, 40] }), width: 0, points: { show: false } } : {}),
      }))],
      // The tallest of a stack is drawn first.
      ...(this.stacked ? { bands: order.slice(1).map((at) => ({ series: [at + 1, at] })) } : {}),
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? this.data[0].length - 1)] },
    };
  }

  tell(index) {
    [...this.legend.children].forEach((item, at) => {
      const value = this.data[at + 1]?.[index];
      item.querySelector("output").textContent = value === null || value === undefined ? "" : this.format(value);
    });
  }

  tabulate() {
    if (!this.details.open) return;
    const [times, ...values] = this.data;
    const last = times.map((_, at) => at).slice(-this.rows).reverse();
    this.table.replaceChildren(h("table", {},
      h("caption.unseen", {}, this.title),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), this.series.map((one) => h("th.right", { scope: "col" }, one.name)))),
      h("tbody", {}, last.map((at) => h("tr", {}, h("th", { scope: "row" }, this.times(times[at])),
        values.map((one) => h("td.right", {}, one[at] === null || one[at] === undefined ? "–" : this.format(one[at]))))))));
  }
}
