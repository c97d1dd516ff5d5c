// A paged list of the messages that the filter means, with what can be done to those that are chosen or to all.

import { ask } from "./api.js";
import { act, KINDS } from "./dialogs.js";
import { announce, button, changes, el } from "./dom.js";
import { bytes, clock, count, duration, keyText, plural, propertiesText, relative, zone } from "./format.js";

const PAGE = 50;
const COLUMNS = ["Key", "Properties", "Size", "Id"];

export function messageList(view, open) {
  let filter = {};
  let words = "";
  let total = 0;
  let before = []; // The `after` of each page so far.
  let following = null;
  let latest = 0;
  let isAwaited = true; // A page was asked for, and is announced.
  let shown = null;
  let opened = "";
  const chosen = new Set();
  const heading = el("h2", { tabindex: -1 });
  const body = el("tbody");
  const summary = el("p", { class: "quiet" });
  const previous = button("Previous page", () => { before.pop(); loadAnew(); });
  const next = button("Next page", () => { before.push(following); loadAnew(); });
  const everything = el("input", { type: "checkbox", "aria-label": "Choose all of this page", onchange: () => {
    for (const box of body.querySelectorAll("input")) { box.checked = everything.checked; note(box); }
    tell();
  } });
  const actions = KINDS.map(([kind, text]) => [text, button(text, () => run(kind), { "data-kind": kind, class: kind === "cancel" && "danger" })]);
  const holder = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Messages" }, el("table", { id: "messages" },
    el("caption", { class: "hidden" }, "Scheduled messages in the order of their times"),
    el("thead", {}, el("tr", {}, el("td", {}, everything), ...[`Due (${zone()})`, ...COLUMNS].map((one) => el("th", { scope: "col", class: one === "Size" && "number" }, one)))),
    body));
  const element = el("section", { class: "messages" },
    el("div", { class: "title" }, heading, el("span", { class: "grow" }), changes("What is done to these messages", actions.map(([, one]) => one))),
    holder,
    summary,
    el("div", { class: "group" }, previous, next));

  function note(box) {
    if (box.checked) chosen.add(box.value);
    else chosen.delete(box.value);
  }

  function tell() {
    for (const [text, one] of actions) {
      one.textContent = chosen.size ? `${text} ${count(chosen.size)} chosen…` : `${text} all ${count(total)}…`;
      one.hidden = !chosen.size && !total;
    }
  }

  async function run(kind) {
    const ids = [...chosen];
    const isAll = !Object.keys(filter).length;
    const [selector, which] = ids.length
      ? [{ messageIds: ids }, ids.length === 1 ? `message ${ids[0]}` : `${count(ids.length)} chosen messages`]
      : [isAll ? { all: true } : filter, isAll ? "everything that is scheduled" : `all that are ${words}`];
    if (await act(view, kind, selector, which)) view.refreshAll();
  }

  const delaying = () => view.of?.subscriptions.filter((one) => one.delays).length ?? 0;

  /** For whom a message waits, where that is not each subscription: others have it in hand, or are done with it. */
  const waitsFor = ({ waiting }) => (!view.subscription && waiting?.length < delaying() ? `, for ${waiting.join(", ")} alone` : "");

  function row(message) {
    const now = Date.now();
    const isLate = message.deliverAtMs <= now;
    const box = el("input", { type: "checkbox", value: message.messageId, checked: chosen.has(message.messageId), "aria-label": `Choose ${message.messageId}`, onchange: () => { note(box); tell(); } });
    const cell = (at, text, more = {}) => el("td", { "data-label": COLUMNS[at], title: text, ...more }, text);
    return el("tr", { "data-id": message.messageId, class: message.messageId === opened && "open", onclick: (event) => { if (!event.target.closest("input, button")) open(message.messageId); } },
      el("td", {}, box),
      el("th", { scope: "row", title: message.deliverAt }, clock(message.deliverAtMs), el("span", { class: `when ${isLate ? "wrong" : "quiet"}` }, `${isLate ? `overdue ${duration(now - message.deliverAtMs)}` : relative(message.deliverAtMs, now)}${waitsFor(message)}`)),
      cell(0, keyText(message), { class: "clip" }), cell(1, message.damaged ? "damaged" : propertiesText(message), { class: message.damaged ? "wrong" : "clip" }), cell(2, bytes(message.sizeBytes), { class: "number" }),
      el("td", { "data-label": "Id" }, button(message.messageId, () => open(message.messageId), { class: "link", title: "Open: payload, owner of its key, why it is not here yet" })));
  }

  /** Show a page that was asked for: nothing of it is chosen, and it is announced. */
  function loadAnew() {
    anew();
    return load();
  }

  function anew() {
    chosen.clear();
    shown = null;
    isAwaited = true;
  }

  async function load() {
    const mine = ++latest;
    try {
      const found = await ask(view.name, "scheduled", { ...view.scope, ...filter, limit: PAGE, after: before.at(-1) }, { signal: view.signal });
      if (mine !== latest || view.signal.aborted) return;
      view.showProblem(null, element);
      following = found.next;
      showRows(found.messages);
      heading.textContent = `${plural(total, "message")} ${words || "scheduled"}`;
      previous.hidden = before.length === 0;
      next.hidden = following === null;
      summary.textContent = found.messages.length && (following || before.length) ? `Page ${before.length + 1}: ${plural(found.messages.length, "message")}${following ? ", and more follow" : ""}.` : "";
      if (isAwaited) announce(`${heading.textContent}. ${summary.textContent}`);
      isAwaited = false;
      holder.hidden = !found.messages.length;
      tell();
    } catch (error) {
      if (mine !== latest) return;
      if (error.status !== 403) { view.showProblem(error, element); return; }
      heading.textContent = `${plural(total, "message")} ${words || "scheduled"}`;
      summary.textContent = "Messages are shown to roles that may consume from the topic.";
      for (const one of element.querySelectorAll(".scroll, .group")) one.hidden = true;
    }
  }

  /** Show these messages; where they are those that are shown, nothing is touched, and what was chosen stays so. */
  function showRows(messages) {
    const ids = messages.map((one) => one.messageId);
    for (const one of chosen) if (!ids.includes(one)) chosen.delete(one);
    // The times that are left are told anew once in a while, and not under a reader's hand.
    const wanted = `${messages.map((one) => [one.messageId, one.waiting?.length])},${delaying()} ${body.matches(":focus-within, :hover") ? shown?.split(" ")[1] : Math.floor(Date.now() / 30_000)}`;
    if (shown === wanted) return;
    shown = wanted;
    everything.checked = false;
    const focused = body.contains(document.activeElement) ? [document.activeElement.tagName, document.activeElement.closest("tr").dataset.id] : null;
    body.replaceChildren(...messages.map(row));
    if (focused) (body.querySelector(`tr[data-id="${focused[1]}"] ${focused[0]}`) ?? heading).focus();
  }

  return {
    element,
    /** Show the messages that a filter of the API means, `said` in words, `of` of them in all. */
    async show(wanted, said, of) {
      [filter, words, total] = [wanted, said, of];
      await load();
    },
    /** What comes next is another list: from its first page on, with nothing chosen. */
    anew() { before = []; anew(); },
    /** Mark the message that is open beside the list. */
    mark(messageId) {
      opened = messageId;
      for (const one of body.children) one.classList.toggle("open", one.dataset.id === opened);
    },
  };
}
