// Talking to the server. Whatever goes wrong becomes a Problem whose message is fit to be shown.

import { byId } from "./dom.js";

const KEY = "regard-key";
const PATIENCE = 3; // how often a busy server is asked again
const BEGINNINGS = /^(a|an|at|it|no|that|the|there|these|this) /; // words that may get a capital; a name may not
let asking = null; // one dialog for all requests that are refused at once

export class Problem extends Error {
  constructor(words, status = 0) {
    super(words);
    this.status = status;
  }
}

export const isAbort = (error) => error.name === "AbortError";

/** What to show for an error that was caught: our own words, or an apology that hides no bug from the console. */
export function wordsOf(error) {
  if (error instanceof Problem) return error.message;
  console.error(error);
  return "Something went wrong on this page. Reloading it may help.";
}

export const get = (path, signal) => json(path, { signal });
export const post = (path, body = {}, signal) => json(path, posting(body, signal));
export const upload = (path, form) => json(path, { method: "POST", body: form });
export const remove = (path) => json(path, { method: "DELETE" });

const posting = (body, signal) => ({ method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

async function json(path, options) {
  return (await request(path, options)).json();
}

/** The events of a stream, one by one, as they come; `body` is what is asked, or a form with a file. */
export async function* stream(path, body, signal) {
  const answer = await request(path, body instanceof FormData ? { method: "POST", body, signal } : posting(body, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (data) yield JSON.parse(data);
    }
  }
}

/** Fetch a file and hand it to the reader's downloads; its name comes from the server. */
export async function download(path, body) {
  const answer = await request(path, body ? posting(body) : {});
  const name = nameOf(answer.headers.get("Content-Disposition") ?? "");
  const address = URL.createObjectURL(await answer.blob());
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  return link.download;
}

/** The name of a file in a Content-Disposition header, which spells letters beyond ASCII in percents. */
function nameOf(header) {
  const spelt = /filename\*=utf-8''([^;]+)/i.exec(header), plain = /filename="?([^";]+)"?/.exec(header);
  return spelt ? decodeURIComponent(spelt[1]) : plain?.[1] ?? "regard";
}

async function request(path, options, attempt = 0) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(`.${path}`, { ...options, headers }); // relative: a proxy may have the page below a path
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Problem("The server does not answer. It may have been stopped; start it again with “regard serve”.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    if (key === sessionStorage.getItem(KEY)) await (asking ??= askForKey(key !== null).finally(() => { asking = null; }));
    return request(path, options, attempt);
  }
  if (answer.status === 503 && attempt < PATIENCE) {
    await new Promise((done) => setTimeout(done, 1000 * Math.min(5, Number(answer.headers.get("Retry-After")) || 1)));
    options.signal?.throwIfAborted();
    return request(path, options, attempt + 1);
  }
  throw new Problem(await refusal(answer), answer.status);
}

/** The server's own words for a refusal, or ours where it has none. */
async function refusal(answer) {
  const said = await answer.json().then(({ error }) => error?.message ?? error, () => null); // OpenAI's paths have an object
  if (typeof said === "string" && said) return BEGINNINGS.test(said) ? said[0].toUpperCase() + said.slice(1) : said;
  if (answer.status === 413) return "That is more than the server takes at once.";
  if (answer.status === 503) return "The server is busy. Try again in a moment.";
  return `The server could not do that (status ${answer.status}).`;
}

function askForKey(again) {
  const dialog = byId("key-dialog"), input = byId("key-input");
  if (again) byId("key-words").textContent = "That key was not accepted. Try another.";
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((accept, refuse) => dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "ok" || !input.value) return refuse(new Problem("This server wants a key. Reload the page to enter one.", 401));
    sessionStorage.setItem(KEY, input.value);
    return accept();
  }, { once: true }));
}
