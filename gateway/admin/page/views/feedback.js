// What callers think of answers.

import { h } from "../dom.js";
import { count, moment, percent } from "../format.js";
import { badge, table } from "../parts.js";
import { requestLink } from "./requests.js";

/** Scores with their intervals: of a few a mean says little. */
export function feedback({ rows, comments }) {
  const said = table("Feedback by model", [
    { name: "Model", head: true, cell: (one) => one.model },
    { name: "Requests", right: true, cell: (one) => count(one.count) },
    { name: "Score", right: true, cell: (one) => (one.scored ? percent(one.mean) : "–") },
    { name: "95 % interval", right: true, cell: (one) => (one.scored ? `${percent(one.low)} to ${percent(one.high)}` : "–") },
  ], rows, { empty: "Nobody has sent feedback (POST /v1/requests/{id}/feedback)." });
  if (!comments.length) return [said];
  return [said, h("h3", {}, "The newest words"), table("The newest words", [
    { name: "When", cell: (one) => moment(one.created) },
    { name: "Model", small: true, cell: (one) => one.model },
    { name: "Score", right: true, cell: (one) => (one.score === null ? "–" : percent(one.score)) },
    { name: "Words", long: true, cell: (one) => [one.label && badge(one.label, ""), one.comment && ` ${one.comment}`] },
    { name: "Request", small: true, cell: (one) => h("a", { href: requestLink(one.request_id) }, "request") },
  ], comments)];
}
