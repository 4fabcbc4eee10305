// Each tenant's limits, with how much of them is used, and what it spent.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { count, dollars, percent, seconds } from "../format.js";
import { badge, bar, loading, panel, problem, regions, table } from "../parts.js";

const EVERY = 5000;
const WINDOWS = { minute: "a minute", day: "a day", month: "a month", now: "at once" };

export function tenants(place) {
  const list = h("div", {}, loading());
  fill(place, h("h1", {}, "Tenants"), panel("Limits and spending", list));
  let gone = false;
  let timer = 0;
  async function read() {
    try {
      const found = await get("/tenants");
      if (!gone) fill(list, tenantTable(found.tenants));
    } catch (error) {
      if (!gone) fill(list, problem(error));
    }
    if (!gone) timer = setTimeout(read, document.hidden ? 4 * EVERY : EVERY);
  }
  read();
  return () => {
    gone = true;
    clearTimeout(timer);
  };
}

function tenantTable(rows) {
  return table("Tenants", [
    { name: "Tenant", head: true, cell: (one) => h("span", {}, one.name, one.local_only && [" ", badge("local only")], one.stays_in && h("span.under", {}, "stays in ", regions(one.stays_in))) },
    { name: "Tier", cell: (one) => one.tier },
    { name: "Keys", right: true, small: true, cell: (one) => count(one.keys) },
    { name: "Limits", cell: (one) => (one.limits.length ? h("ul.limits", {}, one.limits.map(limitLine)) : h("span.note", {}, "none")) },
    { name: "Today", right: true, cell: (one) => spent(one.today_usd, one.today_requests) },
    { name: "This month", right: true, cell: (one) => spent(one.month_usd, one.month_requests) },
  ], rows, { empty: "The policy names no tenants, and none has asked anything." });
}

function limitLine(limit) {
  const show = limit.quantity === "dollars" ? dollars : count;
  const what = limit.quantity === "concurrent" ? "requests at once" : `${limit.quantity} ${WINDOWS[limit.window] || limit.window}`;
  const left = limit.resets > 0 ? `, free again in ${seconds(limit.resets)}` : "";
  return h("li", { title: `${percent(limit.share)}${left}` },
    bar(limit.share, `${percent(limit.share)} of ${show(limit.maximum)} ${what}`),
    h("span.number", {}, `${show(limit.used)} / ${show(limit.maximum)}`),
    h("span.note", {}, `${what}${limit.owner === "tier" ? ", shared by the tier" : ""}`));
}

function spent(usd, requests) {
  return h("span", {}, dollars(usd), h("span.under", {}, `${count(requests)} requests`));
}
