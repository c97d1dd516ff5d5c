// Questions before something is changed, each with the number of messages that it would touch; and the one for a token.

import { change, topic as summary } from "./api.js";
import { button, el, labelled, notify } from "./dom.js";
import { count, fromInput, plural, toInput, zone } from "./format.js";

const UNITS = { seconds: 1_000, minutes: 60_000, hours: 3_600_000, days: 86_400_000 };
const TYPING_MS = 300;

/** What can be done to messages; what destroys stands last. */
export const KINDS = [["reschedule", "Move"], ["deliver-now", "Deliver now"], ["cancel", "Cancel"]];

const WORDS = {
  cancel: { title: "Cancel messages", verb: "Cancel", done: "cancelled", warning: "What is cancelled reaches no consumer. This cannot be undone." },
  reschedule: { title: "Move messages to another time", verb: "Move", done: "rescheduled", said: "moved", warning: "What is moved gets a new id." },
  "deliver-now": { title: "Deliver messages now", verb: "Deliver", done: "delivered", warning: "What is delivered gets a new id and is due at once." },
};

/** Open a dialog; resolves to the value that it was closed with. */
function open(title, content, buttons, { onclose } = {}) {
  const heading = el("h2", { id: "dialog-title" }, title);
  const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, el("form", { method: "dialog", novalidate: true }, heading, content, el("div", { class: "actions" }, buttons)));
  document.body.append(dialog);
  const closed = new Promise((resolve) => dialog.addEventListener("close", () => { resolve(dialog.returnValue); dialog.remove(); onclose?.(); }));
  dialog.showModal();
  return { dialog, closed };
}

const ofSubscription = (name) => (name ? `subscription ${name}` : "all subscriptions");

const closeButton = (text = "Keep everything as it is") => el("button", { type: "submit", value: "" }, text);

function errorText(error) {
  return `${error.message}.${error.advice ? ` ${error.advice}.` : ""}`.replaceAll("..", ".");
}

export async function askToken(reason) {
  const input = el("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true, id: "token" });
  const { dialog, closed } = open(
    "A token is required",
    [
      el("p", {}, "This service asks for a token. It stays in this tab and is forgotten when the tab is closed."),
      reason && el("p", { class: "wrong", role: "alert" }, reason),
      labelled("Token", input),
    ],
    [closeButton("Not now"), el("button", { type: "submit", value: "use", class: "primary" }, "Use the token")],
  );
  // Enter means the token, although the other button stands first.
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); dialog.close("use"); }
  });
  input.focus();
  const how = await closed;
  const token = input.value.trim();
  return how === "use" && token ? token : null;
}

/** Ask for a new time: at a moment, some time from now, or so much later than planned. */
function newTime(onchange) {
  const kind = el("select", { id: "new-time-kind", onchange },
    el("option", { value: "delayMs" }, "from now, in"), el("option", { value: "shiftMs" }, "later than planned, by"), el("option", { value: "deliverAtMs" }, `at (${zone()})`));
  const amount = el("input", { type: "number", value: 1, step: "any", "aria-label": "How many", oninput: onchange, id: "new-time-amount" });
  const unit = el("select", { "aria-label": "Unit", onchange, id: "new-time-unit" }, ...Object.keys(UNITS).map((one) => el("option", { selected: one === "hours" }, one)));
  const at = el("input", { type: "datetime-local", step: 1, "aria-label": `Time (${zone()})`, value: toInput(Date.now() + UNITS.hours), oninput: onchange, hidden: true });
  kind.addEventListener("change", () => {
    at.hidden = kind.value !== "deliverAtMs";
    amount.hidden = unit.hidden = !at.hidden;
  });
  const value = () => {
    if (kind.value === "deliverAtMs") { const atMs = fromInput(at.value); return atMs === null ? null : { deliverAtMs: atMs }; }
    const ms = Math.round(Number(amount.value) * UNITS[unit.value]);
    return amount.value === "" || !Number.isFinite(ms) ? null : { [kind.value]: ms };
  };
  return { content: el("div", { class: "tools" }, labelled("New time", kind), amount, unit, at), value };
}

/** How many messages a change would concern, from the answer of its dry run; messages in a hand stay, and due ones are cancelled but not moved. */
const changing = (answer, kind) => answer.matched - answer.inHand - (kind === "cancel" ? 0 : answer.alreadyDue);

/** The answer of a dry run, as a sentence. */
function foreseen(answer, kind) {
  const words = WORDS[kind];
  const parts = [`${plural(changing(answer, kind), "message")} will be ${words.said ?? words.done}.`];
  if (answer.alreadyDue) {
    parts.push(kind === "cancel"
      ? `${count(answer.alreadyDue)} of them ${answer.alreadyDue === 1 ? "is" : "are"} due already.`
      : `${plural(answer.alreadyDue, "message")} ${answer.alreadyDue === 1 ? "is" : "are"} due already and will not move.`);
  }
  if (answer.inHand) parts.push(`${plural(answer.inHand, "message")} ${answer.inHand === 1 ? "is" : "are"} in the hand of a consumer and will stay there.`);
  if (answer.unknown) parts.push(`${plural(answer.unknown, "id")} of what was chosen ${answer.unknown === 1 ? "is" : "are"} gone.`);
  return parts.join(" ");
}

/**
 * Cancel, reschedule or deliver messages, after a dry run has said how many.
 *
 * @param {object} view the topic, and the subscription that is meant
 * @param {string} kind the operation, as in its path
 * @param {object} selector the part of the body that says which messages
 * @param {string} what the selector in words
 * @returns {Promise<boolean>} whether anything was changed
 */
