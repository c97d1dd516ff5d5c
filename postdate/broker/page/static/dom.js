// Elements, made without markup: names that a producer has chosen go into the page as text and as nothing else.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Make an element; `onclick` and the like are listeners, everything else is an attribute. */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function button(text, onclick, properties = {}) {
  return el("button", { type: "button", onclick, ...properties }, text);
}

/** Make a table: `columns` are {title, number}, `rows` arrays of cells (text or elements). */
export function table(caption, columns, rows, { isHidden = true } = {}) {
  const head = el("tr", {}, ...columns.map((one) => el("th", { scope: "col", class: one.number && "number" }, one.title)));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, at) =>
      el(at === 0 ? "th" : "td", { scope: at === 0 && "row", class: columns[at].number && "number" }, cell))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: isHidden && "hidden" }, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}

/** Tell a screen reader what has happened. */
export function announce(text) {
  document.getElementById("announcement").textContent = text;
}

export function labelled(text, control) {
  return el("label", {}, el("span", {}, text), control);
}
