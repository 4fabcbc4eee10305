// OpenAI's client for Node.
import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  IMPATIENCE_MS, KEY, LONG, Lacks, PICTURE, QUESTION, SCHEMA, SEEN, SLOW, SOUND, URL, WEATHER,
  busy, fails, feature, run, same, truth,
} from "./script.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, maxRetries: 0 });
const ASK = [{ role: "user", content: QUESTION }];
const FUNCTION = { name: "get_weather", description: "The weather in a city.", parameters: SCHEMA };
const TOOLS = [{ type: "function", function: FUNCTION }];
const RESPONSE_TOOLS = [{ type: "function", ...FUNCTION, strict: true }];
const PATIENT = { type: "json_schema", json_schema: { name: "long", strict: true, schema: LONG } };
const City = z.object({ city: z.string() });

feature("models", async ({ model }) => {
  const listed = [];
  for await (const one of client.models.list()) listed.push(one.id);
  truth(listed.includes(model), "the model is not in the list");
  same(model, (await client.models.retrieve(model)).id, "the model's id");
});

async function chat({ model }) {
  const answer = await client.chat.completions.create({
    model, messages: ASK, temperature: 0, max_completion_tokens: 64,
  });
  same("stop", answer.choices[0].finish_reason, "finish_reason");
  truth(answer.usage?.prompt_tokens && answer.usage.completion_tokens, "no usage");
  return answer.choices[0].message.content;
}
feature("chat", chat);

feature("chat-stream", async ({ model }) => {
  const stream = client.chat.completions.stream({
    model, messages: ASK, temperature: 0, max_completion_tokens: 64, stream_options: { include_usage: true },
  });
  let said = "";
  stream.on("content", (piece) => (said += piece));
  const whole = await stream.finalChatCompletion();
  same(whole.choices[0].message.content, said, "the pieces together");
  truth(whole.usage?.completion_tokens, "no usage");
  return said;
});

feature("chat-tools", async ({ model }) => {
  const question = [{ role: "user", content: WEATHER }];
  const first = await client.chat.completions.create({
    model, messages: question, tools: TOOLS, tool_choice: "required", temperature: 0,
  });
  same("tool_calls", first.choices[0].finish_reason, "finish_reason");
  const { message } = first.choices[0];
  const second = await client.chat.completions.create({
    model, messages: [...question, message, ...chatResults(message)], tools: TOOLS, temperature: 0,
  });
  const after = second.choices[0].message;
  truth(after.content || after.tool_calls, "nothing after the tool's result");
  return after.content;
});

feature("chat-tools-stream", async ({ model }) => {
  const stream = client.chat.completions.stream({
    model, messages: [{ role: "user", content: WEATHER }], tools: TOOLS, tool_choice: "required", temperature: 0,
  });
  const done = [];
  stream.on("tool_calls.function.arguments.done", (event) => done.push(event.arguments));
  const whole = await stream.finalChatCompletion();
  chatResults(whole.choices[0].message);
  same(whole.choices[0].message.tool_calls.map((call) => call.function.arguments), done, "the arguments");
});

feature("chat-structured", async ({ model }) => {
  const answer = await client.chat.completions.parse({
    model, messages: [{ role: "user", content: WEATHER }], response_format: zodResponseFormat(City, "city"),
  });
  truth(typeof answer.choices[0].message.parsed?.city === "string", "nothing was parsed");
});

feature("chat-image", async ({ model }) => {
  const picture = { type: "image_url", image_url: { url: `data:image/png;base64,${PICTURE}` } };
  const content = [{ type: "text", text: "What is this?" }, picture];
  const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content }] });
  same(SEEN, answer.choices[0].message.content, "what is seen");
});

feature("chat-thinking", async ({ model }) => {
  const answer = await client.chat.completions.create({
    model, messages: ASK, reasoning_effort: "low", max_completion_tokens: 4000,
  });
  truth(answer.choices[0].message.content, "no answer");
  const counted = answer.usage?.completion_tokens_details?.reasoning_tokens;
  if (!answer.choices[0].message.reasoning_content && !counted)
    throw new Lacks("the answer tells of no thoughts");
});

