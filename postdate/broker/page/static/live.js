// Rates and lateness while the page is open: differences between counts of the service.

import { metricLines, stats } from "./api.js";
import { el, table } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { labelText, parseLine } from "./metrics.js";
import { poll } from "./polling.js";

const RATES_MS = 2_000;
const LATENESS_MS = 5_000;
const KEPT = 150;
const CHART_HEIGHT = 220;
const LATENESS = "postdate_delivery_lateness_seconds";

export function showLive(view) {
  const seconds = [];
  const rates = [[], []];
  let last = null;
  const holder = el("div", { class: "chart", role: "img", "aria-label": "Messages in and out a second, over the last minutes; the figures below say the last of it" });
  const figures = el("dl", { class: "figures", id: "rates" });
  const lateness = el("div", { id: "lateness" }, el("p", { class: "quiet" }, "Loading"));
  let chart = null;
  view.main.replaceChildren(el("h2", {}, "Messages a second"),
    el("p", { class: "legend" }, el("span", { class: "swatch c0" }), "in ", el("span", { class: "swatch c1" }), "out"), holder, figures,
    el("h2", {}, "Lateness: delivered after its time"), lateness);

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--quiet");
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    chart?.destroy();
    holder.replaceChildren();
    chart = new uPlot({
      width: Math.max(280, holder.clientWidth), height: CHART_HEIGHT, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high) * 1.05] } },
      axes: [{ stroke: ink, grid, ticks: grid, incrs: [1, 2, 5, 10, 30, 60, 120, 300], values: (_, ticks) => ticks.map((one) => new Date(one * 1_000).toLocaleTimeString("en-GB")), space: 90 }, { stroke: ink, grid, ticks: grid, size: 58, values: (_, ticks) => ticks.map(count) }],
      series: [{}, { stroke: style.getPropertyValue("--c0"), width: 2 }, { stroke: style.getPropertyValue("--c1"), width: 2 }],
    }, [seconds, ...rates], holder);
  }

  poll(view, RATES_MS, async () => {
    const found = await stats(view.name);
    if (view.signal.aborted) return;
    const chosen = view.subscription ? [found.subscriptions[view.subscription]].filter(Boolean) : Object.values(found.subscriptions);
    const sum = (field) => chosen.reduce((total, one) => total + one[field], 0);
    const now = { ms: performance.now(), in: found.msgInCounter, out: sum("msgOutCounter"), inBytes: found.bytesInCounter, outBytes: sum("bytesOutCounter") };
    if (last !== null && now.ms > last.ms) {
      const rate = (field) => Math.max(0, ((now[field] - last[field]) * 1_000) / (now.ms - last.ms));
      seconds.push(Date.now() / 1_000);
      rates[0].push(rate("in"));
      rates[1].push(rate("out"));
      if (seconds.length > KEPT) [seconds, ...rates].forEach((one) => one.shift());
      if (chart === null && seconds.length > 1) draw();
      else chart?.setData([seconds, ...rates]);
      figures.replaceChildren(...[
        ["In", `${count(Math.round(rate("in")))} /s`], ["Out", `${count(Math.round(rate("out")))} /s`], ["Bytes in", `${bytes(rate("inBytes"))}/s`], ["Bytes out", `${bytes(rate("outBytes"))}/s`],
        ["Unacknowledged", count(sum("unackedMessages") || 0)], ["Log", bytes(found.storageSize)],
      ].map(([text, value]) => el("div", {}, el("dt", {}, text), el("dd", {}, value))));
    }
    last = now;
  });

  const ofTopic = labelText("topic", `persistent://${view.name}`);
  let before = null;
  poll(view, LATENESS_MS, async () => {
    try {
      const lines = await metricLines((line) => line.startsWith(`${LATENESS}_bucket`) && line.includes(ofTopic));
      const now = lines.map(parseLine).map(({ labels, value }) => [labels.le, value]);
      if (view.signal.aborted) return;
      lateness.replaceChildren(...shown(now, before));
      before = now;
    } catch (error) {
      const advice = error.status === 401 || error.status === 403 ? "/metrics is not open to all here; ask with a token that is known." : "The topic's rates are told all the same.";
      lateness.replaceChildren(el("p", { class: "quiet" }, `Lateness cannot be read: ${error.message}. ${advice}`));
    }
  });
  document.addEventListener("themechange", () => { if (chart) draw(); }, { signal: view.signal });
}

/** The counts of each range, from cumulative ones. */
const apart = (cumulative) => cumulative.map(([end, value], place) => [end, value - (place ? cumulative[place - 1][1] : 0)]);

function quantile(cumulative, part) {
  const total = cumulative.at(-1)[1];
  const found = cumulative.find(([, value]) => value >= part * total);
  return found[0] === "+Inf" ? "over 1 h" : `≤ ${duration(Number(found[0]) * 1_000)}`;
}

function shown(now, before) {
  const total = now.at(-1)?.[1] ?? 0;
  if (!total) return [el("p", { class: "quiet" }, "No delayed message was delivered since the service started.")];
  const counts = apart(now);
  const recent = before?.length === now.length ? apart(now).map(([, value], place) => value - apart(before)[place][1]) : counts.map(() => 0);
  const filled = counts.map(([end, value], place) => [end, value, recent[place]]).filter(([, value]) => value);
  return [
    el("dl", { class: "figures" }, ...[["Half", quantile(now, 0.5)], ["99 of 100", quantile(now, 0.99)], ["Delivered", count(total)]].map(([text, value]) => el("div", {}, el("dt", {}, text), el("dd", {}, value)))),
    table("Delivered messages by how late they were", [{ title: "Late by up to" }, { title: "Messages", number: true }, { title: "Since the last look", number: true }, { title: "Share" }],
      filled.map(([end, value, lately]) => [end === "+Inf" ? "longer" : duration(Number(end) * 1_000), count(value), count(lately),
        el("meter", { min: 0, max: total, value, "aria-label": `${((100 * value) / total).toFixed(1)} percent` })])),
  ];
}
