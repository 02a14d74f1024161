// Makes elements. Text is only ever set as text, so nothing that a pipeline is called can become
// markup; nothing in these modules makes elements out of text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

export function table(className, heads, rows, empty) {
  return h("div", { class: "scroll" },
    h("table", { class: className },
      h("thead", {}, h("tr", {}, heads.map((head) =>
        h("th", { scope: "col", class: head.right ? "right" : null, title: head.title }, head.text || head)))),
      h("tbody", {}, rows.length ? rows
        : h("tr", {}, h("td", { colspan: heads.length, class: "none" }, empty)))));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), children);
}

export function facts(pairs) {
  return h("dl", { class: "pairs" }, pairs.map(([name, value]) =>
    [h("dt", {}, name), h("dd", {}, value === null || value === undefined || value === "" ? "–" : value)]));
}