feature("completions", async ({ model }) => {
  const ask = { model, prompt: "One, two", max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(ask);
  let said = "";
  for await (const event of await client.completions.create({ ...ask, stream: true })) said += event.choices[0].text;
  truth(whole.usage?.completion_tokens, "no usage");
  same(whole.choices[0].text, said, "the pieces together");
});

feature("responses", async ({ model }) => {
  const answer = await client.responses.create({
    model, instructions: "Be brief.", input: QUESTION, temperature: 0, max_output_tokens: 64,
  });
  same("completed", answer.status, "status");
  truth(answer.usage?.input_tokens && answer.usage.output_tokens, "no usage");
  return answer.output_text;
});

feature("responses-stream", async ({ model }) => {
  const stream = client.responses.stream({ model, input: QUESTION, temperature: 0, max_output_tokens: 64 });
  const events = [];
  for await (const event of stream) events.push(event);
  const whole = await stream.finalResponse();
  const kinds = events.map((event) => event.type);
  same(["response.created", "response.in_progress"], kinds.slice(0, 2), "the first events");
  same("response.completed", kinds.at(-1), "the last event");
  same(events.map((_, i) => i), events.map((event) => event.sequence_number), "the sequence's numbers");
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  const said = deltas.map((event) => event.delta).join("");
  same(whole.output_text, said, "the pieces together");
  return said;
});

feature("responses-tools", async ({ model }) => {
  const first = await client.responses.create({
    model, input: WEATHER, tools: RESPONSE_TOOLS, tool_choice: "required", temperature: 0,
  });
  const input = [{ role: "user", content: WEATHER }, ...first.output, ...responseResults(first)];
  const second = await client.responses.create({ model, input, tools: RESPONSE_TOOLS, temperature: 0 });
  same("completed", second.status, "status");
  truth(second.output.length, "nothing after the tool's result");
  return second.output_text;
});

feature("responses-tools-stream", async ({ model }) => {
  const stream = client.responses.stream({
    model, input: WEATHER, tools: RESPONSE_TOOLS, tool_choice: "required", temperature: 0,
  });
  let pieces = "", done = "";
  for await (const event of stream) {
    if (event.type === "response.function_call_arguments.delta") pieces += event.delta;
    if (event.type === "response.function_call_arguments.done") done += event.arguments;
  }
  same(done, pieces, "the arguments' pieces");
  responseResults(await stream.finalResponse());
});

feature("responses-structured", async ({ model }) => {
  const answer = await client.responses.parse({
    model, input: WEATHER, text: { format: zodTextFormat(City, "city") },
  });
  truth(typeof answer.output_parsed?.city === "string", "nothing was parsed");
});

feature("responses-image", async ({ model }) => {
  const picture = { type: "input_image", detail: "auto", image_url: `data:image/png;base64,${PICTURE}` };
  const content = [{ type: "input_text", text: "What is this?" }, picture];
  const answer = await client.responses.create({ model, input: [{ role: "user", content }] });
  same(SEEN, answer.output_text, "what is seen");
});

feature("responses-thinking", async ({ model }) => {
  const question = [{ role: "user", content: QUESTION }];
  const ask = { model, store: false, max_output_tokens: 4000, include: ["reasoning.encrypted_content"] };
  const first = await client.responses.create({
    ...ask, input: question, reasoning: { effort: "low", summary: "auto" },
  });
  const thought = first.output.some((item) => item.type === "reasoning");
  if (!thought && !first.usage?.output_tokens_details?.reasoning_tokens)
    throw new Lacks("the answer tells of no thoughts");
  const input = [...question, ...first.output, { role: "user", content: "Why?" }];
  const second = await client.responses.create({ ...ask, input, reasoning: { effort: "low" } });
  truth(second.output_text, "no answer with the thoughts given back");
});

feature("responses-continue", async ({ model }) => {
  const first = await client.responses.create({ model, input: "I am Alice.", max_output_tokens: 64 });
  const second = await client.responses.create({
    model, input: QUESTION, previous_response_id: first.id, max_output_tokens: 64,
  });
  same(first.id, second.previous_response_id, "previous_response_id");
  same(second.output_text, (await client.responses.retrieve(second.id)).output_text, "what was kept");
  return second.output_text;
});

feature("responses-background", async ({ model }) => {
  const text = { format: { type: "json_schema", name: "long", strict: true, schema: LONG } };
  const begun = await client.responses.create({ model, input: SLOW, background: true, text });
  const waits = (status) => truth(["queued", "in_progress"].includes(status), `status ${status}`);
  waits(begun.status);
  waits((await client.responses.retrieve(begun.id)).status);
  same("cancelled", (await client.responses.cancel(begun.id)).status, "status after cancel");
  same("cancelled", (await client.responses.retrieve(begun.id)).status, "status later on");
});

feature("responses-delete", async ({ model }) => {
  const made = await client.responses.create({ model, input: QUESTION, max_output_tokens: 64 });
  await client.responses.delete(made.id);
  await fails(OpenAI.NotFoundError, () => client.responses.retrieve(made.id));
});

feature("responses-input-items", async ({ model }) => {
  const input = [
    { role: "user", content: "One" }, { role: "assistant", content: "Two" }, { role: "user", content: QUESTION },
  ];
  const made = await client.responses.create({ model, input, max_output_tokens: 64 });
  const roles = [];
  for await (const item of client.responses.inputItems.list(made.id, { order: "asc", limit: 2 })) roles.push(item.role);
  same(["user", "assistant", "user"], roles, "the items' roles");
});

feature("responses-input-tokens", async ({ model }) => {
  truth((await client.responses.inputTokens.count({ model, input: QUESTION })).input_tokens > 0, "none");
});

feature("responses-compact", async ({ model }) => {
  const compacted = await client.responses.compact({ model, input: [{ role: "user", content: "I am Alice." }] });
  same("compaction", compacted.output.at(-1).type, "the last item");
  const input = [...compacted.output, { role: "user", content: QUESTION }];
  truth((await client.responses.create({ model, input })).output_text, "no answer afterwards");
});

feature("embeddings", async ({ embedder }) => {
  const made = await client.embeddings.create({ model: embedder, input: ["One", "Two"] });
  same([0, 1], made.data.map((one) => one.index), "the vectors' numbers");
  const plain = await client.embeddings.create({ model: embedder, input: "One", encoding_format: "float" });
  same(plain.data[0].embedding.length, made.data[0].embedding.length, "the vectors' length");
  truth(made.usage.prompt_tokens, "no usage");
});

feature("moderations", async () => {
  same(false, (await client.moderations.create({ input: "Good morning." })).results[0].flagged, "flagged");
});

feature("files", async () => {
  const content = '{"a": 1}\n';
  const made = await client.files.create({ file: await toFile(Buffer.from(content), "a.jsonl"), purpose: "user_data" });
  same([content.length, "a.jsonl"], [made.bytes, made.filename], "the file");
  const listed = [];
  for await (const one of client.files.list()) listed.push(one.id);
  truth(listed.includes(made.id), "it is not in the list");
  same(content, await (await client.files.content(made.id)).text(), "its content");
  truth((await client.files.delete(made.id)).deleted, "it was not deleted");
});

feature("batches", async ({ model }) => {
  const body = { model, messages: ASK, max_completion_tokens: 64, temperature: 0 };
  const lines = ["line-0", "line-1"].map((custom_id) =>
    JSON.stringify({ custom_id, method: "POST", url: "/v1/chat/completions", body }));
  const file = await toFile(Buffer.from(`${lines.join("\n")}\n`), "lines.jsonl");
  const given = await client.files.create({ file, purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: given.id, endpoint: "/v1/chat/completions", completion_window: "24h",
  });
  for (let i = 0; i < 600 && ["validating", "in_progress", "finalizing"].includes(batch.status); i++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  same("completed", batch.status, "status");
  const output = await (await client.files.content(batch.output_file_id)).text();
  const told = output.trim().split("\n").map((line) => JSON.parse(line));
  same(["line-0", "line-1"], told.map((line) => line.custom_id).sort(), "the lines");
  same([200, 200], told.map((line) => line.response.status_code), "their statuses");
});

feature("transcription", async ({ model }) =>
  (await client.audio.transcriptions.create({ model, file: await toFile(SOUND, "a.wav") })).text);

feature("speech", async ({ model }) => {
  const response = await client.audio.speech.create({ model, voice: "alloy", input: "Hello." });
  truth((await response.arrayBuffer()).byteLength, "no sound");
});

feature("images", async ({ model }) => {
  same(2, (await client.images.generate({ model, prompt: "A fox.", n: 2 })).data.length, "the pictures");
});

feature("rerank", async ({ model }) => {
  // The library has no method for it, and sends it all the same.
  const body = { model, query: "A fox?", documents: ["A hen.", "A fox."] };
  same(2, (await client.post("/rerank", { body })).results.length, "the ranks");
});

feature("errors", async ({ model }) => {
  const ask = (body) => () => client.chat.completions.create({ model, messages: ASK, ...body });
  const wrongKey = client.withOptions({ apiKey: "tg-wrong" });
  for (const [kind, call] of [
    [OpenAI.BadRequestError, ask({ messages: [] })],
    [OpenAI.BadRequestError, () => client.responses.create({ model, input: QUESTION, temperature: 9 })],
    [OpenAI.NotFoundError, ask({ model: "no-such-model" })],
    [OpenAI.AuthenticationError, () => wrongKey.models.list()],
  ]) {
    const error = await fails(kind, call);
    truth(error.message && error.type && error.requestID, "an error without message, type or the request's id");
  }
});

feature("retry", async ({ model }) => {
  const began = performance.now();
  const content = busy();
  const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content }] }, { maxRetries: 3 });
  if (performance.now() - began < 900) throw new Lacks("nothing refused the request");
  const refused = await fails(OpenAI.RateLimitError, () =>
    client.chat.completions.create({ model, messages: [{ role: "user", content: busy() }] }));
  truth(Number(refused.headers.get("retry-after")) >= 1, "retry-after");
  return answer.choices[0].message.content;
});

