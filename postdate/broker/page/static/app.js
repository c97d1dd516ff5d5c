// The page: its view, the theme, the token, and the errors.

import { ApiError, forgetToken, hasToken, setTokenPrompt } from "./api.js";
import { el } from "./dom.js";
import { askToken } from "./dialogs.js";
import { decoded } from "./format.js";
import { showTopic } from "./topic.js";
import { showTopics } from "./topics.js";

const main = document.getElementById("main");
const problem = document.getElementById("problem");
const forget = document.getElementById("forget");
const theme = document.getElementById("theme");
let leave = null;

const problems = new Map();

/** Show an error with its advice; null takes that of the same source away, and another source's stays. */
function showProblem(given, source = "view") {
  forget.hidden = !hasToken();
  if (given === null || given.name === "AbortError") problems.delete(source);
  else problems.set(source, given);
  const [error] = problems.values();
  problem.hidden = error === undefined;
  if (error === undefined) return;
  const advice = error instanceof ApiError ? error.advice : "Reload the page; if that does not help, report it";
  problem.replaceChildren(el("strong", {}, error.message), advice ? ` ${advice}.`.replace("..", ".") : "");
}

function route() {
  leave?.abort();
  leave = new AbortController();
  problems.clear();
  showProblem(null);
  const parts = location.hash.split("?")[0].replace(/^#\/?/, "").split("/").map(decoded);
  const view = { main, signal: leave.signal, showProblem };
  main.replaceChildren();
  if (parts[0] === "topic" && parts.length >= 4) showTopic(view, parts.slice(1, 4).join("/"), parts[4] || "schedule", parts[5] || "");
  else showTopics(view);
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
}

theme.addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("postdate.theme", next);
  nameTheme();
  document.dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  nameTheme();
  document.dispatchEvent(new Event("themechange"));
});
forget.addEventListener("click", () => { forgetToken(); location.reload(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { route(); main.focus(); });
addEventListener("unhandledrejection", (event) => { showProblem(event.reason); event.preventDefault(); });

setTokenPrompt(askToken);
nameTheme();
route();
