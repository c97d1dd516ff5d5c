// Who has changed what: the last changes, of a topic or of all.

import { trailOf } from "./api.js";
import { el, table } from "./dom.js";
import { clock, count, inWords, zone } from "./format.js";
import { poll } from "./polling.js";

const SHOWN_MAX = 20;
const REFRESH_MS = 10_000;

const COLUMNS = (name) => [{ title: `Time (${zone()})` }, { title: "Who" }, { title: "What" }, ...(name ? [] : [{ title: "Topic" }]), { title: "Which" }, { title: "Messages", number: true }];

/** Show the last changes, newest first. */
export function trail(view, title = "Who has changed what") {
  let told = "";
  poll(view, REFRESH_MS, async () => {
    let entries;
    try {
      entries = (await trailOf({ topic: view.name, limit: SHOWN_MAX })).entries;
    } catch (error) {
      if (error.status === 0 || error.status >= 500) throw error;
      entries = []; // A role that may not look at it.
    }
    const now = JSON.stringify(entries);
    if (view.signal.aborted || told === now) return;
    told = now;
    view.main.replaceChildren(el("h2", {}, title), entries.length
      ? table("Changes, the last first", COLUMNS(view.name), entries.map((one) => [
        clock(one.timeMs),
        one.role === null ? one.address : `${one.role} (${one.address})`,
        one.outcome === "done" ? one.action : el("span", { class: "wrong" }, `${one.action}: ${one.outcome}`),
        ...(view.name ? [] : [one.topic]),
        el("span", { class: "long" }, [one.subscription && `subscription ${one.subscription}`, inWords(one.selection)].filter(Boolean).join(", ") || "–"),
        one.count === null ? "–" : count(one.count),
      ]))
      : el("p", { class: "quiet" }, "Nobody has cancelled, moved, paused or deleted anything that is still on record."));
  });
}

export const showTrail = (view) => trail(view);
