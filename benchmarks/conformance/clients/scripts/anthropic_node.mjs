// Anthropic's client for TypeScript.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import {
  IMPATIENCE_MS, KEY, LONG, Lacks, PICTURE, QUESTION, SCHEMA, SEEN, SLOW, URL, WEATHER,
  busy, fails, feature, run, same, truth,
} from "./script.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const ASK = [{ role: "user", content: QUESTION }];
const TOOLS = [{ name: "get_weather", description: "The weather in a city.", input_schema: SCHEMA }];
const PATIENT = { format: { type: "json_schema", schema: LONG } };
const City = z.object({ city: z.string() });

feature("models", async ({ model }) => {
  const listed = [];
  for await (const one of client.models.list()) listed.push(one.id);
  truth(listed.includes(model), "the model is not in the list");
  same(model, (await client.models.retrieve(model)).id, "the model's id");
});

async function whole({ model }) {
  const answer = await client.messages.create({ model, max_tokens: 64, system: "Be brief.", messages: ASK });
  same("end_turn", answer.stop_reason, "stop_reason");
  truth(answer.usage.input_tokens && answer.usage.output_tokens, "no usage");
  return text(answer);
}
feature("messages", whole);

feature("messages-stream", async ({ model }) => {
  const stream = client.messages.stream({ model, max_tokens: 64, messages: ASK });
  let said = "";
  stream.on("text", (piece) => (said += piece));
  const message = await stream.finalMessage();
  same(text(message), said, "the pieces together");
  truth(message.usage.output_tokens, "no usage");
  return said;
});

feature("messages-tools", async ({ model }) => {
  const question = [{ role: "user", content: WEATHER }];
  const ask = { model, max_tokens: 256, tools: TOOLS };
  const first = await client.messages.create({ ...ask, messages: question, tool_choice: { type: "any" } });
  same("tool_use", first.stop_reason, "stop_reason");
  const messages = [...question, { role: "assistant", content: first.content }, results(first)];
  truth((await client.messages.create({ ...ask, messages })).content.length, "nothing after the tool's result");
});

feature("messages-tools-stream", async ({ model }) => {
  const stream = client.messages.stream({
    model, max_tokens: 256, messages: [{ role: "user", content: WEATHER }], tools: TOOLS, tool_choice: { type: "any" },
  });
  let pieces = "";
  stream.on("inputJson", (piece) => (pieces += piece));
  const message = await stream.finalMessage();
  results(message);
  const called = message.content.filter((block) => block.type === "tool_use");
  same(called.map((block) => block.input), [JSON.parse(pieces)], "the arguments' pieces");
});

feature("messages-structured", async ({ model }) => {
  const answer = await client.messages.parse({
    model, max_tokens: 256, messages: [{ role: "user", content: WEATHER }],
    output_config: { format: zodOutputFormat(City) },
  });
  truth(typeof answer.parsed_output?.city === "string", "nothing was parsed");
});

feature("messages-image", async ({ model }) => {
  const source = { type: "base64", media_type: "image/png", data: PICTURE };
  const content = [{ type: "image", source }, { type: "text", text: "What is this?" }];
  const answer = await client.messages.create({ model, max_tokens: 64, messages: [{ role: "user", content }] });
  same(SEEN, text(answer), "what is seen");
});

feature("messages-thinking", async ({ model }) => {
  const ask = { model, max_tokens: 4000, thinking: { type: "enabled", budget_tokens: 1024 } };
  const first = await client.messages.stream({ ...ask, messages: ASK }).finalMessage();
  truth(text(first), "no answer");
  if (!first.content.some((block) => block.type === "thinking" && block.thinking))
    throw new Lacks("the answer tells of no thoughts");
  const messages = [...ASK, { role: "assistant", content: first.content }, { role: "user", content: "Why?" }];
  truth(text(await client.messages.create({ ...ask, messages })), "no answer with the thoughts given back");
});

feature("messages-count", async ({ model }) => {
  const counted = await client.messages.countTokens({ model, messages: ASK, system: "Be brief.", tools: TOOLS });
  truth(counted.input_tokens > 0, "none");
});

feature("errors", async ({ model }) => {
  const ask = (body) => () => client.messages.create({ model, max_tokens: 64, messages: ASK, ...body });
  const wrongKey = client.withOptions({ apiKey: "tg-wrong" });
  for (const [kind, call] of [
    [Anthropic.BadRequestError, ask({ messages: [] })],
    [Anthropic.NotFoundError, ask({ model: "no-such-model" })],
    [Anthropic.AuthenticationError, () => wrongKey.models.list()],
  ]) {
    const error = await fails(kind, call);
    truth(error.error?.error?.type && error.requestID, "an error without a type or the request's id");
  }
});

feature("retry", async ({ model }) => {
  const began = performance.now();
  const ask = (content) => ({ model, max_tokens: 64, messages: [{ role: "user", content }] });
  const answer = await client.messages.create(ask(busy()), { maxRetries: 3 });
  if (performance.now() - began < 900) throw new Lacks("nothing refused the request");
  const refused = await fails(Anthropic.RateLimitError, () => client.messages.create(ask(busy())));
  truth(Number(refused.headers.get("retry-after")) >= 1, "retry-after");
  return text(answer);
});

feature("timeout", async ({ model }) => {
  const ask = { model, max_tokens: 4000, messages: [{ role: "user", content: SLOW }], output_config: PATIENT };
  await fails(Anthropic.APIConnectionTimeoutError, () => client.messages.create(ask, { timeout: IMPATIENCE_MS }));
});

feature("abort", async (asked) => {
  const ask = { model: asked.model, max_tokens: 4000, messages: [{ role: "user", content: SLOW }], output_config: PATIENT };
  const stream = await client.messages.create({ ...ask, stream: true });
  for await (const event of stream) {
    truth(event, "no first event");
    break;
  }
  stream.controller.abort();
  return whole(asked);
});

function text(message) {
  return message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
}

function results(message) {
  const calls = message.content.filter((block) => block.type === "tool_use");
  truth(calls.length, "no tool was called");
  const content = calls.map((call) => {
    same("get_weather", call.name, "the tool");
    truth(typeof call.input.city === "string", "no city");
    return { type: "tool_result", tool_use_id: call.id, content: '{"celsius": 21}' };
  });
  return { role: "user", content };
}

await run("@anthropic-ai/sdk");
