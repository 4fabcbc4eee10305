// A receipt as lines of a waterfall: when each stage began, how long it took, and what it decided.

import { count, dollars, seconds } from "./format.js";

/** {all: seconds, lines: [{name, at, seconds or null, hue, state, kind, note}]}, in the order in which they began. */
export function spans(receipt) {
  const stages = receipt.stages || {};
  const all = Math.max(stages.trace?.seconds || 0, ...(stages.fallback?.attempts || []).map((one) => (one.began || 0) + one.seconds), 1e-6);
  const lines = [
    ...guardLines("Guards, request", stages.guard_input, stages.guard_input?.began, stages.guard_input?.seconds),
    ...quotaRefusal(stages.quota),
    ...cacheLine(stages.cache),
    ...cascadeLine(stages.cascade),
    ...attemptsWithQueue(attemptLines(stages.fallback), queueLine(stages.queue)),
    ...streamLine(stages.meter, all),
    ...guardLines("Guards, answer", stages.guard_output, null, null),
    ...shadowLine(stages.shadow),
    ...quotaLine(stages.quota),
  ];
  return { all, lines };
}

function line(name, at, took, hue, more = {}) {
  return { name, at: at ?? 0, seconds: took ?? null, hue, state: "", kind: "", note: "", ...more };
}

function guardLines(name, stage, at, took) {
  if (!stage) return [];
  const guards = Object.entries(stage.guards || {});
  const hits = guards.filter(([, one]) => one.action && one.action !== "pass");
  const found = hits.map(([guard, one]) => `${guard}: ${one.action}${labels(one.labels)}`);
  const clean = guards.filter(([, one]) => !one.action || one.action === "pass").map(([guard]) => guard);
  const note = [...found, clean.length ? `${clean.join(", ")}: pass` : "", stage.cut ? `cut from character ${stage.cut.from ?? "?"}` : ""].filter(Boolean).join("; ");
  const strict = hits.some(([, one]) => one.action === "block") || stage.cut;
  const state = strict ? "blocked" : hits.length ? "found" : stage.scanned === false ? "unscanned" : "clean";
  const scans = guards.reduce((sum, [, one]) => sum + (one.seconds || 0), 0);
  const known = took === null ? `${seconds(scans)} of scans` : "";
  return [line(name, at, took, "guard", { state, kind: strict ? "bad" : hits.length ? "warn" : "good", note: [note, known].filter(Boolean).join("; ") })];
}

function labels(found) {
  const names = Object.entries(found || {}).map(([label, number]) => (number > 1 ? `${label} ×${number}` : label));
  return names.length ? ` ${names.join(", ")}` : "";
}

function cacheLine(stage) {
  if (!stage) return [];
  const hit = stage.result === "exact" || stage.result === "semantic";
  const note = [stage.age !== undefined && `${seconds(stage.age)} old`, stage.shared && `shares ${stage.shared}`, stage.outcome && `answer ${stage.outcome}`,
    stage.similarity !== undefined && `similarity ${Number(stage.similarity).toFixed(3)}`].filter(Boolean).join(", ");
  return [line("Cache", stage.began, stage.seconds, "cache", { state: hit ? `${stage.result} hit` : stage.result || "", kind: hit ? "good" : "", note })];
}

function cascadeLine(stage) {
  return stage ? [line("Cascade", null, null, "other", { note: `complexity ${stage.complexity ?? "?"}, answered by ${stage.answered ?? "nobody"}` })] : [];
}

function queueLine(stage) {
  if (!stage) return [];
  if (stage.refused) return [line("Queue", stage.began, stage.waited, "queue", { state: stage.refused, kind: "bad", note: `retry after ${seconds(stage.retry_after)}` })];
  const note = [`slot at ${stage.pool}`, stage.position ? `from position ${count(stage.position)}` : "at once"].join(", ");
  return [line("Queue", stage.began, stage.waited, "queue", { note })];
}

/** An attempt waits in its backend's queue: the queue stands before the attempt that it was part of. */
function attemptsWithQueue(attempts, queue) {
  if (!queue.length) return attempts;
  const after = attempts.findLastIndex((one) => one.seconds !== null && one.at <= queue[0].at);
  return after < 0 ? [...queue, ...attempts] : [...attempts.slice(0, after), ...queue, ...attempts.slice(after)];
}

function attemptLines(stage) {
  const attempts = stage?.attempts || [];
  const lines = attempts.map((one, at) => line(attempts.length > 1 ? `Attempt ${at + 1}` : "Attempt", one.began, one.seconds, one.outcome === "ok" ? "attempt" : "failed", {
    state: one.outcome, kind: one.outcome === "ok" ? "good" : "bad",
    note: [`${one.backend} / ${one.model}`, one.why, one.how,
      one.first_chunk !== undefined && one.sent !== undefined && `first chunk ${seconds(one.first_chunk - one.sent)} after it was sent`].filter(Boolean).join(", "),
  }));
  if (stage?.breaker_open?.length) lines.unshift(line("Skipped", null, null, "other", { state: "breaker open", kind: "warn", note: stage.breaker_open.join(", ") }));
  return lines;
}

function streamLine(stage, all) {
  if (!stage || stage.first_token === undefined) return stage?.error ? [line("Refused", 0, all, "failed", { state: stage.error, kind: "bad" })] : [];
  const chunks = (stage.chunks_after_first || 0) + 1;
  const speed = all - stage.first_token > 0.005 && stage.completion_tokens > 1 ? `, ${((stage.completion_tokens - 1) / (all - stage.first_token)).toFixed(0)} tokens/s` : "";
  return [line("Stream", stage.first_token, all - stage.first_token, "stream", { note: `first token after ${seconds(stage.first_token)}, ${count(chunks)} chunks${speed}` })];
}

function shadowLine(stage) {
  return stage ? [line("Shadow", null, null, "other", { state: stage.outcome || "", note: stage.model || "" })] : [];
}

function quotaRefusal(stage) {
  return stage?.refused ? [line("Quota", null, null, "failed", { state: "refused", kind: "bad", note: `${stage.refused}, retry after ${seconds(stage.retry_after)}` })] : [];
}

function quotaLine(stage) {
  if (!stage || stage.used_tokens === undefined) return [];
  return [line("Quota", null, null, "other", { note: `${count(stage.reserved_tokens)} tokens reserved, ${count(stage.used_tokens)} used, ${dollars(stage.cost_usd)}${stage.reserved_usd === undefined ? "" : ` of ${dollars(stage.reserved_usd)} reserved`}` })];
}
