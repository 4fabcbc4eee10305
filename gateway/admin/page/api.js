// The admin API. The session is a cookie that no script can read; changes carry the token that goes with it.

const ROOT = "/admin/api";
let csrf = "";

/** What the API refused: `message` is for people, `status` 401 means signed out. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `The gateway answered with status ${status}.`);
    this.status = status;
    this.code = error.code;
  }
}

export async function call(method, path, body, { signal, raw = false, headers: more = {} } = {}) {
  const headers = { ...more };
  if (method !== "GET") headers["x-csrf-token"] = csrf;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(ROOT + path, {
      method, headers, signal, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The gateway cannot be reached." });
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    if (response.status === 401 && path !== "/session") dispatchEvent(new Event("signed-out"));
    throw new ApiError(response.status, told.error || {});
  }
  return raw ? response : response.json();
}

export const get = (path, options) => call("GET", path, undefined, options);
export const post = (path, body, options) => call("POST", path, body, options);
export const patch = (path, body) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);
export const address = (path) => ROOT + path;

export function query(values) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined) pairs.append(name, one);
    }
  }
  const text = pairs.toString();
  return text ? `?${text}` : "";
}

/** Who is signed in. */
export async function session() {
  return keep(await get("/session"));
}

export async function signIn(key) {
  return keep(await post("/session", { key }));
}

export async function signOut() {
  return keep(await call("DELETE", "/session"));
}

function keep(state) {
  csrf = state.csrf || "";
  return state;
}
