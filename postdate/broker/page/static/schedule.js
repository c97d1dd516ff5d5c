// The schedule: one filter for the chart, the list and what is done to all of it; and a message beside the list.

import { ask } from "./api.js";
import { button, el, labelled, table } from "./dom.js";
import { drawChart } from "./chart.js";
import { clock, count, duration, fromInput, keyField, plural, relative, toInput, zone } from "./format.js";
import { messageList } from "./messages.js";
import { showKey, showMessage } from "./message.js";
import { poll } from "./polling.js";
import { topicLink } from "./topics.js";

const MINUTE = 60_000;
const SPANS = { overdue: ["Overdue"], minute: ["1 min", MINUTE, "minute"], hour: ["1 h", 60 * MINUTE, "hour"], day: ["24 h", 1_440 * MINUTE, "24 hours"], week: ["7 d", 7 * 1_440 * MINUTE, "7 days"], all: ["All"] };
const BUCKETS = 60;
const REFRESH_MS = 5_000;
const LAST_ASKED_MS = 2 ** 63 - 1_024;
const ID = /^\d+:\d+(:-?\d+)*$/;

const messageIdOf = (text) => text.split(":").slice(0, 2).join(":");

/** A time as a request takes it: the service refuses a number before 1990, which may be seconds, so it is written out. */
const written = (timeMs) => (timeMs < Date.UTC(1990, 0) ? new Date(timeMs).toISOString() : timeMs);

/** A span as a request takes it: a number of JavaScript is less exact than the latest time that a message can have. */
const asked = ({ fromMs, untilMs }) => ({
  ...(fromMs === undefined ? {} : { from: written(Math.min(fromMs, LAST_ASKED_MS)) }),
  ...(untilMs === undefined || untilMs > LAST_ASKED_MS ? {} : { until: written(untilMs) }),
});

