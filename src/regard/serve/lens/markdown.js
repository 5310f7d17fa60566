// A model card as elements: the small part of Markdown that cards use. Everything becomes text nodes; links stay text.

import { make } from "./dom.js";

export function renderMarkdown(text) {
  const lines = text.split("\n");
  const blocks = [];
  while (lines.length) blocks.push(...block(lines));
  return make("div", { className: "markdown" }, ...blocks);
}

/** Take one block off the front of the lines. */
function block(lines) {
  const line = lines[0];
  if (!line.trim()) { lines.shift(); return []; }
  if (line.startsWith("```")) {
    lines.shift();
    const code = takeWhile(lines, (each) => !each.startsWith("```"));
    lines.shift();
    return [make("pre", { tabIndex: 0 }, make("code", { textContent: code.join("\n") }))];
  }
  const heading = /^(#{1,6})\s+(.*)/.exec(line);
  if (heading) { lines.shift(); return [make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]))]; }
  if (line.startsWith("|")) return [table(takeWhile(lines, (each) => each.startsWith("|")))];
  if (/^\s*[-*] /.test(line)) {
    const items = takeWhile(lines, (each) => /^\s*[-*] /.test(each));
    return [make("ul", {}, ...items.map((item) => make("li", {}, ...inline(item.replace(/^\s*[-*] /, "")))))];
  }
  lines.shift();
  const rest = takeWhile(lines, (each) => each.trim() && !/^(#|```|\||\s*[-*] )/.test(each));
  return [make("p", {}, ...inline([line, ...rest].join(" ")))];
}

function takeWhile(lines, wanted) {
  const end = lines.findIndex((line) => !wanted(line));
  return lines.splice(0, end < 0 ? lines.length : end);
}

function table(lines) {
  const rows = lines.map((line) => line.replace(/^\||\|\s*$/g, "").split("|").map((cell) => cell.trim()));
  const [head, ...body] = rows.filter((cells) => !cells.every((cell) => /^:?-+:?$/.test(cell)));
  const row = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, {}, ...inline(cell))));
  return make("table", {}, make("thead", {}, row("th", head ?? [])), make("tbody", {}, ...body.map((cells) => row("td", cells))));
}

/** `code`, **bold** and [links](…) inside a line. */
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]*\))/).map((part) => {
    if (part.startsWith("`") && part.length > 1) return make("code", { textContent: part.slice(1, -1) });
    if (part.startsWith("**") && part.length > 3) return make("strong", { textContent: part.slice(2, -2) });
    const link = /^\[([^\]]+)\]\(([^)]*)\)$/.exec(part);
    return link ? `${link[1]} (${link[2]})` : part;
  });
}
