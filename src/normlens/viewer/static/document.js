"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text ?? "", className: name ?? "" });
const sum = (values) => values.reduce((total, value) => total + value, 0);
const size = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
const signed = (value, digits) => { const text = Math.abs(value).toFixed(digits); return Number(text) === 0 ? text : (value < 0 ? "−" : "+") + text; };
const ink = (value) => `var(${value < 0 ? "--down" : "--up"})`;
const shade = (value, largest) => { const share = Math.abs(value) / (largest || 1); return share < 0.02 ? "" : `rgba(${ink(value)}, ${(0.65 * Math.min(1, share)).toFixed(3)})`; };

/** A number with its name and a bar; a sum has none. */
function row(label, value, largest, digits, isSum) {
  const line = make("div", "", `row${isSum ? " sum" : ""}`), bar = make("div", "", "bar"), name = make("span", label);
  name.title = label;
  bar.style.width = `${(100 * Math.abs(value)) / largest}%`;
  bar.style.background = isSum ? "none" : `rgb(${ink(value)})`;
  line.append(name, make("span", signed(value, digits), "n"), bar);
  return line;
}

