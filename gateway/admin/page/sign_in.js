// Signing in: the key goes to the gateway once, which answers with a cookie; the page keeps nothing of it.

import { signIn } from "./api.js";
import { h } from "./dom.js";
import { problem } from "./parts.js";

const REFUSED = {
  state: "That sign-in was not begun here, or too long ago. Begin again.",
  refused: "The identity provider refused to sign you in.",
  provider: "The identity provider cannot be used now. The gateway's log has the reason.",
  token: "The identity provider's answer is not valid. The gateway's log has the reason.",
  role: "You are known, but none of your roles opens this page. Ask for one.",
};

/** `oidc`: whether the policy names an identity provider. */
export function signInView(onsigned, note = "", oidc = false) {
  const [, view, reason] = location.hash.split("/");
  if (view === "sign-in") {
    note = REFUSED[reason] || "You were not signed in.";
    history.replaceState(null, "", "/admin");
  }
  const key = h("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-note" });
  const trouble = h("div", {});
  const button = h("button.main", { type: "submit" }, "Sign in");
  const form = h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      trouble.replaceChildren();
      try {
        const state = await signIn(key.value.trim());
        key.value = "";
        onsigned(state);
      } catch (error) {
        trouble.replaceChildren(problem(error));
        key.select();
      } finally {
        button.disabled = false;
      }
    },
  },
  h("label", { for: "key" }, "Admin key"), key,
  h("p.note", { id: "key-note" }, "A key of scope admin. The banner of a new gateway shows its development key, which is one; ",
    h("code", {}, "tollgate keys create --id NAME --scopes admin"), " makes another."),
  trouble, button);
  setTimeout(() => key.focus());
  return h("main.sign-in", { id: "main" }, h("h1", {}, h("img", { src: "/admin/assets/icon.svg", alt: "", width: 28, height: 28 }), "Tollgate"),
    note && h("p.note", { role: "status" }, note),
    oidc && h("p", {}, h("a.button.wide-button", { href: "/admin/api/oidc/login" }, "Sign in with your organisation")),
    oidc && h("p.note", {}, "or"), form);
}
