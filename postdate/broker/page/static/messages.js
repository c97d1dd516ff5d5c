// A paged list of scheduled messages, with what can be done to those that are chosen and to all that it means.

import { ask } from "./api.js";
import { act } from "./dialogs.js";
import { announce, button, el } from "./dom.js";
import { bytes, clock, keyText, plural } from "./format.js";
import { topicLink } from "./topics.js";

const PAGE = 50;
const KINDS = [["cancel", "Cancel"], ["reschedule", "Reschedule"], ["deliver-now", "Deliver now"]];

export const propertiesText = (message) => Object.entries(message.properties).map(([name, value]) => `${name}=${value}`).join(", ") || "–";

export function messageList(view) {
  let filter = {};
  let what = "";
  let before = []; // The `after` of each page so far.
  let following = null;
  let latest = 0;
  let isAwaited = false; // A page was asked for, and it is on its way.
  let shown = "";
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
  const ofChosen = KINDS.map(([kind, text]) => button(text, () => onChosen(kind), { disabled: true, "data-kind": kind }));
  const ofAll = KINDS.map(([kind, text]) => button(`${text} all of these…`, () => onAll(kind), { "data-all": kind }));
  const element = el("section", { class: "messages" },
    heading,
    el("div", { class: "tools" }, el("div", { class: "group", role: "group", "aria-label": "The chosen messages" }, ofChosen), el("div", { class: "group", role: "group", "aria-label": "All of these messages" }, ofAll)),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Messages" }, el("table", { id: "messages" },
      el("caption", { class: "hidden" }, "Scheduled messages in the order of their times"),
      el("thead", {}, el("tr", {}, el("td", {}, everything), ...["Due", "Key", "Properties", "Size", "Producer", "Id"].map((one) => el("th", { scope: "col", class: one === "Size" && "number" }, one)))),
      body)),
    summary,
    el("div", { class: "group" }, previous, next));

  function note(box) {
    if (box.checked) chosen.add(box.value);
    else chosen.delete(box.value);
  }

  function tell() {
    ofChosen.forEach((one, place) => { one.disabled = chosen.size === 0; one.textContent = `${KINDS[place][1]}${chosen.size ? ` (${chosen.size})` : ""}…`; });
  }

  async function onChosen(kind) {
    const ids = [...chosen];
    if (await act(view.name, kind, { messageIds: ids, ...view.scope }, ids.length === 1 ? `message ${ids[0]}` : `${ids.length} chosen messages`)) view.refreshAll();
  }

  async function onAll(kind) {
    const selector = Object.keys(filter).length ? filter : { all: true };
    const words = Object.keys(filter).length ? `all that are ${what}` : "everything that is scheduled";
    if (await act(view.name, kind, { ...selector, ...view.scope }, words)) view.refreshAll();
  }

  function row(message) {
    const box = el("input", { type: "checkbox", value: message.messageId, checked: chosen.has(message.messageId), "aria-label": `Choose ${message.messageId}`, onchange: () => { note(box); tell(); } });
    return el("tr", { "data-id": message.messageId },
      el("td", {}, box),
      el("th", { scope: "row", title: message.deliverAt }, clock(message.deliverAtMs)),
      el("td", { class: "clip", title: keyText(message) }, keyText(message)),
      el("td", { class: "clip", title: propertiesText(message) }, propertiesText(message)),
      el("td", { class: "number" }, bytes(message.sizeBytes)),
      el("td", { class: "clip", title: message.producerName }, message.producerName || "–"),
      el("td", {}, el("a", { href: `${topicLink(view.name, "search", view.subscription)}?${message.messageId}`, title: "Why is it not here yet?" }, message.messageId)));
  }

  /** Show a page that was asked for: nothing of it is chosen, and it is announced. */
  function loadAnew() {
    chosen.clear();
    shown = "";
    isAwaited = true;
    return load();
  }

  async function load() {
    const mine = ++latest;
    try {
      const found = await ask(view.name, "scheduled", { ...view.scope, ...filter, limit: PAGE, after: before.at(-1) }, { signal: view.signal });
      if (mine !== latest || view.signal.aborted) return;
      view.showProblem(null, element);
      following = found.next;
      showRows(found.messages);
      previous.disabled = before.length === 0;
      next.disabled = following === null;
      for (const one of ofAll) one.disabled = found.messages.length === 0;
      summary.textContent = found.messages.length ? `Page ${before.length + 1}: ${plural(found.messages.length, "message")}${following ? ", and more follow" : ""}.` : "There are none.";
      if (isAwaited) announce(`${heading.textContent}. ${summary.textContent}`);
      isAwaited = false;
      tell();
    } catch (error) {
      if (mine !== latest) return;
      isAwaited = false;
      view.showProblem(error, element);
    }
  }

  /** Show these messages; where they are those that are shown, nothing is touched, and what was chosen stays so. */
  function showRows(messages) {
    const ids = messages.map((one) => one.messageId);
    const wanted = ids.join();
    if (shown === wanted && shown) return;
    shown = wanted;
    for (const one of chosen) if (!ids.includes(one)) chosen.delete(one);
    everything.checked = false;
    const focused = body.contains(document.activeElement) ? [document.activeElement.tagName, document.activeElement.closest("tr").dataset.id] : null;
    body.replaceChildren(...messages.map(row));
    if (focused) (body.querySelector(`tr[data-id="${focused[1]}"] ${focused[0]}`) ?? heading).focus();
  }

  return {
    element,
    /** Show the messages that a filter of the API means, and `words` that say so. */
    show(wanted, words) {
      [filter, what, before] = [wanted, words, []];
      heading.textContent = `Messages ${words}`;
      loadAnew();
    },
    /** Look again for the page that is shown, with the filter as it is now. */
    async refresh(wanted = filter, words = what) {
      if (isAwaited) return;
      [filter, what] = [wanted, words];
      heading.textContent = `Messages ${words}`;
      await load();
    },
    again() { before = []; loadAnew(); },
  };
}
