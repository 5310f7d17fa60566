// The Documents tab: a file in, its translation out, and on the way how far it is.

import { writeAddress } from "./address.js";
import { download, isAbort, Problem, stream, wordsOf } from "./api.js";
import { byId, make, onDrop } from "./dom.js";
import { bytes, count, languageName } from "./format.js";
import { Languages } from "./languages.js";
import { modelList, watchModels } from "./model_list.js";
import { examplesOf } from "./translate.js";

let languages;

export function startDocuments() {
  const input = byId("document-file");
  const selects = { source: byId("document-from"), target: byId("document-to"), model: byId("document-model") };
  languages = new Languages("document", selects, keepAddress);
  onDrop(byId("document-drop"), takeFiles);
  input.addEventListener("change", () => { takeFiles([...input.files]); input.value = ""; });
  byId("document-form").addEventListener("submit", (event) => event.preventDefault());
  watchModels(describe);
}

export function refreshDocuments({ from, to, model } = {}) {
  if (from || to || model) languages.choose({ from, to, model: model ?? "" });
  if (!byId("document-list").childElementCount && !byId("document-example").childElementCount) showExample();
}

/** A small document that shows what comes back, until there is one of the reader's own. */
function showExample() {
  const [title, ...sentences] = examplesOf(languages.chosen);
  if (!title) return;
  const content = `<h1>${title}</h1>\n${sentences.map((each) => `<p><b>${each}</b></p>`).join("\n")}\n`;
  const card = new DocumentCard(new File([content], "example.html", { type: "text/html" }));
  byId("document-example").replaceChildren(card.element);
  card.translate({ ...languages.wish, source: languages.from });
}

function keepAddress() {
  writeAddress("documents", languages.values);
}

function describe() {
  const formats = modelList.documents.map((suffix) => suffix.slice(1));
  byId("document-help").textContent = `${formats.join(", ")}, up to ${bytes(modelList.limits.bytes)}`;
  byId("document-file").accept = modelList.documents.join(",");
}

function takeFiles(files) {
  byId("document-example").replaceChildren();
  for (const file of files) {
    const card = new DocumentCard(file);
    byId("document-list").prepend(card.element);
    card.translate({ ...languages.wish, source: languages.from, replace: byId("document-replace").checked });
  }
}

/** What is wrong with a file, before it is sent. */
function trouble(file) {
  const suffix = /\.[^.]+$/.exec(file.name)?.[0].toLowerCase() ?? "";
  if (!modelList.documents.includes(suffix)) return `${file.name} is not a document this page can translate. Give one of ${modelList.documents.join(", ")}.`;
  if (!file.size) return `${file.name} is empty.`;
  return file.size > modelList.limits.bytes ? `${file.name} has ${bytes(file.size)}; the server takes ${bytes(modelList.limits.bytes)} at most.` : "";
}

class DocumentCard {
  #running = new AbortController();

  constructor(file) {
    this.file = file;
    this.bar = make("progress", { className: "job-progress", max: 1, "aria-label": `Progress of ${file.name}` });
    this.words = make("p", { className: "document-words", role: "status" });
    this.action = make("button", { type: "button", textContent: "Cancel" });
    this.action.addEventListener("click", () => this.act());
    this.act = () => { this.#running.abort(); this.element.remove(); };
    this.element = make("li", { className: "card document" },
      make("div", { className: "bar" }, make("h2", { textContent: file.name }), make("span", { className: "badge", textContent: bytes(file.size) }), this.action),
      this.bar, this.words);
  }

  async translate({ model, source, to, replace }) {
    const wrong = trouble(this.file);
    if (wrong) { this.fail(wrong); return; }
    const form = new FormData();
    form.append("file", this.file, this.file.name);
    for (const [name, value] of Object.entries({ model, source, to, replace })) if (value) form.append(name, value);
    this.tell("busy", "Sending it…");
    try {
      for await (const event of stream("/api/documents", form, this.#running.signal)) this.take(event, source, to);
    } catch (error) {
      if (!isAbort(error)) this.fail(wordsOf(error));
    }
  }

  take(event, source, to) {
    if (event.error) throw new Problem(event.error);
    if (event.detected) this.detected = event.detected.language;
    if (event.loading) this.tell("busy", `Loading the model ${event.loading}…`);
    if (event.of !== undefined) this.tell("busy", `${count(event.sentences)} of ${count(event.of)} sentences`, event.sentences / Math.max(event.of, 1));
    if (event.done) this.finish(event, source, to);
  }

  finish({ token, model, truncated, unchanged, kept, new: fresh }, source, to) {
    const from = this.detected ? `${languageName(this.detected)} (detected)` : languageName(source);
    const cut = truncated ? " Some sentences reached the length limit, so their ends may be missing." : "";
    const held = kept ? ` ${count(kept)} kept, ${count(fresh)} new.` : "";
    this.tell("done", unchanged ? `It is in ${languageName(to)} already, so it comes back as it is.` : `${from} → ${languageName(to)}, by ${model}.${held}${cut}`, 1);
    [this.action.textContent, this.action.className] = ["Download", "main"];
    this.act = () => download(`/api/documents/${encodeURIComponent(token)}`).catch((error) => this.fail(wordsOf(error)));
  }

  fail(words) {
    this.tell("error", words);
    this.action.textContent = "Remove";
  }

  /** A share of nothing leaves the bar moving: something goes on, nobody knows how long. */
  tell(state, words, share) {
    this.element.dataset.state = state;
    this.bar.hidden = state !== "busy";
    if (share === undefined) this.bar.removeAttribute("value");
    else this.bar.value = share;
    this.words.textContent = words;
    this.words.classList.toggle("bad", state === "error");
  }
}