export function showSchedule(view) {
  let buckets = [];
  let overdue = 0;
  let latest = 0;
  const state = { span: "hour", from: null, until: null, key: "", property: "", open: "" };
  for (const name of ["span", "key", "property", "open"]) state[name] = view.query.get(name) ?? state[name];
  for (const name of ["from", "until"]) if (view.query.get(name)) { state[name] = Number(view.query.get(name)); state.span = ""; }

  const field = (name, more) => el("input", { id: name, autocomplete: "off", spellcheck: "false", onchange: () => apply(), ...more });
  const key = field("key", { type: "search", placeholder: "anna, or 12:34", size: 12 });
  const property = field("property", { type: "search", placeholder: "name=value", size: 10 });
  const [from, until] = ["from", "until"].map((name) => field(name, { type: "datetime-local", step: 1 }));
  const spans = Object.entries(SPANS).map(([name, [text, , more]]) => [name, button(text, () => choose({ span: name, from: null, until: null }), { "data-span": name, title: more ? `Due in the next ${more}` : "" })]);
  const clear = button("Clear", () => choose({ span: "hour", from: null, until: null, key: "", property: "" }), { id: "clear" });
  const holder = el("div", { class: "chart", role: "img", "aria-label": "Messages that are due, over time; the table below says the same" });
  const summary = el("p", { class: "quiet", id: "chart-summary" });
  const alternative = el("div");
  const details = el("details", {}, el("summary", {}, "The chart as a table"), alternative);
  const chart = drawChart(view, holder, (fromMs, untilMs) => choose({ span: "", from: fromMs, until: untilMs }));
  const aside = el("aside", { id: "aside", "aria-label": "What is looked at", hidden: true });
  const list = messageList(view, (messageId) => choose({ open: messageId }));
  view.main.replaceChildren(
    el("form", { class: "tools filter", role: "search", "aria-label": "Which messages", onsubmit: (event) => { event.preventDefault(); apply(); } },
      labelled("Key or id", key), labelled("Property", property),
      labelled(`Due from (${zone()})`, from), labelled("until", until),
      el("button", { type: "submit", class: "primary" }, "Find"),
      el("div", { class: "group", role: "group", "aria-label": "Span" }, spans.map(([, one]) => one)), clear),
    holder, summary,
    details,
    el("div", { class: "beside" }, list.element, aside),
  );

  /** The span that is meant now: from the clock on, or as it was chosen. */
  function range() {
    const [, ms] = SPANS[state.span] ?? [];
    const now = Date.now();
    if (ms) return { fromMs: now, untilMs: now + ms };
    if (state.span === "overdue") return { untilMs: now };
    return { fromMs: state.from ?? undefined, untilMs: state.until ?? undefined };
  }

  /** The filter without its span. */
  const conditions = () => ({ ...(state.key ? keyField(state.key) : {}), ...(state.property ? { property: state.property } : {}) });

  function words({ fromMs, untilMs }) {
    const [, ms, text] = SPANS[state.span] ?? [];
    const when = ms ? `due in the next ${text}` : state.span === "overdue" ? "overdue" : fromMs === undefined && untilMs === undefined ? ""
      : `due ${fromMs === undefined ? "" : `from ${clock(fromMs)} `}${untilMs === undefined ? "on" : `to ${clock(untilMs)}`}`;
    return [when, state.key && `of key ${state.key}`, state.property && `with ${state.property}`].filter(Boolean).join(", ");
  }

  async function apply() {
    const text = key.value.trim();
    if (ID.test(text) && text !== state.key) {
      // A key may look like an id: where there are messages of it, they are meant, and the message is one click away.
      const { total } = await ask(view.name, "scheduled/histogram", { ...view.scope, key: text, buckets: 1 }).catch(() => ({ total: 0 }));
      if (!total) { key.value = state.key; choose({ open: messageIdOf(text) }); return; }
    }
    const times = [from, until].map((one) => fromInput(one.value));
    const [was, will] = [[state.from, state.until], times].map((one) => one.map(toInput).join());
    const wanted = { key: key.value, property: property.value.trim(), ...(was === will ? {} : { from: times[0], until: times[1], span: times[0] === null && times[1] === null ? "hour" : "" }) };
    // A key is looked for wherever its messages are, and shown in place of a message.
    if (wanted.key !== state.key) wanted.open = "";
    if (wanted.key && wanted.key !== state.key && state.span === "hour" && was === will) wanted.span = "all";
    choose(wanted);
  }

  function choose(wanted) {
    const other = Object.keys(wanted).filter((name) => wanted[name] !== state[name]);
    if (!other.length) return;
    if (wanted.from && wanted.until && wanted.until <= wanted.from) { summary.textContent = "Until is not behind from."; return; }
    Object.assign(state, wanted);
    const given = Object.entries(state).filter(([name, value]) => value && !(name === "span" && value === "hour"));
    const query = given.length ? `?${new URLSearchParams(given)}` : "";
    history.pushState(null, "", `${topicLink(view.name, "schedule", ...(view.subscription ? [view.subscription] : []))}${query}`);
    tellFilter();
    beside();
    if (other.join() !== "open") { list.anew(); look(); }
  }

  function tellFilter() {
    [key.value, property.value, from.value, until.value] = [state.key, state.property, toInput(state.from), toInput(state.until)];
    for (const [name, one] of spans) one.setAttribute("aria-pressed", state.span === name);
    clear.hidden = !(state.key || state.property || state.span !== "hour");
  }

  /** What stands beside the list: the message that is open, or else the key that is looked for. */
  function beside() {
    list.mark(state.open);
    aside.hidden = !(state.open || state.key);
    if (state.open) showMessage(view, aside, state.open, () => choose({ open: "" }));
    else if (state.key) showKey(view, aside, state.key, ID.test(state.key) && button(`Message ${messageIdOf(state.key)}`, () => choose({ open: messageIdOf(state.key) })));
  }

  function tell(found, meant) {
    const [fromMs, untilMs] = buckets.length ? [buckets[0].fromMs, buckets.at(-1).untilMs] : [0, 0];
    const undelayed = found.undelayed.map((one) => ` ${one.sentence}.`).join("");
    const isEmpty = view.of !== null && !view.of.delayed && !view.of.overdue && !found.total && !overdue;
    // What is not there is said once, by the heading of the list; and here, what there is.
    const isNone = !found.total && !overdue;
    holder.hidden = details.hidden = isNone;
    list.element.hidden = isEmpty;
    const counts = view.of?.subscriptions.find((one) => one.name === view.subscription) ?? view.of;
    const next = counts?.delayed && !state.key && !state.property ? `The next one is due ${relative(counts.nextDueMs)}: ` : "";
    if (isNone && !isEmpty) summary.replaceChildren(...(state.span === "all" ? [] : [next, button(next ? "show all" : "Show all times", () => choose({ span: "all", from: null, until: null }), { class: "link" })]), undelayed);
    else summary.textContent = isEmpty
      ? undelayed.trim() || `Nothing is scheduled. Publish with deliver_after or deliver_at, or: postdate publish ${view.name} hello --delay 1h`
      : `${plural(found.total, "message")} ${words(meant) || "scheduled"}${overdue && state.span !== "overdue" ? `, ${state.span === "all" ? "with" : "and"} ${count(overdue)} overdue` : ""}; ${clock(fromMs)} to ${clock(untilMs)} (${zone()}), a bar is ${duration((untilMs - fromMs) / buckets.length)}. Drag over the chart or click a bar for a part of it.${undelayed}`;
    // A reader of the table is not thrown out of it by the clock.
    if (alternative.contains(document.activeElement)) return;
    alternative.replaceChildren(table("Messages that are due, by time",
      [{ title: "From" }, { title: "Until" }, { title: "Messages", number: true }, { title: "" }],
      buckets.filter((one) => one.count).map((one) => [clock(one.fromMs), clock(one.untilMs), count(one.count), button("Show", () => choose({ span: "", from: one.fromMs, until: one.untilMs }), { "aria-label": `Show the messages from ${clock(one.fromMs)}` })])));
  }

  const look = poll(view, REFRESH_MS, async () => {
    const mine = ++latest;
    const meant = range();
    const of = { ...view.scope, ...conditions() };
    const count_ = (span, parts) => ask(view.name, "scheduled/histogram", { ...of, ...asked(span), buckets: parts }, { signal: view.signal });
    // What is overdue is drawn apart, where the span does not say otherwise.
    const isApart = SPANS[state.span] !== undefined && state.span !== "overdue";
    const drawn = { ...meant, ...(isApart ? { fromMs: Date.now() } : {}) };
    let [found, late] = await Promise.all([count_(drawn, BUCKETS), isApart ? count_({ untilMs: drawn.fromMs }, 1) : null]);
    const first = found.buckets[0];
    const last = found.buckets.at(-1);
    // Messages of one instant are drawn in a minute around it.
    if (first && last.untilMs - first.fromMs < MINUTE && state.span !== "") {
      const begin = Math.max(0, Math.round((first.fromMs + last.untilMs) / 2 - MINUTE / 2));
      found = { ...await count_({ fromMs: begin, untilMs: begin + MINUTE }, BUCKETS), total: found.total };
    }
    if (state.span === "all") found.total += late.total;
    if (view.signal.aborted || mine !== latest) return;
    buckets = found.buckets.filter((one) => one.untilMs > one.fromMs);
    overdue = late?.total ?? 0;
    chart.show(buckets, overdue);
    const [[, overdueButton]] = spans;
    overdueButton.textContent = overdue ? `Overdue ${count(overdue)}` : "Overdue";
    overdueButton.classList.toggle("danger", overdue > 0);
    tell(found, meant);
    await list.show({ ...conditions(), ...asked(meant) }, words(meant), found.total);
  });

  view.changed.addEventListener("changed", () => { list.anew(); look(); beside(); });
  tellFilter();
  beside();
}
