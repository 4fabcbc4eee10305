// The page: who is signed in, the navigation, and the view that the address names (#/requests/req_…).

import { session, signOut } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { LiveData } from "./live_data.js";
import { problem } from "./parts.js";
import { signInView } from "./sign_in.js";
import { overview } from "./views/overview.js";
import { explain } from "./views/explain.js";
import { keys } from "./views/keys.js";
import { models } from "./views/models.js";
import { playground } from "./views/playground.js";
import { policy } from "./views/policy.js";
import { protection } from "./views/protection.js";
import { request } from "./views/request.js";
import { requests } from "./views/requests.js";
import { spend } from "./views/spend.js";
import { tenants } from "./views/tenants.js";

const VIEWS = [
  ["overview", "Live", overview],
  ["requests", "Requests", requests],
  ["models", "Models", models],
  ["tenants", "Tenants", tenants],
  ["keys", "Keys", keys],
  ["spend", "Spend", spend],
  ["protection", "Guards and caches", protection],
  ["policy", "Policy", policy],
  ["playground", "Playground", playground],
  ["explain", "Explain", explain],
];
const app = document.getElementById("app");
const live = new LiveData();
let state = null;
let leave = () => {};
let main = null;

async function begin() {
  try {
    state = await session();
  } catch (error) {
    fill(app, h("main.sign-in", { id: "main" }, problem(error), h("button", { onclick: begin }, "Try again")));
    return;
  }
  if (state.signed_in) enter();
  else askToSignIn();
}

function askToSignIn(note = "") {
  live.stop();
  leave();
  leave = () => {};
  main = null;
  document.title = "Sign in · Tollgate";
  fill(app, signInView((signed) => {
    state = signed;
    enter();
  }, note, state?.oidc));
}

function enter() {
  live.start();
  main = h("main", { id: "main", tabindex: -1 });
  const links = VIEWS.map(([name, title]) => h("a", { href: `#/${name}`, id: `nav-${name}` }, title));
  const light = h("span.pulse", { role: "status", "aria-label": "Live data" }, "connecting");
  live.listen(() => {
    light.textContent = live.connected ? "live" : "offline";
    light.className = live.connected ? "pulse on" : "pulse";
  });
  fill(app, h("div.shell", {},
    h("header.top", {},
      h("a.brand", { href: "#/overview" }, h("img", { src: "/admin/assets/icon.svg", alt: "", width: 20, height: 20 }), "Tollgate"),
      light,
      h("span.who", { title: "Signed in" }, state.name, state.role === "viewer" && ", viewer"),
      h("button.quiet", { onclick: leaveForGood }, "Sign out")),
    h("nav", { "aria-label": "Views" }, links),
    main));
  show();
}

async function leaveForGood() {
  try {
    state = await signOut();
  } finally {
    askToSignIn("You are signed out.");
  }
}

function show() {
  if (!main) return;
  leave();
  const [name = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const [id, title, view] = VIEWS.find(([one]) => one === name) || VIEWS[0];
  for (const link of app.querySelectorAll("nav a")) {
    if (link.id === `nav-${id}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "center" });
    } else link.removeAttribute("aria-current");
  }
  document.title = `${title} · Tollgate`;
  const place = h("div.view", {});
  fill(main, place);
  const argument = rest.map(decoded).join("/");
  const chosen = id === "requests" && argument ? request : view;
  leave = chosen(place, { live, state, argument }) || (() => {});
}

/** A link that was cut, or typed, may not be decodable. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

addEventListener("hashchange", () => {
  show();
  scrollTo(0, 0);
  main?.focus({ preventScroll: true });
  announce(document.title);
});
addEventListener("signed-out", () => {
  if (main) askToSignIn("Your session has ended. Sign in again.");
});
begin();
