// The front page: what is due and overdue over all topics, how the service does, each topic, the services, and the last changes.

import { health, listTopics, metricLines, totals } from "./api.js";
import { announce, button, el, figures, labelled } from "./dom.js";
import { clock, count, duration, inWords, plural, relative } from "./format.js";
import { LATENESS, latenessOf, parseLine, quantile } from "./metrics.js";
import { poll } from "./polling.js";
import { services } from "./services.js";
import { ailmentLine, ailmentsOf, overdueFor } from "./state.js";
import { trail } from "./trail.js";

const LOADED = 1_000;
const SHOWN_AT_ONCE = 200;
const AILMENTS_SHOWN = 3;
const REFRESH_MS = 10_000;
const LAST = Number.MAX_SAFE_INTEGER;
const RATES = ["pulsar_rate_in", "pulsar_rate_out"];

const COLUMNS = [
  { title: "Topic", by: (one) => one.name },
  { title: "Overdue", by: (one) => -(one.overdue + LAST / 4 * one.isSick), number: true },
  { title: "In 1 min", by: (one) => -one.dueWithinMinute, number: true },
  { title: "In 1 h", by: (one) => -one.dueWithinHour, number: true },
  { title: "In 24 h", by: (one) => -one.dueWithinDay, number: true },
  { title: "Delayed", by: (one) => -one.delayed, number: true },
  { title: "In hand", by: (one) => -one.inHand, number: true },
  { title: "Backlog", by: (one) => -one.backlog, number: true },
  { title: "Next due", by: (one) => one.nextDueMs ?? LAST },
];
const OVERDUE = 1;

export const topicLink = (name, ...more) => `#/topic/${[...name.split("/"), ...more].map(encodeURIComponent).join("/")}`;

