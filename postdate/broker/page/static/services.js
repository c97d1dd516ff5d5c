// The services that share the topics: what each takes and delivers, and which of them has which bundle.

import { cluster } from "./api.js";
import { el, table } from "./dom.js";
import { count, plural } from "./format.js";
import { poll } from "./polling.js";

const REFRESH_MS = 10_000;
const SERVICES = [{ title: "Service" }, { title: "Clients connect to" }, { title: "Bundles", number: true }, { title: "Messages /s", number: true }, { title: "State" }];
const BUNDLES = [{ title: "Bundle" }, { title: "Service" }];

/** Show services and bundles; nothing where there is one of each. */
export function services(view) {
  let told = "";
  poll(view, REFRESH_MS, async () => {
    let found;
    try {
      found = await cluster();
    } catch (error) {
      // The last changes stand below: a role that may not look at services sees these all the same.
      if (error.status === 0 || error.status >= 500) throw error;
      found = { services: [], bundles: [] };
    }
    const now = JSON.stringify(found);
    if (view.signal.aborted || told === now) return;
    told = now;
    if (found.services.length < 2 && found.bundles.length < 2) {
      view.main.replaceChildren();
      return;
    }
    view.main.replaceChildren(
      el("h2", {}, "Services"),
      el("p", { class: "quiet" }, `${plural(found.services.length, "service")} with ${plural(found.bundles.length, "bundle")} of topics; ${found.answeredBy} answers this page.`),
      table("Services and their load", SERVICES, found.services.map((one) => [
        one.name, one.serviceUrl ?? one.serviceUrlTls ?? "–", count(one.bundles.length), count(Math.round(one.messagesPerSecond)),
        one.problem === null ? "well" : el("span", { class: "wrong" }, one.problem),
      ])),
      el("h3", {}, "Bundles"),
      table("Bundles of topics, by the hash of their names", BUNDLES, found.bundles.map((one) => [
        one.bundle, one.owner ?? el("span", { class: "wrong" }, "no service has it now"),
      ])),
    );
  });
}
