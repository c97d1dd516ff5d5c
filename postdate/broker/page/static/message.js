// A message beside the list: its payload, who has its key, its history, and what can be done to it; or a key alone.

import { ask, keyStatus, preview, topic, trailOf } from "./api.js";
import { act, KINDS } from "./dialogs.js";
import { announce, button, changes, el } from "./dom.js";
import { bytes, clock, count, inWords, keyField, keyText, plural, propertiesText } from "./format.js";

const HEX_BYTES_MAX = 4_096;
const ACTED_ON = 20;
const MOVED = ["postdate.originalPublishTime", "postdate.shiftedBy"];

const facts = (rows) => el("dl", { class: "fields" }, ...rows.filter(Boolean).flatMap(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]));
const closing = (close) => button("Close", close, { id: "close" });
const quiet = (text) => el("p", { class: "quiet" }, text);

let latest = 0;

/** Fill the place beside the list once all is known; what was asked for later wins. */
async function fill(view, aside, make) {
  const mine = ++latest;
  const found = await make().catch((error) => {
    if (error.status === 0 || error.status >= 500) throw error;
    return [el("p", { class: "sentence", id: "sentence" }, `${error.message}.`), error.advice && quiet(`${error.advice}.`)];
  });
  if (mine !== latest || view.signal.aborted) return;
  aside.replaceChildren(...found.filter(Boolean));
  // On a phone it stands above the list, in which a reader may be far down.
  if (aside.getBoundingClientRect().top < 0) aside.scrollIntoView();
  announce(aside.querySelector("#sentence")?.textContent ?? "");
}

// ---- payload ----

