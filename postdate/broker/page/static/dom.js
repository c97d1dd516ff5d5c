// Elements, made without markup: names that a producer has chosen go into the page as text and as nothing else.

/** Make an element; `onclick` and the like are listeners, everything else is an attribute. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A colour of the style sheet in the theme of now, for what is drawn. */
export function colour(name) {
  const probe = el("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function button(text, onclick, properties = {}) {
  return el("button", { type: "button", onclick, ...properties }, text);
}

/** Make a table: `columns` are {title, number}, `rows` arrays of cells (text or elements). */
export function table(caption, columns, rows, { isHidden = true } = {}) {
  const head = el("tr", {}, ...columns.map((one) => el("th", { scope: "col", class: one.number && "number" }, one.title)));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, at) =>
      el(at === 0 ? "th" : "td", { scope: at === 0 && "row", class: columns[at].number && "number", "data-label": columns[at].title }, cell))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: isHidden && "hidden" }, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}

/** Make a list of figures from [name, value, attributes of the value]; those without a value are left out. */
export function figures(parts, properties = {}) {
  return el("dl", { class: "figures", ...properties }, ...parts.filter(Boolean).map(([name, value, more = {}]) => el("div", {}, el("dt", {}, name), el("dd", more, value))));
}

/** Tell a screen reader what the page shows now. */
export function announce(text) {
  document.getElementById("announcement").textContent = text;
}

/** Tell everybody what has become of an action, where it is seen wherever the page is scrolled to. */
export function notify(text) {
  const notice = document.getElementById("notice");
  notice.replaceChildren(el("span", {}, `✓ ${text}`), button("Close", () => { notice.hidden = true; }));
  notice.hidden = false;
}

/** Buttons that change something: they are disabled while the service does not answer. */
export function changes(label, ...buttons) {
  return el("fieldset", { class: "group changes", "aria-label": label }, ...buttons);
}

export function labelled(text, control) {
  return el("label", {}, el("span", {}, text), control);
}
