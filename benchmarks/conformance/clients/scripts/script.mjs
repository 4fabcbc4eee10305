// What the scripts for Node's clients share; the same as script.py.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { randomUUID } from "node:crypto";
import path from "node:path";

export const QUESTION = "Say hello in exactly 3 words.";
export const WEATHER = "What is the weather in Paris? Use the tool.";
export const PICTURE =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+ip1sAAAAASUVORK5CYII=";
export const SEEN = "A picture of 68 bytes.";
export const SOUND = Buffer.concat([
  Buffer.from("RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x08\0\0\0", "latin1"),
  Buffer.alloc(8),
]);
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const LONG = {
  type: "object",
  properties: { text: { type: "string", minLength: 6000 } },
  required: ["text"],
  additionalProperties: false,
};
export const SLOW = "/slow";
export const IMPATIENCE_MS = 100;
export const URL = process.env.TOLLGATE_URL;
export const KEY = process.env.TOLLGATE_KEY;
export const busy = () => `/busy ${randomUUID()}`;

/** The model answered, without what the feature is about. */
export class Lacks extends Error {}

export function same(wanted, found, what) {
  if (JSON.stringify(wanted) !== JSON.stringify(found))
    throw new Error(`${what}: ${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
}

export function truth(condition, what) {
  if (!condition) throw new Error(what);
}

/** Await `call`, which must fail with an error of `kind`; the error. */
export async function fails(kind, call) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name}`);
}

const features = new Map();

export function feature(name, run) {
  features.set(name, run);
}

export async function run(...packages) {
  const require = createRequire(import.meta.url);
  const version = (name) => JSON.parse(readFileSync(path.join(folder(require, name), "package.json"))).version;
  tell({ versions: Object.fromEntries(packages.map((name) => [name, version(name)])) });
  const only = new Set(process.argv.slice(2));
  for (const asked of JSON.parse(process.env.TOLLGATE_MODELS)) {
    for (const [name, attempt] of features) {
      if (only.size && !only.has(name)) continue;
      const told = { model: asked.model, feature: name };
      const began = performance.now();
      try {
        const said = (await attempt(asked)) ?? null;
        tell({ ...told, ok: true, said, seconds: (performance.now() - began) / 1000 });
      } catch (error) {
        if (error instanceof Lacks) tell({ ...told, ok: false, lacks: error.message });
        else tell({ ...told, ok: false, status: status(error), error: `${error.name}: ${error.message}` });
      }
    }
  }
  process.exit(0);
}

function folder(require, name) {
  const found = require.resolve.paths(name).map((root) => path.join(root, name));
  return found.find((one) => {
    try {
      return readFileSync(path.join(one, "package.json"));
    } catch {
      return false;
    }
  });
}

function status(error) {
  for (; error; error = error.cause ?? error.lastError) {
    const found = error.status ?? error.statusCode;
    if (typeof found === "number") return found;
  }
  return null;
}

function tell(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
