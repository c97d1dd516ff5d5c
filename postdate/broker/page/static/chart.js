// The chart: bars of what is due, red where it is overdue, and a line for now; to drag over and to click.

import { colour } from "./dom.js";
import { axisLabels, clock, count } from "./format.js";

const HEIGHT = 180;
const SHORTEST_MS = 60;
const APART_PX = 104;
const COUNTS = [1, 2, 5, ...[1, 2, 3, 4, 5, 6, 7, 8].flatMap((one) => [10 ** one, 2 * 10 ** one, 5 * 10 ** one])];

export function drawChart(view, holder, choose) {
  let buckets = [];
  let overdue = 0;
  let chart = null;
  const at = (ms) => buckets.find((one) => one.fromMs <= ms && ms < one.untilMs);

  function draw() {
    chart?.destroy();
    chart = null;
    holder.replaceChildren();
    if (!buckets.length || !holder.clientWidth) return;
    const grid = { stroke: colour("line"), width: 1 };
    const now = Date.now();
    const [fromMs, untilMs] = [buckets[0].fromMs, buckets.at(-1).untilMs];
    // What is overdue stands apart, before now, and is cut where it is far more than what is to come.
    const beginMs = overdue ? fromMs - (untilMs - fromMs) * (APART_PX / Math.max(APART_PX, holder.clientWidth - 90 - APART_PX)) : fromMs;
    const times = buckets.map((one) => one.fromMs / 1_000);
    const isLate = (one) => one.untilMs <= now;
    const values = [[...(overdue ? [beginMs / 1_000] : []), ...times],
      [...(overdue ? [null] : []), ...buckets.map((one) => (isLate(one) ? null : one.count))],
      [...(overdue ? [overdue] : []), ...buckets.map((one) => (isLate(one) ? one.count : null))]];
    const highest = Math.max(...buckets.map((one) => one.count));
    const top = (highest ? Math.max(highest, Math.min(overdue, 2 * highest)) : Math.max(1, overdue)) * 1.12;
    const bars = (stroke, fill) => ({ stroke: colour(stroke), fill: colour(fill), paths: uPlot.paths.bars({ size: [1, 100], align: 1, gap: 1 }), points: { show: false } });
    chart = new uPlot({
      width: holder.clientWidth,
      height: HEIGHT,
      padding: [null, 32, null, null],
      scales: { x: { time: true, range: () => [beginMs / 1_000, untilMs / 1_000] }, y: { range: () => [0, top] } },
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      axes: [{ stroke: colour("quiet"), grid, ticks: grid, space: 70, values: axisLabels }, { stroke: colour("quiet"), grid, ticks: grid, size: 58, incrs: COUNTS, values: (_, ticks) => ticks.map(count) }],
      series: [{}, bars("accent", "bar"), bars("wrong", "late")],
      hooks: {
        draw: [(self) => {
          const { ctx, bbox } = self;
          ctx.save();
          ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
          [ctx.textBaseline, ctx.textAlign] = ["top", "left"];
          if (beginMs <= now && now <= untilMs) {
            const x = self.valToPos(Math.max(now, fromMs) / 1_000, "x", true);
            ctx.fillStyle = colour("ink");
            ctx.fillRect(x - 1, bbox.top, 2 * devicePixelRatio, bbox.height);
            ctx.fillText("now", x + 6 * devicePixelRatio, bbox.top);
          }
          if (overdue) {
            ctx.fillStyle = colour("wrong");
            ctx.fillText(`${count(overdue)} overdue`, self.valToPos((beginMs + (untilMs - fromMs) / buckets.length) / 1_000, "x", true) + 4 * devicePixelRatio, bbox.top);
          }
          ctx.restore();
        }],
        setSelect: [(self) => {
          if (self.select.width < 4) return;
          const [left, right] = [self.select.left, self.select.left + self.select.width].map((place) => Math.max(fromMs, Math.round(self.posToVal(place, "x") * 1_000)));
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          if (right - left >= SHORTEST_MS) choose(left, right);
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
            const bucket = at(self.posToVal(event.clientX - self.over.getBoundingClientRect().left, "x") * 1_000);
            if (bucket) choose(bucket.fromMs, bucket.untilMs);
          });
        }],
      },
    }, values, holder);
  }

  new ResizeObserver(() => { if (chart === null ? buckets.length : Math.abs(holder.clientWidth - chart.width) > 1) draw(); }).observe(holder);
  document.addEventListener("themechange", draw, { signal: view.signal });
  return {
    show(found, late) {
      [buckets, overdue] = [found, late];
      if (!(chart?.select.width > 0)) draw();
    },
  };
}
