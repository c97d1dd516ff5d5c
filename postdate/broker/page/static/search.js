// Where a message is, by its key or its id: the service's sentence, and its fields.

import { ask } from "./api.js";
import { act } from "./dialogs.js";
import { announce, button, el, labelled } from "./dom.js";
import { clock, decoded, keyText } from "./format.js";
import { propertiesText } from "./messages.js";

const ID = /^\d+:\d+(:\d+)?$/;
const KINDS = [["cancel", "Cancel…"], ["reschedule", "Reschedule…"], ["deliver-now", "Deliver now…"]];

export function showSearch(view) {
  const text = el("input", { type: "search", id: "search", spellcheck: "false", autocomplete: "off", size: 32 });
  const by = el("select", { id: "search-by" }, el("option", { value: "" }, "key or id"), el("option", { value: "key" }, "key"), el("option", { value: "messageId" }, "id"), el("option", { value: "keyBase64" }, "key, in base64"));
  const found = el("div", { id: "found" });
  const form = el("form", { class: "tools", role: "search", onsubmit: (event) => { event.preventDefault(); look(); } },
    labelled("Search for", text), labelled("which is a", by), el("button", { type: "submit", class: "primary" }, "Where is it?"));
  view.main.replaceChildren(form, found);

  async function look() {
    const value = text.value;
    if (value === "") return;
    const field = by.value || (ID.test(value.trim()) ? "messageId" : "key");
    const selector = field === "messageId" ? { messageIds: [value.trim()] } : { [field]: value };
    try {
      const answer = await ask(view.name, "explain", { ...view.scope, [field]: field === "messageId" ? value.trim() : value });
      view.showProblem(null);
      const onAll = (kind) => async () => {
        if (await act(view.name, kind, { ...selector, ...view.scope }, `${field === "messageId" ? "message" : "all of key"} ${value}`)) { view.refreshAll(); look(); }
      };
      found.replaceChildren(
        el("p", { class: "sentence", id: "sentence" }, answer.sentence),
        el("div", { class: "group" }, ...KINDS.map(([kind, words]) => button(words, onAll(kind), { "data-kind": kind }))),
        ...answer.messages.map(details));
      announce(answer.sentence);
    } catch (error) {
      found.replaceChildren(el("p", { class: "sentence" }, `${error.message}.`), error.advice ? el("p", { class: "quiet" }, `${error.advice}.`) : "");
      announce(error.message);
    }
  }

  const asked = decoded(location.hash.split("?").slice(1).join("?"));
  if (asked) { text.value = asked; look(); }
  text.focus();
}

function details(message) {
  const rows = [
    ["Id", message.messageId], ["Key", keyText(message)], ["Due", clock(message.deliverAtMs)], ["Published", clock(message.publishTimeMs)],
    ["Producer", message.producerName || "–"], ["Properties", propertiesText(message)],
    ...message.subscriptions.map((one) => [`At ${one.subscription}`, `${one.state}: ${one.sentence}`]),
  ];
  return el("dl", { class: "fields" }, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