function textOf(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return /[\0-\x08\x0e-\x1f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** Whether JSON has numbers that JavaScript would round; what is in strings it leaves alone. */
const isRounded = (json) => /\d{16}/.test(json.replace(/"(?:[^"\\]|\\.)*"/g, ""));

/** JSON in lines, or null and why there is none. */
function jsonOf(text) {
  try {
    const found = text !== null && /^\s*[[{]/.test(text) ? JSON.stringify(JSON.parse(text), null, 2) : null;
    return found === null ? [null, "It is no JSON"] : isRounded(text) ? [null, "Its numbers would be rounded"] : [found, ""];
  } catch {
    return [null, "It is no JSON"];
  }
}

function hexOf(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += 16) {
    const part = [...data.slice(at, at + 16)];
    lines.push(`${at.toString(16).padStart(6, "0")}  ${part.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("")}`);
  }
  return lines.join("\n");
}

function payload(found) {
  const text = textOf(found.bytes);
  const [json, whyNoJson] = jsonOf(text);
  const forms = { Text: text ?? new TextDecoder().decode(found.bytes), JSON: json, Hex: hexOf(found.bytes) };
  const shown = el("pre", { tabindex: 0, id: "payload", "aria-label": "Payload" });
  const choose = (name) => {
    shown.textContent = forms[name];
    for (const one of buttons) one.setAttribute("aria-pressed", one.textContent === name);
  };
  const buttons = Object.keys(forms).map((name) => button(name, () => choose(name), { disabled: forms[name] === null, title: name === "JSON" ? whyNoJson : "" }));
  choose(json !== null ? "JSON" : text !== null ? "Text" : "Hex");
  const notes = [
    found.isEncrypted && "Encrypted by its producer: the service has no key.",
    found.still && !found.isEncrypted && `Compressed with ${found.still}, and shown as it is: it is too large, damaged, or the library cramjam is not installed.`,
    !found.still && found.was && `Stored with ${found.was}.`,
    found.batched && `A batch of ${found.batched} messages, as it is stored.`,
    found.size > found.bytes.length ? `The first ${bytes(found.bytes.length)} of ${bytes(found.size)}.` : `${bytes(found.size)}.`,
  ];
  return [el("div", { class: "title" }, el("h3", {}, "Payload"), el("div", { class: "group", role: "group", "aria-label": "Form of the payload" }, buttons)),
    found.size ? shown : quiet("It is empty."), quiet(notes.filter(Boolean).join(" "))];
}

// ---- the owner of a key ----

/** Who has a key, for each subscription in question. */
async function owners(view, key) {
  const { subscriptions } = view.of ?? await topic(view.name);
  const rows = await Promise.all(subscriptions.filter((one) => !view.subscription || one.name === view.subscription).map(async ({ name, type, consumers }) => {
    const status = type === "Key_Shared" && consumers ? await keyStatus(view.name, name, key) : null;
    if (status === null) return [name, "No consumer owns keys here: none is connected with Key_Shared."];
    const parts = [`slot ${status.hash}`, status.waitingEntries && `${count(status.waitingEntries)} waiting: ${inWords(status.reason)}`, status.unackedEntries && `${count(status.unackedEntries)} in hand`, status.blockedBy && `still drains at ${status.blockedBy} since ${clock(status.blockedSinceTimestamp)}`];
    return [name, status.owner === null ? "no owner" : el("b", {}, status.owner), ` (${parts.filter(Boolean).join(", ")})`];
  }));
  return [el("h3", {}, "Who holds this key"), rows.length ? facts(rows) : quiet("The topic has no subscription.")];
}

// ---- views ----

/** Show a message. */
export function showMessage(view, aside, messageId, close) {
  const again = () => showMessage(view, aside, messageId, close);
  return fill(view, aside, async () => {
    const { messages: [message] } = await ask(view.name, "explain", { ...view.scope, messageId }).catch((error) => {
      error.message = `${messageId}: ${error.message}`;
      throw error;
    });
    const key = keyText(message);
    const [body, owned, acted] = await Promise.all([
      message.damaged ? [quiet("The log is damaged where its payload is.")] : preview(view.name, messageId).then(payload, (error) => [quiet(`The payload cannot be read: ${error.message}.`)]),
      key === "–" ? [] : owners(view, key),
      trailOf({ topic: view.name, limit: ACTED_ON }).then((found) => found.entries, () => []),
    ]);
    const run = (kind) => async () => { if (await act(view, kind, { messageIds: [messageId] }, `message ${messageId}`)) { view.refreshAll(); again(); } };
    return [
      el("div", { class: "title" }, el("h2", { id: "opened" }, `Message ${messageId}`), el("span", { class: "grow" }), closing(close)),
      el("p", { class: "sentence", id: "sentence" }, inWords(message.sentence)),
      ...body,
      facts([["Key", key], ["Properties", propertiesText(message)], ["Producer", message.producerName || "–"], ["In the log", bytes(message.sizeBytes)]]),
      ...owned,
      el("h3", {}, "History"), historyOf(message, acted),
      changes("What is done to this message", KINDS.map(([kind, text]) => button(`${text}…`, run(kind), { "data-kind": kind, class: kind === "cancel" && "danger" }))),
    ];
  }).catch((error) => view.showProblem(error, aside));
}

/** What is known of a message's past, the first thing first: its own times, its states, and changes that name it. */
function historyOf(message, acted) {
  const [original, shifted] = MOVED.map((name) => message.properties[name]);
  const named = new RegExp(`\\b${message.messageId}\\b`);
  const known = [
    original && [Number(original), `first published; a move${shifted ? ` (${shifted})` : ""} made this message of it`],
    [message.publishTimeMs, original ? "moved to its new time" : `published by ${message.producerName || "a producer"}`],
    message.deliverAtMs !== null && [message.deliverAtMs, message.deliverAtMs > Date.now() ? "comes due" : "came due"],
    ...message.subscriptions.filter((one) => !["delayed", "waiting"].includes(one.state)).map((one) => [one.sinceMs, `${one.subscription}: ${one.state === "pending" ? `given to ${one.consumer}` : one.state === "held" ? "held by a pause" : one.state}`]),
    ...acted.filter((one) => named.test(one.selection)).map((one) => [one.timeMs, `${one.action} by ${one.role ?? one.address}`]),
  ].filter(Boolean).sort(([one], [other]) => (one ?? Infinity) - (other ?? Infinity));
  return el("ol", { class: "history" }, ...known.map(([ms, text]) => el("li", {}, el("time", {}, ms === null || Number.isNaN(ms) ? "time not known" : clock(ms)), text)),
    ...message.subscriptions.filter((one) => ["delayed", "waiting"].includes(one.state)).map((one) => el("li", {}, el("time", {}, "now"), `${one.subscription}: ${one.state}${one.reason ? `, ${inWords(one.reason)}` : ""}`)));
}

/** Show where the messages of a key are, who holds it, and a way to `another`. */
export function showKey(view, aside, key, another) {
  return fill(view, aside, async () => {
    const [told, owned] = await Promise.all([
      ask(view.name, "explain", { ...view.scope, ...keyField(key) }).then((found) => found, (error) => { if (error.status === 404 || error.status === 403) return error; throw error; }),
      owners(view, key),
    ]);
    const sentence = told.sentence ?? `${told.message}.`;
    return [
      el("h2", { id: "opened" }, `Key ${key}`),
      el("p", { class: "sentence", id: "sentence" }, inWords(sentence)),
      told.messages === undefined && quiet("Acknowledged, cancelled and expired messages are found by their id alone."),
      ...owned, another,
      told.messages?.length > 0 && quiet(`${plural(told.messages.length, "message")}: ${Object.entries(Object.groupBy(told.messages.flatMap((one) => one.subscriptions), (one) => one.state)).map(([state, all]) => `${count(all.length)} ${state}`).join(", ")}.`),
    ];
  }).catch((error) => view.showProblem(error, aside));
}