export async function act({ name: topic, scope }, kind, selector, what) {
  const words = WORDS[kind];
  const meant = { ...selector, ...scope };
  let latest = 0;
  let typing = null;
  const told = el("p", { class: "foreseen", role: "status", "aria-live": "polite" }, "Counting");
  const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
  const confirm = button(words.verb, run, { class: kind === "cancel" ? "danger filled" : "primary", disabled: true, id: "confirm" });
  const when = kind === "reschedule" ? newTime(() => { confirm.disabled = true; clearTimeout(typing); typing = setTimeout(look, TYPING_MS); }) : null;
  let isChanged = false;
  const { dialog, closed } = open(
    words.title,
    [el("p", {}, "Topic ", el("b", {}, topic), `, ${ofSubscription(scope.subscription)}: ${what}.`), when?.content, told, el("p", { class: "quiet" }, words.warning), wrong],
    [closeButton(), confirm],
    { onclose: () => clearTimeout(typing) },
  );

  function refuse(error) {
    wrong.textContent = errorText(error);
    wrong.hidden = false;
    told.textContent = "Nothing would change.";
  }

  async function look() {
    const mine = ++latest;
    const time = when === null ? {} : when.value();
    wrong.hidden = true;
    confirm.disabled = true;
    if (time === null) { refuse({ message: "This is no time", advice: "Fill in the new time" }); return; }
    try {
      const answer = await change(topic, `scheduled/${kind}`, { ...meant, ...time, dryRun: true });
      if (mine !== latest) return;
      told.textContent = foreseen(answer, kind);
      confirm.textContent = `${words.verb} ${plural(changing(answer, kind), "message")}`;
      confirm.disabled = changing(answer, kind) === 0;
    } catch (error) {
      if (mine === latest) refuse(error);
    }
  }

  async function run() {
    const time = when === null ? {} : when.value();
    confirm.disabled = true;
    told.textContent = "Working";
    try {
      const answer = await change(topic, `scheduled/${kind}`, { ...meant, ...time });
      isChanged = true;
      dialog.close();
      notify(`${plural(answer[words.done], "message")} of ${topic} ${words.said ?? words.done}.${answer.alreadyDue ? ` ${count(answer.alreadyDue)} had come due already${kind === "cancel" ? "" : ", and stayed"}.` : ""}${answer.inHand ? ` ${count(answer.inHand)} stay in hand.` : ""}`);
    } catch (error) {
      refuse(error);
    }
  }

  await look();
  await closed;
  return isChanged;
}

/** Pause or resume, of one subscription or of all. */
export async function actOnPause(topic, kind, subscription) {
  const of = ofSubscription(subscription);
  const told = el("p", { class: "foreseen", role: "status", "aria-live": "polite" }, "Counting");
  const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
  const note = el("input", { maxlength: 1000, id: "note", autocomplete: "off", placeholder: "why, for others to read", size: 40 });
  const rate = el("input", { type: "number", min: 1, step: 1, placeholder: "as fast as they go", id: "rate" });
  const confirm = button(kind === "pause" ? "Pause" : "Resume", run, { class: "primary", id: "confirm", disabled: true });
  let isChanged = false;
  const { dialog, closed } = open(
    `${kind === "pause" ? "Pause" : "Resume"} ${of}`,
    [el("p", {}, "Topic ", el("b", {}, topic)), told, kind === "pause" ? labelled("Note", note) : labelled("Messages a second at most", rate), wrong],
    [closeButton(), confirm],
  );

  async function run() {
    try {
      const body = { ...(subscription ? { subscription } : {}), ...(kind === "pause" && note.value ? { note: note.value } : {}), ...(kind === "resume" && rate.value !== "" ? { ratePerSecond: Number(rate.value) } : {}) };
      const answer = await change(topic, kind, body);
      isChanged = true;
      dialog.close();
      notify(`${plural(answer.subscriptions.length, "subscription")} of ${topic} ${kind === "pause" ? "paused" : "resumed"}.`);
    } catch (error) {
      wrong.textContent = errorText(error);
      wrong.hidden = false;
    }
  }

  try {
    // A pause holds the whole backlog, with what has no delivery time.
    const meant = (await summary(topic)).subscriptions.filter((one) =>
      (!subscription || one.name === subscription) && (kind === "pause" || one.paused || one.ratePerSecond !== null));
    const sum = (name) => meant.reduce((total, one) => total + one[name], 0);
    // Each subscription has a backlog of its own, so one message counts once for each.
    const backlog = `A backlog of ${plural(sum("backlog"), "entry", "entries")}${meant.length > 1 ? ` of ${meant.length} subscriptions` : ""} will be`;
    const delayed = plural(sum("delayed"), "delayed message");
    const tell = () => {
      told.textContent = kind === "pause"
        ? `${backlog} held: ${delayed} from their time on, all else from now on, until delivery is resumed. A batch is one entry. Messages that consumers have stay with them.`
        : rate.value === ""
          ? `${backlog} let go: ${delayed} at their time, all else at once. A batch is one entry.`
          : `${backlog} let go at up to ${plural(Number(rate.value), "message")} a second: ${delayed} not before their time. A batch is one entry.`;
    };
    rate.addEventListener("input", tell);
    tell();
    confirm.disabled = false;
  } catch (error) {
    told.textContent = "How many are meant is not known.";
    wrong.textContent = errorText(error);
    wrong.hidden = false;
  }
  await closed;
  return isChanged;
}
