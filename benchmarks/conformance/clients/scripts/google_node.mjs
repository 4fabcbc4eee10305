// Google's client for TypeScript.
import { ApiError, FunctionCallingConfigMode, GoogleGenAI } from "@google/genai";
import {
  IMPATIENCE_MS, KEY, LONG, Lacks, PICTURE, QUESTION, SCHEMA, SEEN, SLOW, URL, WEATHER,
  busy, fails, feature, run, same, truth,
} from "./script.mjs";

const client = (apiKey = KEY, options = {}) => new GoogleGenAI({ apiKey, httpOptions: { baseUrl: URL, ...options } });
const { models } = client();
const tools = [
  { functionDeclarations: [{ name: "get_weather", description: "The weather in a city.", parametersJsonSchema: SCHEMA }] },
];
const toolConfig = { functionCallingConfig: { mode: FunctionCallingConfigMode.ANY } };
const PATIENT = { maxOutputTokens: 4000, responseMimeType: "application/json", responseJsonSchema: LONG };

feature("models", async ({ model }) => {
  const listed = [];
  for await (const one of await models.list()) listed.push(one.name);
  truth(listed.includes(`models/${model}`), "the model is not in the list");
  same(`models/${model}`, (await models.get({ model })).name, "the model's name");
});

async function whole({ model }) {
  const config = { maxOutputTokens: 64, systemInstruction: "Be brief." };
  const answer = await models.generateContent({ model, contents: QUESTION, config });
  check(answer);
  return answer.text;
}
feature("contents", whole);

feature("contents-stream", async ({ model }) => {
  let said = "";
  let last;
  const config = { maxOutputTokens: 64 };
  for await (const piece of await models.generateContentStream({ model, contents: QUESTION, config })) {
    said += piece.text ?? "";
    last = piece;
  }
  check(last);
  return said;
});

feature("contents-tools", async ({ model }) => {
  const question = { role: "user", parts: [{ text: WEATHER }] };
  const first = await models.generateContent({ model, contents: [question], config: { tools, toolConfig } });
  const contents = [question, first.candidates[0].content, results(first)];
  const second = await models.generateContent({ model, contents, config: { tools } });
  truth(second.candidates[0].content.parts.length, "nothing after the tool's result");
});

feature("contents-tools-stream", async ({ model }) => {
  const called = [];
  for await (const piece of await models.generateContentStream({ model, contents: WEATHER, config: { tools, toolConfig } }))
    if (piece.functionCalls) called.push(piece);
  truth(called.length, "no tool was called");
  results(called[0]);
});

feature("contents-structured", async ({ model }) => {
  const config = { maxOutputTokens: 256, responseMimeType: "application/json", responseJsonSchema: SCHEMA };
  const answer = await models.generateContent({ model, contents: WEATHER, config });
  truth(typeof JSON.parse(answer.text).city === "string", "no city");
});

feature("contents-image", async ({ model }) => {
  const contents = [{ inlineData: { mimeType: "image/png", data: PICTURE } }, "What is this?"];
  same(SEEN, (await models.generateContent({ model, contents, config: { maxOutputTokens: 64 } })).text, "what is seen");
});

feature("contents-thinking", async ({ model }) => {
  const config = { maxOutputTokens: 4000, thinkingConfig: { includeThoughts: true, thinkingBudget: 1024 } };
  const chat = client().chats.create({ model, config });
  const first = await chat.sendMessage({ message: QUESTION });
  truth(first.text, "no answer");
  if (!first.candidates[0].content.parts.some((part) => part.thought && part.text))
    throw new Lacks("the answer tells of no thoughts");
  truth((await chat.sendMessage({ message: "Why?" })).text, "no answer with the thoughts given back");
});

feature("contents-count", async ({ model }) => {
  truth((await models.countTokens({ model, contents: QUESTION })).totalTokens > 0, "none");
});

feature("embeddings", async ({ embedder }) => {
  const { embeddings } = await models.embedContent({ model: embedder, contents: ["one", "two"] });
  same(2, embeddings.length, "vectors");
  truth(embeddings.every((one) => one.values.length), "an empty vector");
});

feature("errors", async ({ model }) => {
  for (const [status, name, call] of [
    [400, "INVALID_ARGUMENT", () => models.generateContent({ model, contents: QUESTION, config: { temperature: 9 } })],
    [404, "NOT_FOUND", () => models.generateContent({ model: "no-such-model", contents: QUESTION })],
    [401, "UNAUTHENTICATED", () => client("tg-wrong").models.list()],
  ]) {
    const error = await fails(ApiError, call);
    same([status, name], [error.status, JSON.parse(error.message).error.status], "the error");
  }
});

feature("retry", async ({ model }) => {
  const began = performance.now();
  const patient = client(KEY, { retryOptions: { attempts: 4 } });
  const config = { maxOutputTokens: 64 };
  const answer = await patient.models.generateContent({ model, contents: busy(), config });
  if (performance.now() - began < 900) throw new Lacks("nothing refused the request");
  const refused = await fails(ApiError, () => models.generateContent({ model, contents: busy() }));
  same(429, refused.status, "the error");
  return answer.text;
});

feature("timeout", async ({ model }) => {
  const hasty = client(KEY, { timeout: IMPATIENCE_MS });
  await fails(Error, () => hasty.models.generateContent({ model, contents: SLOW, config: PATIENT }));
});

feature("abort", async (asked) => {
  const leaving = new AbortController();
  const config = { ...PATIENT, abortSignal: leaving.signal };
  for await (const event of await models.generateContentStream({ model: asked.model, contents: SLOW, config })) {
    truth(event, "no first event");
    break;
  }
  leaving.abort();
  return whole(asked);
});

function check(answer) {
  same("STOP", answer.candidates[0].finishReason, "finishReason");
  truth(answer.usageMetadata?.promptTokenCount && answer.usageMetadata.totalTokenCount, "no usage");
}

function results(answer) {
  truth(answer.functionCalls?.length, "no tool was called");
  const parts = answer.functionCalls.map(({ id, name, args }) => {
    same("get_weather", name, "the tool");
    truth(typeof args.city === "string", "no city");
    return { functionResponse: { id, name, response: { celsius: 21 } } };
  });
  return { role: "user", parts };
}

await run("@google/genai");
