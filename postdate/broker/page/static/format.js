// Numbers and times as people read them.

const NUMBER = new Intl.NumberFormat("en");
const DAY_MS = 86_400_000;

export const count = (value) => NUMBER.format(value);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

const two = (value) => String(value).padStart(2, "0");

/** A time of the reader's own clock, as short as it can be. */
export function clock(ms, nowMs = Date.now()) {
  if (ms === null || ms === undefined) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "beyond the calendar";
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (new Date(nowMs).toDateString() === at.toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

const UNITS = [[DAY_MS, "d"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"]];

export function duration(ms) {
  const size = Math.abs(ms);
  const [unit, name] = UNITS.find(([one]) => size >= one) ?? [1, "ms"];
  const value = size / unit;
  return `${value >= 10 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${name}`;
}

export function relative(ms, nowMs = Date.now()) {
  if (ms === null || ms === undefined) return "–";
  return ms >= nowMs ? `in ${duration(ms - nowMs)}` : `${duration(nowMs - ms)} ago`;
}

export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${value >= 10 || unit === "B" ? Math.round(value) : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

/** A time as the value of an `<input type="datetime-local">`, in the reader's zone. */
export function localInput(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export const keyText = (message) =>
  message.key ?? (message.keyBase64 === null || message.keyBase64 === undefined ? "–" : `base64:${message.keyBase64}`);

/** A part of the address; one that a person has mistyped is taken as it stands. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
