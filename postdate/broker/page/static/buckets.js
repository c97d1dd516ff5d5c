// The delayed index: its immutable buckets over the ledgers of the log, and how much of each is in memory.

import { delayedIndex } from "./api.js";
import { el, figures, table } from "./dom.js";
import { bytes, count } from "./format.js";
import { poll } from "./polling.js";

const REFRESH_MS = 5_000;

const range = (one) => (one.firstLedgerId === one.lastLedgerId ? `${one.firstLedgerId}` : `${one.firstLedgerId} to ${one.lastLedgerId}`);

function shown(ledgers, index) {
  const name = index.subscription ?? "the index that subscriptions share";
  return el("section", {},
    el("h2", {}, index.subscription ?? "The index that subscriptions share"),
    figures([["Messages", count(index.messages)], ["Indexes in memory", count(index.indexesInMemory)], ["Immutable buckets", count(index.buckets.length)], ["Snapshots", bytes(index.snapshotSizeBytes)], ["Ledgers of the log", count(ledgers.length)]]),
    index.buckets.length
      ? table(`Buckets of ${name}`,
        [{ title: "Ledgers" }, { title: "State" }, { title: "Segments loaded", number: true }, { title: "Indexes loaded", number: true }, { title: "Snapshot", number: true }],
        index.buckets.map((one) => [range(one), one.state, `${count(one.loadedSegments)} of ${count(one.segments)}`, `${count(one.loadedIndexes)} of ${count(one.indexes)}`, bytes(one.sizeBytes)]))
      : el("p", { class: "quiet" }, "No bucket is sealed yet: all of the index is in memory."));
}

export function showBuckets(view) {
  let told = "";
  poll(view, REFRESH_MS, async () => {
    const found = await delayedIndex(view.name);
    const now = JSON.stringify(found);
    if (view.signal.aborted || now === told) return;
    told = now;
    const chosen = found.indexes.filter((one) => !view.subscription || one.subscription === null || one.subscription === view.subscription);
    view.main.replaceChildren(...(chosen.length
      ? chosen.map((one) => shown(found.ledgers, one))
      : [el("p", { class: "quiet" }, "No index is open: a Shared or Key_Shared subscription opens one with its first consumer.")]));
  });
}
