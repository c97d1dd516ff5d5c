// Rates and lateness while the page is open: differences between counts of the service.

import { metricLines, stats } from "./api.js";
import { colour, el, figures } from "./dom.js";
import { axisLabels, bytes, count } from "./format.js";
import { LATENESS, labelText, latenessOf, quantile } from "./metrics.js";
import { poll } from "./polling.js";

const RATES_MS = 2_000;
const LATENESS_MS = 5_000;
const KEPT = 150;
const CHART_HEIGHT = 220;
const RECENT = 5; // Rates are told over so many looks.

export function showLive(view) {
  const seconds = [];
  const rates = [[], []];
  let last = null;
  const holder = el("div", { class: "chart", role: "img", "aria-label": "Messages in and out a second, over the last minutes; the figures below say the last of it" });
  const told = el("div", { id: "rates" }, el("p", { class: "quiet" }, "Measuring: rates are known in a few seconds."));
  const lateness = el("div", { id: "lateness" }, el("p", { class: "quiet" }, "Loading"));
  let chart = null;
  view.main.replaceChildren(el("h2", {}, "Messages a second"),
    el("p", { class: "legend" }, el("span", { class: "swatch c0" }), "in ", el("span", { class: "swatch c1" }), "out"), holder, told,
    el("h2", {}, "Lateness: delivered after its time"), lateness);

  function draw() {
    const ink = colour("quiet");
    const grid = { stroke: colour("line"), width: 1 };
    chart?.destroy();
    holder.replaceChildren();
    chart = new uPlot({
      width: Math.max(280, holder.clientWidth), height: CHART_HEIGHT, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high) * 1.05] } },
      axes: [{ stroke: ink, grid, ticks: grid, incrs: [1, 2, 5, 10, 30, 60, 120, 300], values: axisLabels, space: 90 }, { stroke: ink, grid, ticks: grid, size: 58, values: (_, ticks) => ticks.map(count) }],
      series: [{}, { stroke: colour("c0"), width: 2 }, { stroke: colour("c1"), width: 2 }],
    }, [seconds, ...rates], holder);
  }

  poll(view, RATES_MS, async () => {
    const found = await stats(view.name);
    if (view.signal.aborted) return;
    const chosen = view.subscription ? [found.subscriptions[view.subscription]].filter(Boolean) : Object.values(found.subscriptions);
    const sum = (field) => chosen.reduce((total, one) => total + one[field], 0);
    const now = { ms: performance.now(), in: found.msgInCounter, out: sum("msgOutCounter") };
    if (last !== null && now.ms > last.ms) {
      const rate = (field) => Math.max(0, ((now[field] - last[field]) * 1_000) / (now.ms - last.ms));
      seconds.push(Date.now() / 1_000);
      rates[0].push(rate("in"));
      rates[1].push(rate("out"));
      if (seconds.length > KEPT) [seconds, ...rates].forEach((one) => one.shift());
      if (chart === null && seconds.length > 1) draw();
      else chart?.setData([seconds, ...rates]);
      const lately = (place) => { const some = rates[place].slice(-RECENT); return some.reduce((sum, one) => sum + one, 0) / some.length; };
      told.replaceChildren(figures([
        ["In", `${count(Math.round(lately(0)))} /s`], ["Out", `${count(Math.round(lately(1)))} /s`],
        ["In hand", count(sum("unackedMessages") || 0)], ["Log", bytes(found.storageSize)],
      ]));
    }
    last = now;
  });

  const ofTopic = labelText("topic", `persistent://${view.name}`);
  poll(view, LATENESS_MS, async () => {
    try {
      const lines = await metricLines((line) => line.startsWith(`${LATENESS}_bucket`) && line.includes(ofTopic));
      if (!view.signal.aborted) lateness.replaceChildren(...shown(latenessOf(lines)));
    } catch (error) {
      const advice = error.status === 401 || error.status === 403 ? "/metrics is not open to all here; ask with a token that is known." : "The topic's rates are told all the same.";
      lateness.replaceChildren(el("p", { class: "quiet" }, `Lateness cannot be read: ${error.message}. ${advice}`));
    }
  });
  document.addEventListener("themechange", () => { if (chart) draw(); }, { signal: view.signal });
}

function shown(now) {
  const total = now.at(-1)?.[1] ?? 0;
  if (!total) return [el("p", { class: "quiet" }, "No delayed message was delivered since the service started.")];
  return [el("p", { class: "quiet" }, "Since the service started"), figures([["p50", quantile(now, 0.5)], ["p99", quantile(now, 0.99)], ["Delivered", count(total)]])];
}
