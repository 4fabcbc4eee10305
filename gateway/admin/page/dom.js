// Elements are made of tags, attributes and texts. Nothing here, or anywhere on the page, reads markup from data.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "path", "rect", "line", "circle", "g", "title"]);

/** An element: h("p.note", {id: "x", onclick: f}, "text", element, [more], null). */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = SHAPES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "vars") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
    else if (key === "value" && "value" in element) element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces what is in an element, and keeps the focus where an element with the same id comes back. */
export function fill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  element.replaceChildren();
  add(element, children);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  return element;
}

/** Tells a screen reader. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
