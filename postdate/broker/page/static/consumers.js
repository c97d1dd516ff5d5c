// Consumers, their parts of the 65,536 slots on a ring, and the slots that drain before they change hands.

import { stats } from "./api.js";
import { el, svg, table } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { poll } from "./polling.js";

const SLOTS = 65_536;
const COLOURS = 8;
const REFRESH_MS = 3_000;
const [SIZE, OUTER, INNER] = [240, 112, 74];

/** The ranges of a consumer as [first, last]; the classic mode tells them as text. */
function rangesOf(consumer) {
  if (consumer.keyHashRangeArrays) return consumer.keyHashRangeArrays;
  return (consumer.keyHashRanges ?? []).map((one) => one.match(/\d+/g).map(Number));
}

const widthOf = (ranges) => ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0);
const point = (slot, radius) => {
  const angle = (slot / SLOTS) * 2 * Math.PI - Math.PI / 2;
  return `${(SIZE / 2 + radius * Math.cos(angle)).toFixed(2)} ${(SIZE / 2 + radius * Math.sin(angle)).toFixed(2)}`;
};

function arc([first, last]) {
  const [begin, end] = [first, Math.min(last + 1, first + SLOTS - 1)]; // A whole circle is no arc.
  const large = end - begin > SLOTS / 2 ? 1 : 0;
  return `M${point(begin, OUTER)}A${OUTER} ${OUTER} 0 ${large} 1 ${point(end, OUTER)}L${point(end, INNER)}A${INNER} ${INNER} 0 ${large} 0 ${point(begin, INNER)}Z`;
}

function ring(name, consumers) {
  const owners = consumers.map((one, place) => [rangesOf(one), place]).filter(([ranges]) => ranges.length);
  if (!owners.length) return null;
  return svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "ring", role: "img", "aria-label": `Slots of ${name}: ${owners.map(([ranges, place]) => `${consumers[place].consumerName} ${share(ranges)}`).join(", ")}` },
    ...owners.map(([ranges, place]) => svg("path", { class: `slice c${place % COLOURS}`, d: ranges.map(arc).join("") }, svg("title", {}, consumers[place].consumerName))),
    ...consumers.flatMap((one) => one.drainingHashes ?? []).map((one) => svg("circle", { class: "draining", r: 3, cx: point(one.hash, OUTER + 5).split(" ")[0], cy: point(one.hash, OUTER + 5).split(" ")[1] }, svg("title", {}, `slot ${one.hash} drains`))),
    svg("text", { x: SIZE / 2, y: SIZE / 2 - 2, class: "ring-number" }, count(owners.length)),
    svg("text", { x: SIZE / 2, y: SIZE / 2 + 16, class: "ring-word" }, owners.length === 1 ? "consumer" : "consumers"));
}

const share = (ranges) => `${((100 * widthOf(ranges)) / SLOTS).toFixed(1)} %`;

function consumerTable(name, consumers) {
  return table(`Consumers of ${name}`,
    [{ title: "Consumer" }, { title: "Slots", number: true }, { title: "Unacknowledged", number: true }, { title: "Permits", number: true }, { title: "Sent", number: true }, { title: "Address" }],
    consumers.map((one, place) => {
      const ranges = rangesOf(one);
      return [
        el("span", {}, ranges.length ? el("span", { class: `swatch c${place % COLOURS}`, "aria-hidden": "true" }) : null, one.consumerName),
        ranges.length ? `${share(ranges)} in ${plural(ranges.length, "range")}` : "–",
        `${count(one.unackedMessages)}${one.blockedConsumerOnUnackedMsgs ? " (blocked)" : ""}`,
        count(one.availablePermits), `${count(one.msgOutCounter)} (${bytes(one.bytesOutCounter)})`, one.address.replace(/^\//, ""),
      ];
    }));
}

function drainingTable(name, consumers) {
  const draining = consumers.flatMap((one) => (one.drainingHashes ?? []).map((slot) => ({ ...slot, holder: one.consumerName })));
  if (!draining.length) return el("p", { class: "quiet" }, "No slot drains.");
  return table(`Draining slots of ${name}, and the consumers that hold them`,
    [{ title: "Slot" }, { title: "Held by" }, { title: "Unacknowledged", number: true }, { title: "Times blocked", number: true }],
    draining.map((one) => [String(one.hash), one.holder, count(one.unackMsgs), count(one.blockedAttempts)]), { isHidden: false });
}

export function showConsumers(view) {
  let told = "";
  poll(view, REFRESH_MS, async () => {
    const found = await stats(view.name);
    if (view.signal.aborted) return;
    const chosen = Object.entries(found.subscriptions).filter(([name]) => !view.subscription || name === view.subscription);
    const now = JSON.stringify(chosen.map(([, one]) => one.consumers));
    if (now === told) return;
    told = now;
    const parts = chosen.map(([name, one]) => el("section", { class: "subscription" },
      el("h2", {}, name, " ", el("span", { class: "badge" }, one.type ?? "no consumer yet"), one.keySharedMode ? el("span", { class: "badge" }, one.keySharedMode) : null),
      el("div", { class: "beside" }, ring(name, one.consumers), el("div", { class: "grow" },
        one.consumers.length ? consumerTable(name, one.consumers) : el("p", { class: "quiet" }, "No consumer is connected."),
        one.consumers.length && drainingTable(name, one.consumers)))));
    view.main.replaceChildren(...(parts.length ? parts : [el("p", { class: "quiet" }, "The topic has no subscription yet.")]));
  });
}
