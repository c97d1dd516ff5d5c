// The delayed index: immutable buckets over the ledgers of the log, and how much of each is in memory.

import { delayedIndex } from "./api.js";
import { el, svg, table } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { poll } from "./polling.js";

const REFRESH_MS = 5_000;
const [WIDTH, ROW, GAP, LABEL] = [1_000, 18, 5, 16];
const DRAWN_MAX = 200;
const LEGEND = [["ledger", "ledger"], ["ledger open", "open ledger"], ["loaded", "loaded"], ["unloaded", "in its snapshot"]];

/** Where each ledger stands: side by side, each as wide as the entries that it has. */
function places(ledgers, buckets) {
  const known = new Map(ledgers.map((one) => [one.ledgerId, Math.max(1, one.entries)]));
  // A bucket may begin or end at ledgers that were trimmed: they keep a sliver, so that it is seen.
  for (const one of buckets) for (const id of [one.firstLedgerId, one.lastLedgerId]) if (!known.has(id)) known.set(id, 1);
  const ids = [...known.keys()].sort((a, b) => a - b);
  const total = [...known.values()].reduce((sum, one) => sum + one, 0);
  const found = new Map();
  let at = 0;
  for (const id of ids) {
    const width = (WIDTH * known.get(id)) / total;
    found.set(id, [at, at + width]);
    at += width;
  }
  return found;
}

const range = (one) => (one.firstLedgerId === one.lastLedgerId ? `${one.firstLedgerId}` : `${one.firstLedgerId} to ${one.lastLedgerId}`);
const loadedShare = (one) => (one.indexes ? one.loadedIndexes / one.indexes : 0);

function map(ledgers, index) {
  const buckets = index.buckets.slice(0, DRAWN_MAX);
  const where = places(ledgers, buckets);
  const height = LABEL + ROW + GAP + buckets.length * (ROW + GAP);
  const title = `${plural(ledgers.length, "ledger")} and ${plural(index.buckets.length, "bucket")} over them; the table below says the same`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "map", height, role: "img", "aria-label": title, preserveAspectRatio: "none" },
    ...ledgers.map((one) => {
      const [left, right] = where.get(one.ledgerId);
      return svg("rect", { class: one.isOpen ? "ledger open" : "ledger", x: left, y: 0, width: Math.max(1, right - left - 1), height: ROW }, svg("title", {}, `ledger ${one.ledgerId}: ${plural(one.entries, "entry", "entries")}`));
    }),
    ...buckets.flatMap((one, place) => {
      const left = where.get(one.firstLedgerId)[0];
      const width = Math.max(2, where.get(one.lastLedgerId)[1] - left - 1);
      const y = LABEL + ROW + GAP + place * (ROW + GAP);
      const words = `ledgers ${range(one)}: ${count(one.loadedIndexes)} of ${count(one.indexes)} loaded`;
      return [
        svg("rect", { class: "unloaded", x: left, y, width, height: ROW }, svg("title", {}, words)),
        svg("rect", { class: "loaded", x: left, y, width: width * loadedShare(one), height: ROW }, svg("title", {}, words)),
      ];
    }));
}

function shown(ledgers, index) {
  const name = index.subscription === null ? "the index that subscriptions share" : index.subscription;
  const figures = [["Messages", count(index.messages)], ["Indexes in memory", count(index.indexesInMemory)], ["Immutable buckets", count(index.buckets.length)], ["Snapshots", bytes(index.snapshotSizeBytes)]];
  return el("section", {},
    el("h2", {}, index.subscription === null ? "The index that subscriptions share" : index.subscription),
    el("dl", { class: "figures" }, ...figures.map(([text, value]) => el("div", {}, el("dt", {}, text), el("dd", {}, value)))),
    el("p", { class: "legend" }, ...LEGEND.map(([kind, text]) => el("span", { class: "sign" }, el("span", { class: `swatch ${kind}` }), text))),
    map(ledgers, index),
    index.buckets.length > DRAWN_MAX && el("p", { class: "quiet" }, `The first ${count(DRAWN_MAX)} buckets are drawn.`),
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