export function showTopics(view) {
  document.title = "Topics – Postdate";
  let topics = [];
  let total = 0;
  let loadedFor = "";
  let problems = [];
  let sortedBy = OVERDUE;
  let shown = SHOWN_AT_ONCE;
  const filter = el("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false", oninput: () => { shown = SHOWN_AT_ONCE; draw(true); if (total > topics.length || wanted() !== loadedFor) refresh(); } });
  const wanted = () => filter.value.trim().toLowerCase();
  const sick = el("input", { type: "checkbox", onchange: () => { shown = SHOWN_AT_ONCE; draw(true); } });
  const summary = el("p", { class: "quiet" }, "Loading");
  const due = el("div", { id: "due" });
  const service = el("div", { id: "health", hidden: true });
  const rates = el("div", { id: "rates" });
  const heads = COLUMNS.map((column, at) =>
    el("th", { scope: "col", class: column.number && "number" },
      button(column.title, () => { sortedBy = at; draw(); announce(`Sorted by ${column.title}`); }, { class: "sort" })));
  const body = el("tbody");
  const more = button("Show more", () => { shown += 2 * SHOWN_AT_ONCE; draw(); }, { hidden: true });
  const shared = el("div", { id: "services" });
  const changed = el("div");
  view.main.replaceChildren(
    el("h1", {}, "What is due"), due, service, rates,
    el("h2", {}, "Topics"),
    el("div", { class: "tools" }, labelled("Name contains", filter), el("label", { class: "check" }, sick, "with a problem only")),
    summary,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Topics" },
      el("table", { id: "topics" }, el("caption", { class: "hidden" }, "Topics and what waits in them"), el("thead", {}, el("tr", {}, ...heads)), body)),
    more, shared, changed,
  );
  services({ ...view, main: shared });
  trail({ ...view, main: changed }, "Last changes");

  function draw(isTold = false) {
    const by = COLUMNS[sortedBy].by;
    const found = topics
      .filter((one) => one.name.toLowerCase().includes(wanted()) && (one.ailments.length || !sick.checked))
      .map((one) => [by(one), one])
      .sort(([a, one], [b, other]) => (a < b ? -1 : a > b ? 1 : one.name < other.name ? -1 : 1));
    heads.forEach((head, at) => (at === sortedBy ? head.setAttribute("aria-sort", COLUMNS[at].number ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    const now = Date.now();
    body.replaceChildren(...found.slice(0, shown).map(([, one]) => row(one, now)));
    more.hidden = found.length <= shown;
    const left = total - topics.length;
    const ill = topics.filter((one) => one.isSick).length;
    summary.textContent = topics.length || filter.value
      ? `${plural(found.length, "topic")}${found.length < topics.length ? ` of ${count(topics.length)}` : ""}${ill ? `, ${count(ill)} with overdue messages` : ""}${left > 0 ? `; ${count(left)} more by name: filter to see them` : ""}`
      : "There is no topic yet: it is made when the first client publishes or subscribes, or by postdate topics create.";
    if (isTold) announce(summary.textContent);
  }

  poll(view, REFRESH_MS, async () => {
    const all = await totals();
    if (view.signal.aborted) return;
    const about = (value) => (all.estimated ? `≈ ${count(value)}` : count(value));
    due.replaceChildren(figures([
      ["Overdue", about(all.overdue), { class: all.overdue > 0 && "wrong", title: "due, and in no hand" }],
      ["Due within 1 minute", about(all.dueWithinMinute)], ["Due within 1 hour", about(all.dueWithinHour)], ["Due within 24 hours", about(all.dueWithinDay)],
      ["Delayed in all", count(all.delayed)], ["Topics", `${count(all.topics)}${all.unknown ? `, ${count(all.unknown)} not counted` : ""}`],
    ], { class: "figures big" }));
  });

  const refresh = poll(view, REFRESH_MS, async () => {
    // With thousands of topics, the first ones that the filter leaves: the service would have to open all.
    const asked = wanted();
    try {
      const [answer, state] = await Promise.all([listTopics({ contains: asked, limit: LOADED }), health()]);
      if (view.signal.aborted || asked !== wanted()) return;
      problems = state?.problems ?? [];
      tellHealth(state);
      topics = answer.topics.map((one) => ({ ...one, ailments: ailmentsOf(one, { problems }) }));
      for (const one of topics) one.isSick = one.ailments.some(({ level }) => level === "wrong");
      total = answer.total;
    } catch (error) {
      if (!topics.length) summary.textContent = "The topics could not be read.";
      throw error;
    }
    loadedFor = asked;
    // A row that has the keyboard's focus is not taken away.
    const at = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    draw();
    if (at !== null) [...body.querySelectorAll("a")].find((one) => one.getAttribute("href") === at)?.focus();
  });

  function tellHealth(state) {
    if (state === null) return;
    const isWell = state.status === "ok";
    service.hidden = false;
    service.className = `state ${isWell ? "well" : "wrong"}`;
    service.replaceChildren(
      el("b", {}, isWell ? "The service is well." : "Something fails."), state.version ? ` Version ${state.version},` : "", ` up for ${duration(state.uptime_ms)}.`,
      ...(problems.length ? [el("ul", { class: "ailments" }, ...problems.map((text) => ailmentLine({ level: "wrong", text: inWords(text) })))] : []));
  }

  let before = null;
  let beforeMs = 0;
  poll(view, REFRESH_MS, async () => {
    try {
      const lines = await metricLines((line) => line.startsWith(`${LATENESS}_bucket`) || RATES.some((one) => line.startsWith(`${one}{`)));
      const [incoming, outgoing] = RATES.map((name) => lines.filter((line) => line.startsWith(`${name}{`)).map(parseLine).reduce((sum, one) => sum + one.value, 0));
      const all = latenessOf(lines);
      const nowMs = performance.now();
      const lately = before === null ? [] : all.map(([end, value], at) => [end, value - (before[at]?.[1] ?? 0)]);
      const [told, span] = lately.at(-1)?.[1] > 0 ? [lately, `in the last ${duration(Math.round((nowMs - beforeMs) / 1_000) * 1_000)}`] : [all, "since the start"];
      if (view.signal.aborted) return;
      rates.replaceChildren(figures([
        ["Published", `${count(Math.round(incoming))} /s`], ["Delivered", `${count(Math.round(outgoing))} /s`],
        [`Late ${span}, p50`, quantile(told, 0.5)], [`Late ${span}, p99`, quantile(told, 0.99)],
      ]));
      [before, beforeMs] = [all, nowMs];
    } catch (error) {
      // A proxy or the configuration may keep metrics from this reader; the rest of the page does without.
      if (error.status !== 401 && error.status !== 403) throw error;
    }
  });
}

function row(one, now) {
  const number = (at, value, more) => el("td", { class: "number", "data-label": COLUMNS[at].title, ...more }, value);
  const left = one.ailments.length - AILMENTS_SHOWN;
  return el("tr", { class: one.isSick && "sick" },
    el("th", { scope: "row" }, el("a", { href: topicLink(one.name) }, one.name),
      one.ailments.length > 0 && el("ul", { class: "ailments" }, ...one.ailments.slice(0, AILMENTS_SHOWN).map((ailment) => ailmentLine(ailment)), left > 0 && el("li", {}, `and ${left} more`))),
    number(1, el("span", { class: one.isSick && "wrong", title: overdueFor(one, now) && `for ${overdueFor(one, now)}` }, count(one.overdue))),
    ...["dueWithinMinute", "dueWithinHour", "dueWithinDay", "delayed", "inHand", "backlog"].map((field, at) => number(at + 2, count(one[field]))),
    el("td", { "data-label": "Next due", title: clock(one.nextDueMs, now) }, relative(one.nextDueMs, now)),
  );
}
