// A conversation with a model: it streams, says how it went, and takes back what a guard revokes.

import { address, get, call } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { count, seconds } from "../format.js";
import { problem } from "../parts.js";
import { events } from "../server_events.js";
import { requestLink } from "./requests.js";

export function playground(place, { state }) {
  const own = state.scopes.includes("inference");
  let talk = [];
  let running = null;
  const model = h("select", { id: "model", "aria-label": "Model" });
  const system = h("textarea", { id: "system", rows: 2, placeholder: "None" });
  const limit = h("input", { id: "limit", type: "number", min: 1, value: "512" });
  const key = h("input", { id: "model-key", type: "password", autocomplete: "off", placeholder: "tg-…" });
  const text = h("textarea", { id: "prompt", rows: 3, required: true, onkeydown: (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  } });
  const send = h("button.main", { type: "submit" }, "Send");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  const fresh = h("button.quiet", { type: "button", onclick: () => {
    running?.abort();
    talk = [];
    fill(said);
    text.focus();
  } }, "New conversation");
  const said = h("ol.talk", { "aria-label": "Conversation" });
  const trouble = h("div", {});
  const form = h("form.ask", { onsubmit: (event) => {
    event.preventDefault();
    ask(text.value);
  } }, h("label", { for: "prompt" }, "Message", h("span.note", {}, " Ctrl+Enter sends")), text, h("div.row", {}, send, stop, fresh));
  fill(place, h("h1", {}, "Playground"), h("div.bench", {},
    h("section.panel.stage-set", { "aria-label": "Settings" },
      h("label", {}, "Model", model), h("label", {}, "Instructions", system), h("label", {}, "Most tokens", limit),
      !own && h("label", {}, "API key of scope inference", key, h("span.note", {}, "Your key is for this page only. This one is kept until you leave it."))),
    h("section.panel", { "aria-label": "Conversation" }, said, trouble, form)));
  get("/models").then((found) => {
    const nowhere = (one) => one.targets.length && !one.fallbacks.length && one.targets.every((target) => target.outside);
    const why = (one) => one.disabled || (nowhere(one) && "no backend in its regions") || (own && !one.allowed && "not for this key");
    const [open, shut] = [found.models.filter((one) => !why(one)), found.models.filter(why)];
    fill(model, open.map((one) => h("option", { value: one.name }, one.name)),
      shut.length > 0 && h("optgroup", { label: "Cannot be asked" }, shut.map((one) => h("option", { disabled: true }, `${one.name} (${why(one)})`))));
    send.disabled = !open.length;
    if (!open.length) fill(trouble, h("p.problem", { role: "alert" }, "No model can be asked now: see Models for why."));
  }, (error) => fill(trouble, problem(error)));

  async function ask(question) {
    if (running || !question.trim()) return;
    running = new AbortController();
    send.disabled = true;
    stop.hidden = false;
    fill(trouble);
    text.value = "";
    const answer = h("div.answer", { "aria-busy": "true" });
    const facts = h("p.note", {});
    said.append(h("li.asked", {}, h("span.who-said", {}, "You"), h("div.answer", {}, question)), h("li", {}, h("span.who-said", {}, model.value), answer, facts));
    facts.scrollIntoView({ block: "nearest" });
    const messages = [...(system.value.trim() ? [{ role: "system", content: system.value }] : []), ...talk, { role: "user", content: question }];
    try {
      const spoken = await stream(messages, answer, facts);
      talk.push({ role: "user", content: question }, { role: "assistant", content: spoken });
      announce("The answer is complete");
    } catch (error) {
      if (error.name === "AbortError") facts.append(" Stopped.");
      else facts.append(problem(error));
    } finally {
      running = null;
      send.disabled = false;
      stop.hidden = true;
      answer.removeAttribute("aria-busy");
      text.focus({ preventScroll: true });
    }
  }

  async function stream(messages, answer, facts) {
    const began = performance.now();
    const body = { model: model.value, messages, stream: true, stream_options: { include_usage: true }, max_tokens: Number(limit.value) || undefined };
    const response = await opened(body);
    let spoken = "";
    let first = 0;
    let usage = null;
    let finish = "";
    let revoked = null;
    const tell = () => fill(facts, aboutAnswer(response, { first, usage, finish, took: (performance.now() - began) / 1000 }));
    for await (const event of events(response)) {
      if (event.comment !== undefined) {
        if (!spoken) fill(facts, event.comment);
        continue;
      }
      if (event.data === "[DONE]") break;
      const chunk = JSON.parse(event.data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      if (chunk.tollgate?.revoked) revoked = chunk.tollgate;
      const one = chunk.choices?.[0];
      const piece = one?.delta?.content || "";
      if (piece && !first) first = (performance.now() - began) / 1000;
      spoken += piece;
      if (one?.finish_reason) finish = one.finish_reason;
      if (revoked) takeBack(answer, spoken, revoked);
      else answer.textContent = spoken;
      if (!first || revoked) tell();
    }
    tell();
    return revoked ? [...spoken].slice(0, revoked.from).join("") : spoken;
  }

  async function opened(body) {
    const headers = { "x-tollgate-queue": "positions" };
    if (own || !key.value) return call("POST", "/playground", body, { signal: running.signal, raw: true, headers });
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: { ...headers, "content-type": "application/json", authorization: `Bearer ${key.value.trim()}` }, body: JSON.stringify(body), signal: running.signal, credentials: "omit" });
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    throw new Error(told.error?.message || `The gateway answered with status ${response.status}.`);
  }

  return () => running?.abort();
}

/** Blanks what a guard revoked: from the character on that it names, counted in code points. */
function takeBack(answer, spoken, { from, guard, reason }) {
  const characters = [...spoken];
  const kept = characters.slice(0, from).join("");
  const lost = characters.length - from;
  fill(answer, kept, h("span.revoked", { role: "note" }, `${lost > 0 ? `${count(lost)} characters` : "The rest is"} revoked by ${guard || "a guard"}${reason ? `: ${reason}` : ""}`));
}

function aboutAnswer(response, { first, usage, finish, took }) {
  const id = response.headers.get("x-request-id");
  const parts = [
    response.headers.get("x-tollgate-model"),
    response.headers.get("x-tollgate-cache") && `cache ${response.headers.get("x-tollgate-cache")}`,
    first && `first token ${seconds(first)}`,
    usage && `${count(usage.prompt_tokens)} tokens in, ${count(usage.completion_tokens)} out`,
    usage && first && took - first > 0.05 && `${(usage.completion_tokens / (took - first)).toFixed(0)} tokens/s`,
    `${seconds(took)} in all`,
    finish && finish !== "stop" && `ended by ${finish}`,
  ];
  return [parts.filter(Boolean).join(" · "), id && [" · ", h("a", { href: requestLink(id) }, "waterfall")]];
}
