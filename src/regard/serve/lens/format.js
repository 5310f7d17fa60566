// Numbers, codes and models as people read them.

export * from "./look/format.js";

export const count = (number) => number.toLocaleString("en");
export const signed = (number, digits = 2) => number.toFixed(digits).replace("-", "−");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function millions(number) {
  if (number >= 1e9) return `${(number / 1e9).toFixed(1)} billion`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} million`;
  return count(number);
}

export function bytes(number) {
  if (number >= 1e9) return `${(number / 1e9).toFixed(1)} GB`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} MB`;
  return number >= 1e3 ? `${Math.round(number / 1e3)} kB` : plural(number, "byte");
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

export const milliseconds = (number) => (number < 1000 ? `${Math.round(number)} ms` : `${(number / 1000).toFixed(1)} s`);

const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });

/** The name of a language code; the code itself where nobody knows it. */
export function languageName(code) {
  if (!code) return "a language";
  try {
    return names.of(code) || code;
  } catch {
    return code; // not the shape of a language code
  }
}

export const ABILITIES = { write: "Writes on from a text: look into it, or ask /v1/completions", embed: "Reads texts: look into it, or ask /v1/embeddings for vectors", see: "Looks at images, on the Image tab", name_features: "Features of another model, on the Features tab" };

/** How a model presents itself in a list. */
export const modelLabel = (model) => (model.attention ? model.id : `${model.id} (no attention)`);

/** First, second, third, … */
export function ordinal(number) {
  const ending = { one: "st", two: "nd", few: "rd", other: "th" }[ordinals.select(number)];
  return `${count(number)}${ending}`;
}
const ordinals = new Intl.PluralRules("en", { type: "ordinal" });

/** A piece of a word as a tokenizer writes it, with its space mark taken away. */
export const plainToken = (token) => token.replace(/^[▁Ġ]/, "") || "␣";
