// Vercel's AI SDK, by chat completions, responses and Anthropic's messages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import {
  APICallError, Output, RetryError, embedMany, generateImage, generateSpeech, generateText, jsonSchema, stepCountIs,
  streamText, tool, transcribe,
} from "ai";
import { z } from "zod";
import {
  IMPATIENCE_MS, KEY, LONG, Lacks, PICTURE, QUESTION, SEEN, SLOW, SOUND, URL, WEATHER,
  busy, fails, feature, run, same, truth,
} from "./script.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const anthropic = createAnthropic({ baseURL: `${URL}/v1`, apiKey: KEY });
const tools = {
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => ({ city, celsius: 21 }),
  }),
};
const APIS = {
  chat: { of: (model) => openai.chat(model), thinking: { openai: { reasoningEffort: "low", forceReasoning: true } } },
  responses: {
    of: (model) => openai.responses(model),
    thinking: { openai: { reasoningEffort: "low", reasoningSummary: "auto", forceReasoning: true } },
  },
  messages: {
    of: (model) => anthropic(model),
    thinking: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
  },
};

for (const [api, { of, thinking }] of Object.entries(APIS)) {
  const ask = (model, more) => ({ model: of(model), maxRetries: 0, maxOutputTokens: 256, ...more });

  feature(api, async ({ model }) => {
    const answer = await generateText(ask(model, { prompt: QUESTION }));
    same("stop", answer.finishReason, "finishReason");
    truth(answer.usage.inputTokens && answer.usage.outputTokens, "no usage");
    return answer.text;
  });

  feature(`${api}-stream`, async ({ model }) => {
    let failed;
    const answer = streamText(ask(model, { prompt: QUESTION, onError: ({ error }) => (failed = error) }));
    let said = "";
    for await (const piece of answer.textStream) said += piece;
    if (failed) throw failed;
    same(await answer.text, said, "the pieces together");
    truth((await answer.usage).outputTokens, "no usage");
    return said;
  });

  feature(`${api}-tools`, async ({ model }) => {
    // The tool is run and its result given back.
    const answer = await generateText(
      ask(model, {
        prompt: WEATHER, tools, stopWhen: stepCountIs(2),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" }),
      }),
    );
    same(["get_weather"], answer.steps[0].toolCalls.map((call) => call.toolName), "the tools");
    same(21, answer.steps[0].toolResults[0].output.celsius, "the result");
    same(2, answer.steps.length, "the steps");
    return answer.steps[1].toolCalls.length ? null : answer.text;
  });

  feature(`${api}-tools-stream`, async ({ model }) => {
    let failed;
    const answer = streamText(
      ask(model, { prompt: WEATHER, tools, toolChoice: "required", onError: ({ error }) => (failed = error) }),
    );
    let pieces = "";
    for await (const part of answer.fullStream) if (part.type === "tool-input-delta") pieces += part.delta;
    if (failed) throw failed;
    same((await answer.toolCalls).map((call) => call.input), [JSON.parse(pieces)], "the arguments' pieces");
  });

  feature(`${api}-structured`, async ({ model }) => {
    const output = Output.object({ schema: z.object({ city: z.string() }) });
    const answer = await generateText(ask(model, { prompt: WEATHER, output }));
    truth(typeof answer.output.city === "string", "nothing was parsed");
  });

  feature(`${api}-image`, async ({ model }) => {
    const content = [
      { type: "text", text: "What is this?" },
      { type: "file", data: Buffer.from(PICTURE, "base64"), mediaType: "image/png" },
    ];
    const answer = await generateText(ask(model, { messages: [{ role: "user", content }] }));
    same(SEEN, answer.text, "what is seen");
  });

  feature(`${api}-thinking`, async ({ model }) => {
    const more = { maxOutputTokens: 4000, providerOptions: thinking };
    const first = await generateText(ask(model, { ...more, prompt: QUESTION }));
    truth(first.text, "no answer");
    if (!first.reasoningText && !first.usage.outputTokenDetails?.reasoningTokens)
      throw new Lacks("the answer tells of no thoughts");
    const messages = [
      { role: "user", content: QUESTION }, ...first.response.messages, { role: "user", content: "Why?" },
    ];
    truth((await generateText(ask(model, { ...more, messages }))).text, "no answer with the thoughts given back");
  });
}

