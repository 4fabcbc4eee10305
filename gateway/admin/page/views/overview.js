// What goes on now: rates, waits, the backends with their queues, and the newest requests.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { fill, h } from "../dom.js";
import { bytes, count, percent, rate, seconds } from "../format.js";
import { answered, failed, limited, total } from "../live_data.js";
import { badge, bar, figure, outOfUse, panel, panelWith, table } from "../parts.js";
import { requestTable } from "./requests.js";

const OUT = (model, direction) => direction === "out";
const SHOWN = 8;

export function overview(place, { live }) {
  const figures = h("dl.figures", {});
  const backends = h("div", {});
  const queue = h("div", {});
  const gpus = h("div", {});
  const latest = h("div", {});
  const warning = h("div", {});
  const traffic = new Chart("Requests per second", [{ name: "answered", hue: "--series-1", filled: true }, { name: "limited", hue: "--series-2" }, { name: "failed", hue: "--bad" }], { format: rate });
  const waits = new Chart("Time to first token", [{ name: "median", hue: "--series-1" }, { name: "95th percentile", hue: "--series-2" }], { format: seconds });
  const tokens = new Chart("Tokens per second", [{ name: "in", hue: "--series-3" }, { name: "out", hue: "--series-1", filled: true }], { format: rate });
  const gaps = new Chart("Between tokens", [{ name: "median", hue: "--series-1" }, { name: "95th percentile", hue: "--series-2" }], { format: seconds });
  const charts = [traffic, waits, tokens, gaps];
  fill(place, h("h1.unseen", {}, "Live"), warning, figures,
    h("div.charts", {}, charts.map((one) => h("section.panel", {}, one.element))),
    panel("Backends", backends), gpus, panel("Queue", queue),
    panelWith("Newest requests", h("a", { href: "#/requests" }, "All requests"), latest));

  const forget = live.listen(() => {
    const sample = live.latest;
    if (!sample) return;
    fill(warning, sample.rejected && h("p.problem", { role: "alert" }, "The policy's files were changed, and are not in force: ", sample.rejected.split("\n")[0], " ", h("a", { href: "#/policy" }, "Policy")));
    fill(figures, figuresOf(live));
    fill(backends, backendTable(live));
    fill(gpus, gpuPanel(sample));
    fill(queue, queueTable(sample));
    draw(live, traffic, waits, tokens, gaps);
  });
  let timer = 0;
  let gone = false;
  async function refresh() {
    try {
      const found = await get(`/requests?limit=${SHOWN}`);
      if (!gone) fill(latest, requestTable(found.requests, { brief: true }));
    } catch (error) {
      if (!gone && !latest.childElementCount) fill(latest, h("p.empty", {}, error.message));
    }
    if (!gone) timer = setTimeout(refresh, document.hidden ? 15000 : 3000);
  }
  refresh();
  return () => {
    gone = true;
    clearTimeout(timer);
    forget();
    charts.forEach((one) => one.destroy());
  };
}

function figuresOf(live) {
  const sample = live.latest;
  const all = live.rate("requests");
  const bad = live.rate("requests", failed);
  const hits = live.rate("cache", (_, result) => result === "hit" || result === "shared", 60);
  const looks = live.rate("cache", (cache, result) => cache === "exact" && ["hit", "miss", "shared"].includes(result), 60);
  const waiting = Object.values(sample.backends).reduce((sum, one) => sum + one.waiting, 0);
  const longest = Math.max(0, ...Object.values(sample.backends).flatMap((one) => one.queue.map((each) => each.waited)));
  return [
    figure("Requests", rate(all), { unit: "/s", note: "over 10 s" }),
    figure("Failed", all ? percent(bad / all) : "–", { note: `5xx; 429: ${all ? percent(live.rate("requests", limited) / all) : "–"}`, kind: all && bad / all > 0.05 ? "bad" : "" }),
    figure("First token", seconds(live.percentile("first_token", 0.5)), { note: percentileNote(live, "first_token") }),
    figure("Between tokens", seconds(live.percentile("inter_token", 0.5)), { note: percentileNote(live, "inter_token") }),
    figure("Tokens out", rate(live.rate("tokens", OUT)), { unit: "/s", note: `${rate(live.rate("tokens", (_, way) => way === "in"))}/s in` }),
    figure("In flight", count(total(sample.counters.in_flight))),
    figure("Queued", count(waiting), waiting ? { note: `longest ${seconds(longest)}`, kind: "warn" } : {}),
    figure("From caches", looks ? percent(hits / looks) : "–", { note: "over a minute" }),
  ];
}

function percentileNote(live, name) {
  const high = live.percentile(name, 0.95);
  return high === null ? "" : `p95 ${seconds(high)}`;
}

function draw(live, traffic, waits, tokens, gaps) {
  const times = live.samples.map((one) => one.at);
  const each = (value) => times.map((_, at) => value(at));
  traffic.set(times,
    each((at) => live.rate("requests", answered, 5, at)),
    each((at) => live.rate("requests", limited, 5, at)),
    each((at) => live.rate("requests", failed, 5, at)));
  waits.set(times, each((at) => live.percentile("first_token", 0.5, 15, at)), each((at) => live.percentile("first_token", 0.95, 15, at)));
  tokens.set(times, each((at) => live.rate("tokens", (_, way) => way === "in", 5, at)), each((at) => live.rate("tokens", OUT, 5, at)));
  gaps.set(times, each((at) => live.percentile("inter_token", 0.5, 15, at)), each((at) => live.percentile("inter_token", 0.95, 15, at)));
}

