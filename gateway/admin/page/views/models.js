// The public models, who answers them, and how that goes now.

import { get, post } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { count, dollars, percent, rate, seconds } from "../format.js";
import { failed, limited } from "../live_data.js";
import { badge, loading, outOfUse, panel, problem, regions, table } from "../parts.js";

export function models(place, { live, state }) {
  const may = state.role !== "viewer";
  const list = h("div", {}, loading());
  const backends = h("div", {}, loading());
  const trouble = h("div", {});
  const rollouts = h("div.stack", {});
  const experiments = h("div.stack", {});
  const drifts = h("div.stack", {});
  const adapters = h("div.stack", {});
  const opinions = h("div", {}, loading());
  const judged = h("div.stack", {});
  let evaluation = null;
  fill(place, h("h1", {}, "Models"), trouble, rollouts, experiments, drifts, panel("Models and targets", list), panel("Backends", backends), adapters, judged, panel("What callers think of answers, 30 days", opinions));
  let found = null;
  let known = null;
  let turned = null;
  let looked = 0;
  const show = () => {
    if (found) fill(list, modelTable(found.models, live));
    if (known) fill(backends, backendTable(known.backends, live, may && drain));
  };
  async function read() {
    try {
      // Panels of their own files come with this view, and not with the first load.
      const [{ later, rolloutPanel }, one, other, rolled] = await Promise.all([import("./rollouts.js"), get("/models"), get("/backends"), get("/rollouts")]);
      [found, known] = [one, other];
      fill(rollouts, rolled.rollouts.map((each) => rolloutPanel(later(each, turned), may && turn)));
      show();
    } catch (error) {
      fill(list, problem(error));
    }
    if (looked % 6 === 0) await compare(); // once a minute: these are sums over all of their requests
    looked += 1;
    try {
      const [{ driftPanel }, drifted] = await Promise.all([import("./drift.js"), get("/drift")]);
      fill(drifts, driftPanel(drifted));
    } catch (error) {
      fill(drifts, problem(error));
    }
    try {
      const [{ adapterPanels }, told] = await Promise.all([import("./adapters.js"), get("/adapters")]);
      fill(adapters, ...adapterPanels(told, may && trouble, read));
    } catch (error) {
      fill(adapters, problem(error));
    }
    try {
      const [{ feedback }, told] = await Promise.all([import("./feedback.js"), get("/feedback?by=model&comments=10")]);
      fill(opinions, ...feedback(told));
    } catch (error) {
      fill(opinions, problem(error));
    }
    try {
      await judgements();
    } catch (error) {
      evaluation?.destroy();
      evaluation = null;
      fill(judged, problem(error));
    }
  }
  async function compare() {
    try {
      const told = await get("/experiments");
      const { experimentPanel } = told.experiments.length ? await import("./experiments.js") : {};
      fill(experiments, told.experiments.map((each) => experimentPanel(each)));
    } catch (error) {
      fill(experiments, problem(error));
    }
  }
  async function judgements() {
    const told = await get("/evaluation");
    if (told.judge === undefined || told.judge === null) {
      evaluation?.destroy();
      evaluation = null;
      fill(judged);
      return;
    }
    if (!evaluation) {
      const { EvaluationPanel } = await import("./evaluation.js");
      const inside = h("div", {});
      fill(judged, panel("What the judge says of answers, 30 days", inside));
      evaluation = new EvaluationPanel(inside);
    }
    evaluation.set(told);
  }
  async function drain(name, drained) {
    fill(trouble);
    try {
      await post(`/backends/${encodeURIComponent(name)}/${drained ? "undrain" : "drain"}`);
      announce(`${name} is ${drained ? "in use again" : "drained"}`);
    } catch (error) {
      fill(trouble, problem(error));
    }
    read();
  }
  async function turn(model, what) {
    fill(trouble);
    try {
      turned = await post(`/rollouts/${encodeURIComponent(model)}/${what}`);
      announce(`the roll-out of ${model} ${what === "stop" ? "is stopped" : "begins anew"}`);
    } catch (error) {
      fill(trouble, problem(error));
    }
    read();
  }
  read();
  const again = setInterval(read, 10000);
  const forget = live.listen(show);
  return () => {
    forget();
    clearInterval(again);
    evaluation?.destroy();
  };
}

