// All topics: a table to filter and to sort.

import { listTopics } from "./api.js";
import { announce, button, el, labelled } from "./dom.js";
import { clock, count, plural, relative } from "./format.js";
import { poll } from "./polling.js";

const LOADED = 1_000;
const SHOWN_AT_ONCE = 200;
const REFRESH_MS = 10_000;
const LAST = Number.MAX_SAFE_INTEGER;

const COLUMNS = [
  { title: "Topic", by: (one) => one.name },
  { title: "Delayed", by: (one) => -one.delayed, number: true },
  { title: "Next due", by: (one) => one.nextDueMs ?? LAST },
  { title: "Backlog", by: (one) => -one.backlog, number: true },
  { title: "Subscriptions", by: (one) => -one.subscriptions.length, number: true },
  { title: "Paused", by: (one) => (one.paused ? 0 : 1) },
];

export const topicLink = (name, ...more) => `#/topic/${[...name.split("/"), ...more].map(encodeURIComponent).join("/")}`;

export function showTopics(view) {
  document.title = "Topics – Postdate";
  let topics = [];
  let total = 0;
  let loadedFor = "";
  let sortedBy = 0;
  let shown = SHOWN_AT_ONCE;
  const filter = el("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false", oninput: () => { shown = SHOWN_AT_ONCE; draw(true); if (total > topics.length || wanted() !== loadedFor) refresh(); } });
  const wanted = () => filter.value.trim().toLowerCase();
  const paused = el("input", { type: "checkbox", onchange: () => { shown = SHOWN_AT_ONCE; draw(true); } });
  const summary = el("p", { class: "quiet" }, "Loading");
  const heads = COLUMNS.map((column, at) =>
    el("th", { scope: "col", class: column.number && "number" },
      button(column.title, () => { sortedBy = at; draw(); announce(`Sorted by ${column.title}`); }, { class: "sort" })));
  const body = el("tbody");
  const more = button("Show more", () => { shown += 2 * SHOWN_AT_ONCE; draw(); }, { hidden: true });
  view.main.replaceChildren(
    el("h1", {}, "Topics"),
    el("div", { class: "tools" }, labelled("Filter", filter), el("label", { class: "check" }, paused, "paused only")),
    summary,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Topics" },
      el("table", { id: "topics" }, el("caption", { class: "hidden" }, "Topics and what waits in them"), el("thead", {}, el("tr", {}, ...heads)), body)),
    more,
  );

  function draw(isTold = false) {
    const by = COLUMNS[sortedBy].by;
    const found = topics
      .filter((one) => one.name.toLowerCase().includes(wanted()) && (one.paused || !paused.checked))
      .map((one) => [by(one), one])
      .sort(([a, one], [b, other]) => (a < b ? -1 : a > b ? 1 : one.name < other.name ? -1 : 1));
    heads.forEach((head, at) => (at === sortedBy ? head.setAttribute("aria-sort", COLUMNS[at].number ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    const now = Date.now();
    body.replaceChildren(...found.slice(0, shown).map(([, one]) => row(one, now)));
    more.hidden = found.length <= shown;
    const delayed = found.reduce((sum, [, one]) => sum + one.delayed, 0);
    const left = total - topics.length;
    summary.textContent = topics.length || filter.value
      ? `${plural(found.length, "topic")}${found.length < topics.length ? ` of ${count(topics.length)}` : ""}, ${plural(delayed, "delayed message")}${left > 0 ? `; ${count(left)} more by name: filter to see them` : ""}`
      : "There is no topic yet: it is made when the first client publishes or subscribes.";
    if (isTold) announce(summary.textContent);
  }

  const refresh = poll(view, REFRESH_MS, async () => {
    // With thousands of topics, the first ones that the filter leaves: the service would have to open all.
    const asked = wanted();
    const answer = await listTopics({ contains: asked, limit: LOADED });
    if (view.signal.aborted || asked !== wanted()) return;
    // A row that has the keyboard's focus is not taken away.
    const at = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    topics = answer.topics;
    total = answer.total;
    loadedFor = asked;
    draw();
    if (at !== null) [...body.querySelectorAll("a")].find((one) => one.getAttribute("href") === at)?.focus();
  });
}

function row(one, now) {
  return el("tr", {},
    el("th", { scope: "row" }, el("a", { href: topicLink(one.name) }, one.name)),
    el("td", { class: "number" }, count(one.delayed)),
    el("td", { title: clock(one.nextDueMs, now) }, one.nextDueMs === null ? "–" : relative(one.nextDueMs, now)),
    el("td", { class: "number" }, count(one.backlog)),
    el("td", { class: "number" }, count(one.subscriptions.length)),
    el("td", {}, one.paused ? el("span", { class: "badge warn" }, "paused") : "–"),
  );
}