feature("completions", async ({ model }) => {
  const ask = { model: openai.completion(model), prompt: "One, two", maxOutputTokens: 8, temperature: 0, maxRetries: 0 };
  const whole = await generateText(ask);
  let said = "", failed;
  for await (const piece of streamText({ ...ask, onError: ({ error }) => (failed = error) }).textStream) said += piece;
  if (failed) throw failed;
  same(whole.text, said, "the pieces together");
});

feature("responses-continue", async ({ model }) => {
  const ask = { model: openai.responses(model), maxRetries: 0, maxOutputTokens: 64 };
  const first = await generateText({ ...ask, prompt: "I am Alice." });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const second = await generateText({ ...ask, prompt: QUESTION, providerOptions: { openai: { previousResponseId } } });
  return second.text;
});

feature("embeddings", async ({ embedder }) => {
  const made = await embedMany({ model: openai.embedding(embedder), values: ["One", "Two"], maxRetries: 0 });
  same(2, made.embeddings.length, "the vectors");
  truth(made.usage.tokens, "no usage");
});

feature("transcription", async ({ model }) =>
  (await transcribe({ model: openai.transcription(model), audio: SOUND, maxRetries: 0 })).text);

feature("speech", async ({ model }) => {
  const made = await generateSpeech({ model: openai.speech(model), text: "Hello.", voice: "alloy", maxRetries: 0 });
  truth(made.audio.uint8Array.length, "no sound");
});

feature("images", async ({ model }) => {
  const made = await generateImage({ model: openai.image(model), prompt: "A fox.", maxRetries: 0 });
  same(1, made.images.length, "the pictures");
});

feature("errors", async ({ model }) => {
  const strange = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "tg-wrong" });
  for (const [status, asked] of [
    [400, { model: openai.chat(model), temperature: 9 }],
    [400, { model: openai.responses(model), temperature: 9 }],
    [404, { model: openai.chat("no-such-model") }],
    [404, { model: anthropic("no-such-model") }],
    [401, { model: strange.chat(model) }],
  ]) {
    const error = await fails(APICallError, () => generateText({ prompt: QUESTION, maxRetries: 0, ...asked }));
    same(status, error.statusCode, "the status");
    truth(error.message && error.data?.error, "an error that was not understood");
  }
});

feature("retry", async ({ model }) => {
  const began = performance.now();
  const answer = await generateText({ model: openai.chat(model), prompt: busy(), maxRetries: 3 });
  if (performance.now() - began < 900) throw new Lacks("nothing refused the request");
  const refused = await fails(Error, () => generateText({ model: openai.chat(model), prompt: busy(), maxRetries: 0 }));
  same(429, (RetryError.isInstance(refused) ? refused.lastError : refused).statusCode, "the status");
  return answer.text;
});

const PATIENT = { output: Output.object({ schema: jsonSchema(LONG) }), prompt: SLOW, maxRetries: 0 };

feature("timeout", async ({ model }) => {
  const abortSignal = AbortSignal.timeout(IMPATIENCE_MS);
  const error = await fails(Error, () => generateText({ model: openai.chat(model), ...PATIENT, abortSignal }));
  same("TimeoutError", error.name, "the error");
});

feature("abort", async ({ model }) => {
  for (const { of } of Object.values(APIS)) {
    const leaving = new AbortController();
    const answer = streamText({ model: of(model), ...PATIENT, abortSignal: leaving.signal, onError: () => {} });
    for await (const part of answer.fullStream) if (part.type !== "start") break;
    leaving.abort();
  }
  return (await generateText({ model: openai.chat(model), prompt: QUESTION, maxRetries: 0 })).text;
});

await run("ai", "@ai-sdk/openai", "@ai-sdk/anthropic");