function modelTable(found, live) {
  const rows = found.flatMap((model) => (model.targets.length
    ? model.targets.map((target, at) => ({ model, target, first: at === 0 }))
    : [{ model, target: null, first: true }]));
  const of = (name) => (model) => model === name;
  return table("Models and targets", [
    { name: "Model", head: true, cell: ({ model, first }) => first && h("span", {}, model.name, model.aliases.length > 0 && h("span.note", {}, ` also ${model.aliases.join(", ")}`), model.stays_in && h("span.under", {}, "stays in ", regions(model.stays_in))) },
    { name: "Target", cell: ({ model, target }) => (target ? `${target.backend} / ${target.model}${target.region ? ` in ${target.region}` : ""}` : `cascade: ${model.cascade.join(" → ")}`) },
    { name: "State", cell: ({ target }) => target && state(target, live) },
    { name: "Weight", right: true, small: true, cell: ({ target }) => target && count(target.weight) },
    { name: "$ per M in", right: true, small: true, cell: ({ target }) => (target?.price ? dollars(target.price.input) : "–") },
    { name: "$ per M out", right: true, small: true, cell: ({ target }) => (target?.price ? dollars(target.price.output) : "–") },
    { name: "Fallbacks", small: true, cell: ({ model, first }) => first && (model.fallbacks.join(", ") || "–") },
    { name: "Requests/s", right: true, cell: ({ model, target }) => rate(live.rate("requests", (name, backend) => name === model.name && (!target || backend === target.backend), 60)) },
    { name: "Failed", right: true, cell: ({ model, first }) => first && share(live.rate("requests", (name, backend, code) => name === model.name && failed(name, backend, code), 60), live.rate("requests", of(model.name), 60)) },
    { name: "429", right: true, small: true, cell: ({ model, first }) => first && share(live.rate("requests", (name, backend, code) => name === model.name && limited(name, backend, code), 60), live.rate("requests", of(model.name), 60)) },
    { name: "Tokens/s", right: true, small: true, cell: ({ model, first }) => first && rate(live.rate("tokens", (name, way) => name === model.name && way === "out", 60)) },
  ], rows);
}

function share(part, all) {
  return all ? percent(part / all) : "–";
}

function state(target, live) {
  const open = (live.latest?.breakers || []).filter((one) => one.backend === target.backend && one.model === target.model);
  const unused = outOfUse(target);
  if (unused) return unused;
  if (target.outside) return badge("never asked: not in its regions", "off");
  if (open.some((one) => !one.tenant)) return badge(`breaker open, ${seconds(Math.max(...open.map((one) => one.seconds)))}`, "bad");
  if (open.length) return badge(`breaker open for ${open.map((one) => one.key || one.tenant).join(", ")}`, "warn");
  if (target.trouble) return badge(target.trouble, "warn");
  return target.state && target.state !== "loaded" ? badge(target.state, "off") : badge(target.state || "in use", "good");
}

function backendTable(rows, live, drain) {
  return table("Backends", [
    { name: "Backend", head: true, cell: (one) => one.name },
    { name: "Kind", cell: (one) => one.kind },
    { name: "State", wide: true, cell: (one) => outOfUse(one) || badge(one.trouble || "in use", one.trouble ? "warn" : "good") },
    { name: "Region", small: true, cell: (one) => one.region || "–" },
    { name: "In flight", right: true, cell: (one) => count(live.latest?.backends[one.name]?.in_flight) },
    drain && { name: "", right: true, cell: (one) => h("button.quiet", { id: `drain-${one.name}`, type: "button", onclick: () => drain(one.name, one.drained) }, one.drained ? "Use again" : "Drain", h("span.unseen", {}, ` ${one.name}`)) },
  ].filter(Boolean), rows);
}
