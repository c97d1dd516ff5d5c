// Consumers: what each has in hand and for how long, its part of the keys, and the slots that drain.

import { stats } from "./api.js";
import { el, table } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { poll } from "./polling.js";

const SLOTS = 65_536;
const REFRESH_MS = 3_000;
const SILENT_MS = 60_000; // So long without an acknowledgement, and a consumer that has messages stands out.

/** The ranges of a consumer as [first, last]; the classic mode tells them as text. */
const rangesOf = (consumer) => consumer.keyHashRangeArrays ?? (consumer.keyHashRanges ?? []).map((one) => one.match(/\d+/g).map(Number));
const share = (ranges) => `${((100 * ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0)) / SLOTS).toFixed(1)} %`;

function consumerTable(name, consumers, now) {
  return table(`Consumers of ${name}`,
    [{ title: "Consumer" }, { title: "In hand", number: true }, { title: "Last acknowledged" }, { title: "Asks for", number: true }, { title: "Keys", number: true }, { title: "Sent", number: true }, { title: "Address" }],
    consumers.map((one) => {
      const ranges = rangesOf(one);
      const since = one.holdingSinceTimestamp;
      const isSilent = since && now - since > SILENT_MS;
      return [
        one.consumerName,
        `${count(one.unackedMessages)}${one.blockedConsumerOnUnackedMsgs ? " (blocked: too many)" : ""}`,
        el("span", { class: isSilent && "wrong" }, one.lastAckedTimestamp ? clock(one.lastAckedTimestamp) : "never", isSilent && `, has held messages for ${duration(now - since)}`),
        count(one.availablePermits), ranges.length ? share(ranges) : "–", count(one.msgOutCounter), one.address.replace(/^\//, ""),
      ];
    }), { isHidden: false });
}

function drainingTable(name, consumers) {
  const draining = consumers.flatMap((one) => (one.drainingHashes ?? []).map((slot) => ({ ...slot, holder: one.consumerName })));
  return draining.length > 0 && table(`Draining slots of ${name}, and the consumers that hold them`,
    [{ title: "Slot" }, { title: "Held by" }, { title: "In hand", number: true }, { title: "Times blocked", number: true }],
    draining.map((one) => [String(one.hash), one.holder, count(one.unackMsgs), count(one.blockedAttempts)]), { isHidden: false });
}

export function showConsumers(view) {
  let told = "";
  poll(view, REFRESH_MS, async () => {
    const found = await stats(view.name);
    if (view.signal.aborted) return;
    const shown = Object.entries(found.subscriptions).filter(([name]) => !view.subscription || name === view.subscription);
    const nowMs = Date.now();
    const now = JSON.stringify([shown.map(([, one]) => one.consumers), shown.some(([, one]) => one.consumers.some((other) => other.holdingSinceTimestamp)) && Math.floor(nowMs / 10_000)]);
    if (now === told || view.main.contains(document.activeElement)) return;
    told = now;
    view.main.replaceChildren(...(shown.length ? shown.map(([name, one]) => el("section", { class: "subscription" },
      el("h2", {}, name, " ", el("span", { class: "badge" }, one.type ?? "no consumer yet"), one.keySharedMode ? el("span", { class: "badge" }, one.keySharedMode) : null),
      one.consumers.length ? [consumerTable(name, one.consumers, nowMs), drainingTable(name, one.consumers)] : el("p", { class: "quiet" }, "No consumer is connected.")))
      : [el("p", { class: "quiet" }, "The topic has no subscription yet.")]));
  });
}
