// A roll-out: how far it has come, what is seen of both sides, what the guards say, and one button.

import { h } from "../dom.js";
import { count, dollars, moment, percent, seconds } from "../format.js";
import { badge, bar, panelWith, table } from "../parts.js";

const KINDS = { running: "good", completed: "good", returned: "bad", stopped: "warn", unknown: "off" };
const GUARDS = { errors: "errors", refusals: "refusals", ttft_p95: "time to first token", cost: "cost", score: "low scores" };

/** `turn(model, "stop" | "begin")` is false for who may not. */
export function rolloutPanel(one, turn) {
  const running = one.status === "running";
  const state = h("span", {}, badge(one.status, KINDS[one.status]), " ", h("span.note", {}, `run ${one.run}`));
  const button = turn && one.status !== "unknown" && h("button.quiet", { id: `rollout-${one.model}`, type: "button", onclick: () => turn(one.model, running ? "stop" : "begin") },
    running ? "Stop" : "Begin anew", h("span.unseen", {}, ` the roll-out of ${one.model}`));
  return panelWith(`Roll-out of ${one.model}`, [state, " ", button],
    h("p", {}, `${one.backend} / ${one.target} has ${share(one.share)} of ${one.key}s`, running && one.waits_for ? `; the next step waits for ${one.waits_for}` : "", "."),
    steps(one),
    table(`What is seen of the roll-out of ${one.model}`, [
      { name: "Side", head: true, cell: ([name]) => name },
      { name: "Requests", right: true, cell: ([, arm]) => count(arm.requests) },
      { name: "Errors", right: true, cell: ([, arm]) => (arm.requests ? h("span", {}, percent(arm.errors), h("span.under", {}, `${percent(arm.errors_low)} to ${percent(arm.errors_high)}`)) : "–") },
      { name: "Refusals", right: true, small: true, cell: ([, arm]) => (arm.requests ? percent(arm.refusals) : "–") },
      { name: "TTFT p95", right: true, cell: ([, arm]) => (arm.ttft_p95 === undefined ? "–" : seconds(arm.ttft_p95)) },
      { name: "Score", right: true, small: true, cell: ([, arm]) => (arm.scored ? h("span", {}, percent(arm.score), h("span.under", {}, `of ${count(arm.scored)}`)) : "–") },
      { name: "A request", right: true, small: true, cell: ([, arm]) => (arm.mean_cost === undefined ? "–" : dollars(arm.mean_cost)) },
    ], [["present targets", one.control], [`${one.backend} / ${one.target}`, one.new]]),
    h("h3", {}, "Guards"),
    table(`Guards of the roll-out of ${one.model}`, [
      { name: "Guard", head: true, cell: (guard) => GUARDS[guard.name] || guard.name },
      { name: "May be", right: true, small: true, cell: (guard) => `${guard.tolerated} ×` },
      { name: "Evidence against it", cell: (guard) => h("span.with-bar", {}, bar(guard.evidence, `${percent(guard.evidence)} of what brings it back`), h("span.number", {}, percent(guard.evidence))) },
    ], one.guards),
    h("h3", {}, "Decisions"),
    table(`Decisions about the roll-out of ${one.model}`, [
      { name: "When", head: true, cell: (decision) => moment(decision.at) },
      { name: "What", cell: (decision) => badge(decision.what, decision.what === "returned" ? "bad" : decision.what === "stopped" ? "warn" : "") },
      { name: "Share", right: true, small: true, cell: (decision) => share(decision.share) },
      { name: "Why", long: true, cell: (decision) => h("span", {}, decision.why, decision.by && h("span.under", {}, `by ${Object.values(decision.by)[0]}`)) },
    ], one.decisions.slice(0, 8)));
}

/** What the button has done, where the worker that was asked since has not heard of it. */
export function later(seen, turned) {
  return turned && turned.model === seen.model && turned.target === seen.target && turned.since > seen.since ? turned : seen;
}

function steps(one) {
  return h("p", {}, h("span.note", {}, "Steps "), one.steps.map((step) => [badge(share(step), step <= one.share ? "cached" : "off"), " "]));
}

function share(number) {
  return `${Number(number.toPrecision(3))} %`;
}
