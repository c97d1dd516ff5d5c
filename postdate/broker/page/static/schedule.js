// The schedule: due messages over time as a chart to zoom and as a table, and the messages behind a bar.

import { ask } from "./api.js";
import { button, el, table } from "./dom.js";
import { clock, count, duration, plural } from "./format.js";
import { messageList } from "./messages.js";
import { poll } from "./polling.js";

const MINUTE = 60_000;
const PRESETS = [["Next minute", MINUTE], ["Hour", 60 * MINUTE], ["Day", 1_440 * MINUTE], ["Week", 7 * 1_440 * MINUTE], ["Month", 30 * 1_440 * MINUTE]];
const CHART_HEIGHT = 260;
const BUCKETS = 60;
const REFRESH_MS = 5_000;
const SHORTEST_MS = 60;
const LAST_ASKED_MS = 2 ** 63 - 1_024;

/** A time as a request takes it: the service refuses a number before 1990, which may be seconds, so it is written out. */
const written = (timeMs) => (timeMs < Date.UTC(1990, 0) ? new Date(timeMs).toISOString() : timeMs);

/** A span as a request takes it: a number of JavaScript is less exact than the latest time that a message can have. */
const asked = ({ fromMs, untilMs }) => ({
  from: fromMs === undefined ? undefined : written(Math.min(fromMs, LAST_ASKED_MS)),
  until: untilMs > LAST_ASKED_MS ? undefined : written(untilMs),
});

const dueWithin = ({ fromMs, untilMs }) => `due from ${clock(fromMs)} to ${clock(untilMs)}`;

