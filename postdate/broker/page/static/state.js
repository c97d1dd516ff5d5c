// What is wrong with a topic, in words: the same on the front page and on the topic's own.

import { el } from "./dom.js";
import { clock, count, duration, plural } from "./format.js";

const SICK_MS = 10_000; // What has just come due is on its way.

export const overdueFor = (one, nowMs = Date.now()) => (one.overdue && one.firstOverdueMs !== null ? duration(Math.max(0, nowMs - one.firstOverdueMs)) : "");

const paused = (one) => `paused since ${clock(one.pausedSinceMs)}${one.pausedBy ? ` by ${one.pausedBy}` : ""}${one.pauseNote ? `: “${one.pauseNote}”` : ""}`;

function whyOverdue(one) {
  if (one.paused) return paused(one);
  if (!one.consumers) return "no consumer is connected";
  return `${plural(one.consumers, "consumer is", "consumers are")} connected and ${one.consumers === 1 ? "has" : "have"} ${count(one.inHand)} in hand`;
}

/** What is wrong with a subscription: {level, text, overdue}; null where nothing is. `reason` says more than this knows. */
function ailmentOf(one, nowMs, reason) {
  if (one.overdue && (one.firstOverdueMs === null || nowMs - one.firstOverdueMs > SICK_MS)) {
    return { level: one.paused ? "warn" : "wrong", subscription: one.name, overdue: one.overdue, text: `${count(one.overdue)} overdue for ${overdueFor(one, nowMs)}: ${one.paused ? whyOverdue(one) : reason ?? whyOverdue(one)}` };
  }
  if (one.paused) return { level: "warn", subscription: one.name, text: paused(one) };
  if (!one.delays && one.type && one.backlog) return { level: "warn", subscription: one.name, text: `${one.type}, which does not delay: ${plural(one.backlog, "entry is", "entries are")} delivered whatever their time` };
  return null;
}

/** All that is wrong with a topic, the worst first. */
export function ailmentsOf(topic, { problems = [], subscription = "", reasons = new Map() } = {}) {
  const nowMs = Date.now();
  const found = topic.subscriptions.filter((one) => !subscription || one.name === subscription).map((one) => ailmentOf(one, nowMs, reasons.get(one.name))).filter(Boolean);
  for (const text of problems) if (text.includes(`://${topic.name}: `)) found.push({ level: "wrong", text });
  if (topic.publishedWithoutSubscription) found.push({ level: "warn", text: `${plural(topic.publishedWithoutSubscription, "message")} published without a subscription: nobody gets them` });
  return found.sort((one, other) => (one.level < other.level ? 1 : one.level > other.level ? -1 : 0));
}

export const ailmentLine = (one, ...more) => el("li", { class: one.level }, one.subscription ? el("b", {}, one.subscription, " ") : null, one.text, ...more);
