// One topic: what is wrong with it, its figures, pause and resume, and the views of it.

import { ask, topic } from "./api.js";
import { showConsumers } from "./consumers.js";
import { actOnPause } from "./dialogs.js";
import { button, changes, el, figures, labelled } from "./dom.js";
import { clock, count, inWords, relative } from "./format.js";
import { showLive } from "./live.js";
import { poll } from "./polling.js";
import { showSchedule } from "./schedule.js";
import { ailmentLine, ailmentsOf } from "./state.js";
import { topicLink } from "./topics.js";
import { showTrail } from "./trail.js";

const VIEWS = {
  schedule: ["Schedule", showSchedule],
  consumers: ["Consumers", showConsumers],
  live: ["Rates", showLive],
  trail: ["Changes", showTrail],
};
const REFRESH_MS = 5_000;
const EXPLAINED_MAX = 4;

export function showTopic(outer, name, viewName, subscription) {
  const [title, show] = VIEWS[viewName] ?? VIEWS.schedule;
  document.title = `${title} – ${name} – Postdate`;
  const cards = el("div", { id: "figures" });
  const ailments = el("ul", { class: "ailments", id: "ailments", "aria-label": "What is wrong" });
  const choice = el("select", { id: "subscription", onchange: () => { location.hash = topicLink(name, viewName, choice.value); } }, el("option", { value: "" }, "all subscriptions"));
  const scope = subscription ? { subscription } : {};
  const pauseButton = button("Pause…", () => doPause("pause"), { id: "pause" });
  const resumeButton = button("Resume…", () => doPause("resume"), { id: "resume" });
  const content = el("section", { id: "view", "aria-label": title });
  const view = { ...outer, main: content, name, subscription, scope, changed: new EventTarget(), of: null };

  const tools = el("div", { class: "tools" }, labelled("Subscription", choice), changes("Delivery", pauseButton, resumeButton));
  const parts = [
    ailments, cards,
    el("nav", { "aria-label": "Views", class: "tabs" }, ...Object.entries(VIEWS).map(([one, [text]]) =>
      el("a", { href: topicLink(name, one, ...(subscription ? [subscription] : [])), "aria-current": one === viewName && "page" }, text))),
    content,
  ];
  outer.main.replaceChildren(
    el("nav", { "aria-label": "Path", class: "path" }, el("a", { href: "#/" }, "Topics")),
    el("div", { class: "title" }, el("h1", {}, name), el("span", { class: "grow" }), tools),
    ...parts,
  );

  /** Show the topic, or of one that is not there the name and the problem alone. */
  function showParts(isThere) {
    for (const part of [tools, ...parts]) part.hidden = !isThere;
  }

  async function doPause(kind) {
    if (await actOnPause(name, kind, subscription)) refreshAll();
  }

  /** Why the first overdue message of each subscription waits, by subscription; of as many as is quickly asked. */
  async function reasonsOf(late) {
    const found = new Map();
    await Promise.all(late.slice(0, EXPLAINED_MAX).map(async (one) => {
      try {
        const { messages: [first] } = await ask(name, "scheduled", { subscription: one.name, limit: 1 });
        if (!first) return;
        const { messages } = await ask(name, "explain", { subscription: one.name, messageId: first.messageId });
        const [state] = messages[0].subscriptions;
        if (state.reason) found.set(one.name, `${state.consumer ? `the first one waits for consumer ${state.consumer}: ` : ""}${inWords(state.reason)}`);
      } catch (error) {
        // It has gone meanwhile, or this role may count and not read.
        if (error.status !== 403 && error.status !== 404) throw error;
      }
    }));
    return found;
  }

  const look = poll(view, REFRESH_MS, async () => {
    const of = await topic(name).catch((error) => {
      if (error.status === 404 && error.field === "topic") showParts(false);
      throw error;
    });
    const chosen = of.subscriptions.filter((one) => !subscription || one.name === subscription);
    const reasons = await reasonsOf(chosen.filter((one) => one.overdue && !one.paused && one.consumers));
    if (view.signal.aborted) return;
    view.of = of;
    showParts(true);
    const names = of.subscriptions.map((one) => one.name);
    if (subscription && !names.includes(subscription)) names.push(subscription);
    if (names.join("\n") !== [...choice.options].slice(1).map((one) => one.value).join("\n")) {
      choice.replaceChildren(choice.options[0], ...names.map((one) => el("option", { value: one }, one)));
      choice.value = subscription;
    }
    const sum = (field) => chosen.reduce((total, one) => total + one[field], 0);
    const counts = subscription && chosen.length ? chosen[0] : of;
    const wrong = ailmentsOf(of, { subscription, reasons });
    ailments.replaceChildren(...wrong.map((one) => ailmentLine(one, one.overdue && show === showSchedule
      ? el("a", { href: `${topicLink(name, "schedule", one.subscription)}?span=overdue` }, "Show them") : null)));
    // Schedule has them in its chart and its spans.
    if (show !== showSchedule) cards.replaceChildren(figures([
      ["Overdue", count(counts.overdue), { class: wrong.some(({ level }) => level === "wrong") && counts.overdue && "wrong", title: "due, and in no hand" }],
      ["Within 1 min", count(counts.dueWithinMinute)], ["Within 1 h", count(counts.dueWithinHour)], ["Within 24 h", count(counts.dueWithinDay)],
      ["Delayed", count(counts.delayed), { title: `the last one is due ${relative(counts.lastDueMs)}, ${clock(counts.lastDueMs)}` }],
      ["In hand", count(counts.inHand), { title: "sent to consumers, and no other subscription waits for it" }],
      ["Next due", relative(counts.nextDueMs), { title: clock(counts.nextDueMs) }],
      ["Backlog", count(sum("backlog")), { title: "entries of the log that are not acknowledged, delayed or not, of each subscription" }],
      ["Consumers", count(sum("consumers"))],
    ]));
    const { mayPause } = of;
    for (const one of [pauseButton, resumeButton]) one.title = mayPause ? "" : "Pausing and resuming are for super users";
    pauseButton.disabled = !mayPause || chosen.every((one) => one.paused);
    resumeButton.disabled = !mayPause || chosen.every((one) => !one.paused && one.ratePerSecond === null);
  });

  function refreshAll() {
    look();
    view.changed.dispatchEvent(new Event("changed"));
  }
  view.refreshAll = refreshAll;
  show(view);
}