export function showSchedule(view) {
  // A preset moves with the clock, a range that was drawn stands still.
  let span = { all: true };
  let isBar = false; // The list shows one bar, and not all of the chart.
  let buckets = [];
  let chart = null;
  let latest = 0;
  const holder = el("div", { class: "chart", role: "img", "aria-label": "Messages that are due, over time; the table below says the same" });
  const summary = el("p", { class: "quiet", id: "chart-summary" });
  const alternative = el("div");
  const list = messageList(view);
  const listed = el("p", { id: "listed" });
  const everything = button("Show everything", () => choose({ all: true }));
  const presets = PRESETS.map(([text, ms]) => [ms, button(text, () => choose({ preset: ms }))]);
  const all = button("All", () => choose({ all: true }));
  const move = (text, title, from, until) => button(text, () => {
    const { fromMs, untilMs } = range();
    const width = untilMs - fromMs;
    choose({ fromMs: Math.max(0, Math.round(fromMs + from * width)), untilMs: Math.round(untilMs + until * width) });
  }, { "aria-label": title, title });
  view.main.replaceChildren(
    el("div", { class: "tools" },
      el("div", { class: "group", role: "group", "aria-label": "Span" }, ...presets.map(([, one]) => one), all),
      el("div", { class: "group", role: "group", "aria-label": "Move and zoom" },
        move("◀", "Earlier", -0.5, -0.5), move("▶", "Later", 0.5, 0.5), move("+", "Zoom in", 0.25, -0.25), move("−", "Zoom out", -0.5, 0.5))),
    holder,
    summary,
    el("details", {}, el("summary", {}, "The chart as a table"), alternative),
    el("div", { class: "tools" }, listed, everything),
    list.element,
  );

  function range() {
    if (span.preset) { const now = Date.now(); return { fromMs: now, untilMs: now + span.preset }; }
    if (span.all) return buckets.length ? { fromMs: buckets[0].fromMs, untilMs: buckets.at(-1).untilMs } : { fromMs: Date.now(), untilMs: Date.now() + 60 * MINUTE };
    return span;
  }

  function choose(wanted) {
    if (wanted.untilMs - wanted.fromMs < SHORTEST_MS) return;
    span = wanted;
    isBar = false;
    const { filter, words } = ofChart();
    list.show(filter, words);
    tellListed();
    look();
  }

  /** The filter of the list that means what the chart shows, and the words for it. */
  function ofChart() {
    if (span.all) return { filter: {}, words: "in the order of their times" };
    const shown = range();
    return { filter: asked(shown), words: dueWithin(shown) };
  }

  function tellListed() {
    everything.hidden = Boolean(span.all) && !isBar;
    listed.textContent = isBar
      ? "The list shows the messages of one bar alone, and “all of these” means these."
      : span.all
        ? "The list shows everything that is scheduled. It follows the chart: zoom in to have fewer."
        : "The list shows the messages that are due in the span of the chart, and “all of these” means these.";
  }

  function draw() {
    const width = Math.max(280, holder.clientWidth);
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--quiet");
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    const values = [buckets.map((one) => one.fromMs / 1_000), buckets.map((one) => one.count)];
    chart?.destroy();
    holder.replaceChildren();
    if (!buckets.length) return;
    const [fromMs, untilMs] = [buckets[0].fromMs, buckets.at(-1).untilMs];
    const options = {
      width,
      height: CHART_HEIGHT,
      scales: { x: { time: true, range: () => [fromMs / 1_000, untilMs / 1_000] }, y: { range: (_, low, high) => [0, Math.max(1, high) * 1.05] } },
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      axes: [{ stroke: ink, grid, ticks: grid, space: 70, values: clockLabels }, { stroke: ink, grid, ticks: grid, size: 58, incrs: [1, 2, 5, ...[1, 2, 3, 4, 5, 6, 7, 8].flatMap((one) => [10 ** one, 2 * 10 ** one, 5 * 10 ** one])], values: (_, ticks) => ticks.map(count) }],
      series: [{}, { stroke: style.getPropertyValue("--accent"), fill: style.getPropertyValue("--bar"), paths: uPlot.paths.bars({ size: [1, 100], align: 1, gap: 1 }), points: { show: false } }],
      hooks: {
        setSelect: [(self) => {
          if (self.select.width < 4) return;
          const [left, right] = [self.select.left, self.select.left + self.select.width].map((at) => Math.round(self.posToVal(at, "x") * 1_000));
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          choose({ fromMs: left, untilMs: right });
        }],
        setCursor: [(self) => {
          const bucket = self.cursor.left >= 0 ? at(self.posToVal(self.cursor.left, "x") * 1_000) : undefined;
          holder.title = bucket ? `${clock(bucket.fromMs)} to ${clock(bucket.untilMs)}: ${count(bucket.count)}` : "";
        }],
        ready: [(self) => {
          let pressedAt = null;
          self.over.addEventListener("mousedown", (event) => { pressedAt = event.clientX; });
          self.over.addEventListener("click", (event) => {
            if (pressedAt === null || Math.abs(event.clientX - pressedAt) > 3) return;
            const box = self.over.getBoundingClientRect();
            const bucket = at(self.posToVal(event.clientX - box.left, "x") * 1_000);
            if (bucket) showBucket(bucket);
          });
        }],
      },
    };
    chart = new uPlot(options, values, holder);
  }

  const at = (ms) => buckets.find((one) => one.fromMs <= ms && ms < one.untilMs);

  function showBucket(bucket) {
    isBar = true;
    list.show(asked(bucket), dueWithin(bucket));
    tellListed();
    list.element.querySelector("h2")?.focus();
  }

  function tell() {
    const inRange = buckets.reduce((sum, one) => sum + one.count, 0);
    const filled = buckets.filter((one) => one.count);
    const [fromMs, untilMs] = buckets.length ? [buckets[0].fromMs, buckets.at(-1).untilMs] : [0, 0];
    summary.textContent = buckets.length
      ? `${plural(inRange, "message")} due within ${duration(untilMs - fromMs)}, ${clock(fromMs)} to ${clock(untilMs)}; a bar is ${duration((untilMs - fromMs) / buckets.length)}. Drag to zoom, click a bar for its messages.`
      : "Nothing is scheduled.";
    // A reader of the table is not thrown out of it by the clock.
    if (alternative.contains(document.activeElement)) return;
    alternative.replaceChildren(table("Messages that are due, by time",
      [{ title: "From" }, { title: "Until" }, { title: "Messages", number: true }, { title: "" }],
      filled.map((one) => [clock(one.fromMs), clock(one.untilMs), count(one.count), button("Show", () => showBucket(one), { "aria-label": `Show the messages from ${clock(one.fromMs)}` })])));
  }

  const look = poll(view, REFRESH_MS, async () => {
    const mine = ++latest;
    const { fromMs, untilMs } = span.all ? {} : range();
    const found = await ask(view.name, "scheduled/histogram", { ...view.scope, ...asked({ fromMs, untilMs }), buckets: BUCKETS }, { signal: view.signal });
    if (view.signal.aborted || mine !== latest) return;
    buckets = found.buckets.filter((one) => one.untilMs > one.fromMs);
    for (const [ms, one] of presets) one.setAttribute("aria-pressed", span.preset === ms);
    all.setAttribute("aria-pressed", Boolean(span.all));
    if (!(chart?.select.width > 0)) draw();
    tell();
    // What was delivered meanwhile goes from the list, and a span that moves with the clock takes the list along.
    if (span.preset && !isBar) { const { filter, words } = ofChart(); await list.refresh(filter, words); } else await list.refresh();
  });

  new ResizeObserver(([entry]) => { if (chart && Math.abs(entry.contentRect.width - chart.width) > 1) draw(); }).observe(holder);
  document.addEventListener("themechange", draw, { signal: view.signal });
  view.changed.addEventListener("changed", () => { look(); list.again(); });
  list.show({}, ofChart().words);
  tellListed();
}

/** Times on the axis: no date where all of it is today. */
function clockLabels(_, ticks, __, ___, stepS) {
  return ticks.map((tick, place) => {
    const shown = new Date(tick * 1_000);
    const date = shown.toLocaleDateString("en", { month: "short", day: "numeric" });
    if (stepS >= 86_400) return date;
    const time = shown.toLocaleTimeString("en-GB", stepS < 60 ? {} : { hour: "2-digit", minute: "2-digit" });
    const isNewDay = place === 0 ? stepS >= 3_600 : new Date(ticks[place - 1] * 1_000).getDate() !== shown.getDate();
    return isNewDay ? `${time}\n${date}` : time;
  });
}
