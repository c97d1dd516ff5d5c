// The page: its view, the theme, the zone, the token, and the errors.

import { ApiError, forgetToken, hasToken, setTokenPrompt } from "./api.js";
import { el } from "./dom.js";
import { askToken } from "./dialogs.js";
import { decoded, otherZone, zone } from "./format.js";
import { showTopic } from "./topic.js";
import { showTopics } from "./topics.js";

const main = document.getElementById("main");
const problem = document.getElementById("problem");
const notice = document.getElementById("notice");
const forget = document.getElementById("forget");
const theme = document.getElementById("theme");
const zoneButton = document.getElementById("zone");
let leave = null;

const problems = new Map();

/** Show an error with its advice; null takes that of the same source away, and another source's stays. */
function showProblem(given, source = "view") {
  forget.hidden = !hasToken();
  if (given === null || given.name === "AbortError") problems.delete(source);
  else problems.set(source, given);
  const [error] = problems.values();
  const isStopped = [...problems.values()].some((one) => one.status === 0);
  document.body.classList.toggle("stopped", isStopped);
  for (const one of document.querySelectorAll("fieldset.changes")) one.disabled = isStopped;
  problem.hidden = error === undefined;
  if (error === undefined) return;
  const advice = error instanceof ApiError ? error.advice : "Reload the page; if that does not help, report it";
  problem.replaceChildren(el("strong", {}, error.message), `.${advice ? ` ${advice}.` : ""}`.replaceAll("..", "."));
}

function route() {
  leave?.abort();
  leave = new AbortController();
  problems.clear();
  showProblem(null);
  notice.hidden = true;
  const [path, ...query] = location.hash.split("?");
  const parts = path.replace(/^#\/?/, "").split("/").map(decoded);
  const view = { main, signal: leave.signal, showProblem, query: new URLSearchParams(query.join("?")) };
  main.replaceChildren();
  if (parts[0] === "topic" && parts.length >= 4) showTopic(view, parts.slice(1, 4).join("/"), parts[4] || "schedule", parts[5] || "");
  else showTopics(view);
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameButtons() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
  zoneButton.textContent = `Times: ${zone()}`;
}

theme.addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("postdate.theme", next);
  nameButtons();
  document.dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  nameButtons();
  document.dispatchEvent(new Event("themechange"));
});
zoneButton.addEventListener("click", () => { otherZone(); nameButtons(); route(); });
forget.addEventListener("click", () => { forgetToken(); location.reload(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { route(); main.focus(); });
addEventListener("unhandledrejection", (event) => { showProblem(event.reason); event.preventDefault(); });

setTokenPrompt(askToken);
nameButtons();
route();