feature("timeout", async ({ model }) => {
  await fails(OpenAI.APIConnectionTimeoutError, () =>
    client.chat.completions.create(
      { model, messages: [{ role: "user", content: SLOW }], response_format: PATIENT }, { timeout: IMPATIENCE_MS }));
});

feature("abort", async (asked) => {
  const { model } = asked;
  const messages = [{ role: "user", content: SLOW }];
  for (const stream of [
    await client.chat.completions.create({ model, messages, response_format: PATIENT, stream: true }),
    await client.responses.create({ model, input: SLOW, stream: true }),
  ]) {
    for await (const event of stream) {
      truth(event, "no first event");
      break;
    }
    stream.controller.abort();
  }
  return chat(asked);
});

function chatResults(message) {
  truth(message.tool_calls?.length, "no tool was called");
  return message.tool_calls.map((call) => {
    same("get_weather", call.function.name, "the tool");
    truth(typeof JSON.parse(call.function.arguments).city === "string", "no city");
    return { role: "tool", tool_call_id: call.id, content: '{"celsius": 21}' };
  });
}

function responseResults(response) {
  const calls = response.output.filter((item) => item.type === "function_call");
  truth(calls.length, "no tool was called");
  return calls.map((call) => {
    truth(typeof JSON.parse(call.arguments).city === "string", "no city");
    return { type: "function_call_output", call_id: call.call_id, output: '{"celsius": 21}' };
  });
}

await run("openai");