function backendTable(live) {
  const sample = live.latest;
  const rows = Object.entries(sample.backends);
  const open = (name) => sample.breakers.filter((one) => one.backend === name);
  return table("Backends", [
    { name: "Backend", head: true, cell: ([name]) => name },
    { name: "Saturation", cell: ([name, one]) => h("span.with-bar", {}, bar(one.saturation, `${name}: saturation ${percent(one.saturation)}`), h("span.number", {}, percent(one.saturation))) },
    { name: "In flight", right: true, cell: ([, one]) => (one.slots === null || one.slots === undefined ? count(one.in_flight) : `${count(one.in_flight)} / ${count(one.slots)}`) },
    { name: "Queued", right: true, cell: ([, one]) => count(one.waiting) },
    { name: "Tokens", right: true, small: true, cell: ([, one]) => count(one.tokens_in_flight) },
    { name: "Attempts/s", right: true, small: true, cell: ([name]) => rate(live.rate("attempts", (backend) => backend === name)) },
    { name: "Errors/s", right: true, cell: ([name]) => rate(live.rate("upstream_errors", (backend) => backend === name)) },
    { name: "KV cache", right: true, small: true, cell: ([, one]) => (one.engine ? percent(one.engine.kv_usage) : "–") },
    { name: "Cached", right: true, small: true, cell: ([, one]) => (one.engine && one.engine.cached !== null ? percent(one.engine.cached) : "–") },
    { name: "Breakers", cell: ([name]) => unused(sample.disabled[name]) || breakersOf(open(name)) },
  ], rows, { empty: "The policy has no backends in use." });
}

const DRAINED = "it is drained";

function unused(reason) {
  return reason && outOfUse(reason === DRAINED ? { drained: true } : { disabled: reason });
}

function breakersOf(open) {
  if (!open.length) return badge("closed", "good");
  return [...new Set(open.map((one) => one.model))].map((model) => {
    const mine = open.filter((one) => one.model === model);
    const everybody = mine.some((one) => !one.tenant);
    const whom = everybody ? "" : ` for ${mine.length > 1 ? `${mine.length} callers` : mine[0].key || mine[0].tenant}`;
    return badge(`open: ${model}${whom}, ${seconds(Math.max(...mine.map((one) => one.seconds)))}`, everybody ? "bad" : "warn");
  });
}

/** Nothing where no engine tells of a GPU. */
function gpuPanel(sample) {
  const rows = Object.entries(sample.backends).flatMap(([backend, one]) => ((one.engine && one.engine.gpus) || []).map((gpu, at) => ({ backend, at, ...gpu })));
  const share = (part, whole) => (part !== null && whole ? part / whole : null);
  const withBar = (value, label) => (value === null ? "–" : h("span.with-bar", {}, bar(value, `${label} ${percent(value)}`, { limited: false }), h("span.number", {}, percent(value))));
  return rows.length > 0 && panel("GPUs", table("GPUs of engines", [
    { name: "Backend", cell: (one) => one.backend },
    { name: "GPU", head: true, cell: (one) => (one.name ? `${one.at} · ${one.name}` : `${one.at}`) },
    { name: "Computes", cell: (one) => withBar(one.utilization, `${one.backend}, GPU ${one.at}: computes`) },
    { name: "Memory", cell: (one) => withBar(share(one.memory_used, one.memory_total), `${one.backend}, GPU ${one.at}: memory`) },
    { name: "Used", right: true, small: true, cell: (one) => (one.memory_total === null ? "–" : `${bytes(one.memory_used)} / ${bytes(one.memory_total)}`) },
    { name: "Memory busy", right: true, small: true, cell: (one) => percent(one.memory_utilization) },
    { name: "PCIe", right: true, small: true, cell: (one) => (one.pcie === null ? "–" : `${bytes(one.pcie)}/s`) },
    { name: "NVLink", right: true, small: true, cell: (one) => (one.nvlink === null ? "–" : `${bytes(one.nvlink)}/s`) },
    { name: "Temperature", right: true, cell: (one) => (one.temperature === null ? "–" : `${count(one.temperature)} °C`) },
    { name: "Power", right: true, cell: (one) => (one.power === null ? "–" : `${count(one.power)}${one.power_limit === null ? "" : ` / ${count(one.power_limit)}`} W`) },
  ], rows));
}

function queueTable(sample) {
  const rows = Object.entries(sample.backends).flatMap(([backend, one]) => one.queue.map((waiter) => ({ backend, ...waiter })));
  return table("Requests that wait for a slot", [
    { name: "Backend", cell: (one) => one.backend },
    { name: "Tenant", head: true, cell: (one) => one.tenant },
    { name: "Tier", cell: (one) => one.tier },
    { name: "Position", right: true, cell: (one) => count(one.position) },
    { name: "Tokens", right: true, small: true, cell: (one) => count(one.tokens) },
    { name: "Waited", right: true, cell: (one) => seconds(one.waited) },
    { name: "Expected wait", right: true, cell: (one) => seconds(one.expected) },
  ], rows, { empty: "Nobody waits." });
}
