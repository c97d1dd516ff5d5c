// Prometheus' text, as far as the page needs it: one line to a name, its labels and a value; and lateness from it.

import { duration } from "./format.js";

export const LATENESS = "postdate_delivery_lateness_seconds";

const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

export function parseLine(line) {
  const brace = line.indexOf("{");
  const end = line.lastIndexOf("}");
  const labels = {};
  for (const [, name, value] of line.slice(brace + 1, end).matchAll(LABEL)) labels[name] = value.replace(/\\[n"\\]/g, (one) => ESCAPED[one]);
  return { name: line.slice(0, brace), labels, value: Number(line.slice(end + 1)) };
}

/** The text of a label as it stands in a line. */
export const labelText = (name, value) => `${name}="${value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll('"', '\\"')}"`;

/** The cumulative counts of lateness, [upper end in seconds, messages], over all topics of some lines. */
export function latenessOf(lines) {
  const sums = new Map();
  for (const { labels, value } of lines.filter((line) => line.startsWith(`${LATENESS}_bucket`)).map(parseLine)) sums.set(labels.le, (sums.get(labels.le) ?? 0) + value);
  return [...sums];
}

/** What a part of the messages is late by at most, such as half of them. */
export function quantile(cumulative, part) {
  const total = cumulative.at(-1)?.[1] ?? 0;
  if (!total) return "–";
  const [end] = cumulative.find(([, value]) => value >= part * total);
  return end === "+Inf" ? "over 1 h" : `≤ ${duration(Number(end) * 1_000)}`;
}
