// One topic: its figures, the operations on all of it, and the views of it.

import { ask, topic } from "./api.js";
import { showBuckets } from "./buckets.js";
import { showConsumers } from "./consumers.js";
import { act, actOnPause } from "./dialogs.js";
import { button, el, labelled } from "./dom.js";
import { clock, count, relative } from "./format.js";
import { showLive } from "./live.js";
import { poll } from "./polling.js";
import { showSchedule } from "./schedule.js";
import { showSearch } from "./search.js";
import { topicLink } from "./topics.js";

const VIEWS = {
  schedule: ["Due over time", showSchedule],
  search: ["Search", showSearch],
  consumers: ["Consumers", showConsumers],
  index: ["Index", showBuckets],
  live: ["Live", showLive],
};
const REFRESH_MS = 5_000;

export function showTopic(outer, name, viewName, subscription) {
  const [title, show] = VIEWS[viewName] ?? VIEWS.schedule;
  document.title = `${title} – ${name} – Postdate`;
  const figures = el("dl", { class: "figures" });
  const paused = el("span", { class: "badge warn", hidden: true });
  const choice = el("select", { id: "subscription", onchange: () => { location.hash = topicLink(name, viewName, choice.value); } }, el("option", { value: "" }, "all subscriptions"));
  const scope = subscription ? { subscription } : {};
  const inWords = subscription ? `of subscription ${subscription}` : "of all subscriptions";
  const pauseButton = button("Pause", () => doPause("pause"), { id: "pause" });
  const resumeButton = button("Resume", () => doPause("resume"), { id: "resume" });
  const content = el("section", { id: "view", "aria-label": title });
  const view = { ...outer, main: content, name, subscription, scope, changed: new EventTarget() };
  const doAll = (kind) => async () => { if (await act(name, kind, { all: true, ...scope }, `everything that is scheduled ${inWords}`)) refreshAll(); };

  const parts = [
    figures,
    el("div", { class: "tools" },
      labelled("Subscription", choice),
      el("div", { class: "group" }, pauseButton, resumeButton,
        button("Cancel all…", doAll("cancel")), button("Reschedule all…", doAll("reschedule")), button("Deliver all now…", doAll("deliver-now")))),
    el("nav", { "aria-label": "Views", class: "tabs" }, ...Object.entries(VIEWS).map(([one, [text]]) =>
      el("a", { href: topicLink(name, one, ...(subscription ? [subscription] : [])), "aria-current": one === viewName && "page" }, text))),
    content,
  ];
  outer.main.replaceChildren(
    el("nav", { "aria-label": "Path", class: "path" }, el("a", { href: "#/" }, "Topics"), " / "),
    el("div", { class: "title" }, el("h1", {}, name), paused),
    ...parts,
  );

  /** Show the topic, or of one that is not there the name and the problem alone. */
  function showParts(isThere) {
    for (const part of parts) part.hidden = !isThere;
    paused.hidden ||= !isThere;
  }

  async function doPause(kind) {
    if (await actOnPause(name, kind, subscription)) refreshAll();
  }

  const look = poll(view, REFRESH_MS, async () => {
    const [found, of] = await Promise.all([ask(name, "scheduled/histogram", { ...scope, buckets: 1 }), topic(name)]).catch((error) => {
      if (error.status === 404 && error.field === "topic") showParts(false);
      throw error;
    });
    if (view.signal.aborted) return;
    showParts(true);
    const names = of.subscriptions.map((one) => one.name);
    if (subscription && !names.includes(subscription)) names.push(subscription);
    if (names.join("\n") !== [...choice.options].slice(1).map((one) => one.value).join("\n")) {
      choice.replaceChildren(choice.options[0], ...names.map((one) => el("option", { value: one }, one)));
      choice.value = subscription;
    }
    const chosen = of.subscriptions.filter((one) => !subscription || one.name === subscription);
    const sum = (field) => chosen.reduce((total, one) => total + one[field], 0);
    const now = Date.now();
    figures.replaceChildren(...[
      ["Delayed", count(found.delayed)],
      ["Overdue", count(found.overdue), "due, and in no hand"],
      ["Next due", relative(found.nextDueMs, now), clock(found.nextDueMs, now)],
      ["Last due", relative(found.lastDueMs, now), clock(found.lastDueMs, now)],
      ["Backlog", count(sum("backlog"))],
      ["Consumers", count(sum("consumers"))],
    ].map(([text, value, hint]) => el("div", {}, el("dt", {}, text), el("dd", { title: hint }, value))));
    tellPause(chosen);
  });

  function tellPause(chosen) {
    const held = chosen.filter((one) => one.paused);
    paused.hidden = held.length === 0;
    paused.textContent = held.length === chosen.length ? "paused" : `paused: ${held.map((one) => one.name).join(", ")}`;
    paused.title = held.length ? `since ${clock(Math.min(...held.map((one) => one.pausedSinceMs)))}` : "";
    pauseButton.disabled = held.length === chosen.length;
    resumeButton.disabled = held.length === 0 && chosen.every((one) => one.ratePerSecond === null);
  }

  function refreshAll() {
    look();
    view.changed.dispatchEvent(new Event("changed"));
  }
  view.refreshAll = refreshAll;
  show(view);
}
