// Requests to the service. A token, where one is asked for, lives in the tab's session storage and goes with it.

import { clock, keyField } from "./format.js";

const TOKEN = "postdate.token";
const PREFIX = "/postdate/v1";

export class ApiError extends Error {
  constructor(status, answer) {
    super(answer.error ?? answer.reason ?? `The service answered ${status}`);
    this.status = status;
    this.field = answer.field ?? null;
    // The advice that programs get with a refusal is of no use to a person.
    this.advice = status === 403 ? "Ask with the token of a role that may, for instance a super user's" : answer.advice ?? null;
  }
}

let askForToken = null;
let asking = null;
let answeredMs = null;

/** Set the dialog that asks for a token: a function of a reason that resolves to the token, or to null. */
export function setTokenPrompt(prompt) {
  askForToken = prompt;
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

async function send(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
  try {
    const reply = await fetch(path, { ...options, headers, cache: "no-store" });
    answeredMs = Date.now();
    return { token, reply };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const of = answeredMs === null ? "" : `; its last answer came at ${clock(answeredMs)}`;
    throw new ApiError(0, { error: `The service does not answer${of}`, advice: "It may be restarting; this page tries again" });
  }
}

/** Send a request; where the service requires a token, ask for one and send the request again. */
async function request(path, options = {}) {
  for (;;) {
    const { token, reply } = await send(path, options);
    if (reply.status !== 401 || askForToken === null) return reply;
    if (sessionStorage.getItem(TOKEN) !== token) continue; // Another request has been given one meanwhile.
    const reason = token === null ? "" : await reasonOf(reply);
    if (sessionStorage.getItem(TOKEN) !== token) continue;
    asking ??= askForToken(reason).finally(() => { asking = null; });
    const given = await asking;
    if (given === null) throw new ApiError(401, { error: "The service requires a token", advice: "Reload the page to give a token" });
    sessionStorage.setItem(TOKEN, given);
  }
}

async function reasonOf(reply) {
  const answer = await reply.json().catch(() => ({}));
  return answer.error ?? answer.reason ?? "That token was refused";
}

async function json(path, options) {
  const reply = await request(path, options);
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new ApiError(reply.status, answer);
  return answer;
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

const encoded = (topic) => topic.split("/").map(encodeURIComponent).join("/");

export const listTopics = (parameters) => json(`${PREFIX}/topics${query(parameters)}`);

/** How much is scheduled and overdue over all topics that the caller may see. */
export const totals = () => json(`${PREFIX}/totals`);

/** Which service has which bundle of topics, and how much each takes and delivers. */
export const cluster = () => json(`${PREFIX}/cluster`);

/** One topic, as the list has it. */
export const topic = (name) => json(`${PREFIX}/topics/${encoded(name)}`);

export const ask = (topic, what, parameters = {}, options = {}) =>
  json(`${PREFIX}/topics/${encoded(topic)}/${what}${query(parameters)}`, options);

export const change = (topic, what, body) =>
  json(`${PREFIX}/topics/${encoded(topic)}/${what}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

/** Who has a key at a subscription; null where keys have no owners there. */
export async function keyStatus(topic, subscription, key) {
  try {
    return await change(topic, "keys", { subscription, ...keyField(key) });
  } catch (error) {
    if (error.status === 409) return null;
    throw error;
  }
}

/** The last changes that somebody made, newest first. */
export const trailOf = (parameters) => json(`${PREFIX}/trail${query(parameters)}`);

const PREVIEW_BYTES = 65_536;

/** The beginning of a message's payload: its bytes, and what is known of the rest. */
export async function preview(topic, messageId) {
  const [ledger, entry] = messageId.split(":");
  const reply = await request(`/admin/v2/persistent/${encoded(topic)}/ledger/${ledger}/entry/${entry}?preview=${PREVIEW_BYTES}`);
  if (!reply.ok) throw new ApiError(reply.status, await reply.json().catch(() => ({})));
  const told = (name) => reply.headers.get(`X-${name}`);
  return {
    bytes: new Uint8Array(await reply.arrayBuffer()), size: Number(told("Postdate-Payload-Size")), still: told("Postdate-Payload-Compression"),
    isEncrypted: told("Pulsar-Is-Encrypted") === "true", was: told("Pulsar-compression"), batched: told("Pulsar-num-batch-message"),
  };
}

/** What `/health` says, also while something fails; null where it cannot be read. */
export async function health() {
  const { reply } = await send("/health", {});
  return reply.json().catch(() => null);
}

export const stats = (topic) => json(`/admin/v2/persistent/${encoded(topic)}/stats?holdingSince`);

/** The lines of /metrics that `isWanted` takes, read piece by piece: with thousands of topics it is megabytes. */
export async function metricLines(isWanted) {
  const reply = await request("/metrics");
  if (!reply.ok) throw new ApiError(reply.status, await reply.json().catch(() => ({})));
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  const found = [];
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return rest && isWanted(rest) ? [...found, rest] : found;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (isWanted(line)) found.push(line);
  }
}
