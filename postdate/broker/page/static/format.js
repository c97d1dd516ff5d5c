// Numbers and times as people read them; all times of the page are of one zone, the reader's own or UTC.

const NUMBER = new Intl.NumberFormat("en");
const DAY_MS = 86_400_000;
const ZONE = "postdate.zone";
const ISO = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g;

export const count = (value) => NUMBER.format(value);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

const two = (value) => String(value).padStart(2, "0");
const isUtc = () => localStorage.getItem(ZONE) === "UTC";
const offsetMin = (ms) => (isUtc() ? 0 : -new Date(ms).getTimezoneOffset());
/** A date whose UTC fields are those of the page's zone. */
const inZone = (ms) => new Date(ms + offsetMin(ms) * 60_000);
const dayOf = (at) => `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
const timeOf = (at) => `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;

/** The zone of all times, such as UTC+01:00. */
export function zone(ms = Date.now()) {
  const minutes = offsetMin(ms);
  const size = Math.abs(minutes);
  return isUtc() || !minutes ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

/** Change between the reader's own zone and UTC. */
export const otherZone = () => localStorage.setItem(ZONE, isUtc() ? "local" : "UTC");

/** A time of the page's zone, as short as it can be. */
export function clock(ms, nowMs = Date.now()) {
  if (ms === null || ms === undefined) return "–";
  const at = inZone(ms);
  if (Number.isNaN(at.getTime())) return "beyond the calendar";
  return dayOf(inZone(nowMs)) === dayOf(at) ? timeOf(at) : `${dayOf(at)} ${timeOf(at)}`;
}

/** The service's words, with its times in the page's zone. */
export const inWords = (sentence) => sentence.replace(ISO, (one) => clock(Date.parse(one)));

/** The labels of an axis of seconds: no date where all of it is one day. */
export function axisLabels(_, ticks, __, ___, stepS) {
  return ticks.map((tick, place) => {
    const at = inZone(tick * 1_000);
    const day = dayOf(at).slice(5);
    if (stepS >= 86_400) return day;
    const time = stepS < 60 ? timeOf(at) : timeOf(at).slice(0, 5);
    const isNewDay = place === 0 ? stepS >= 3_600 : dayOf(inZone(ticks[place - 1] * 1_000)) !== dayOf(at);
    return isNewDay ? `${time}\n${day}` : time;
  });
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

/** A time as the value of an `<input type="datetime-local">`, in the page's zone; and back, null for none. */
export function toInput(ms) {
  if (ms === null || ms === undefined) return "";
  const at = inZone(ms);
  return `${dayOf(at)}T${timeOf(at)}`;
}

export function fromInput(text) {
  const ms = Date.parse(isUtc() ? `${text}Z` : text);
  return Number.isNaN(ms) ? null : ms;
}

export const keyText = (message) =>
  message.key ?? (message.keyBase64 === null || message.keyBase64 === undefined ? "–" : `base64:${message.keyBase64}`);

/** A key as a request has it, from what `keyText` shows. */
export const keyField = (text) => (text.startsWith("base64:") ? { keyBase64: text.slice(7) } : { key: text });

const OURS = "postdate.";

/** The properties that the producer gave, without those that Postdate added. */
export const propertiesText = (message) =>
  Object.entries(message.properties).filter(([name]) => !name.startsWith(OURS)).map(([name, value]) => `${name}=${value}`).join(", ") || "–";

/** A part of the address; one that a person has mistyped is taken as it stands. */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
