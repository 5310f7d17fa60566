// Which files can be trained on, and what their names tell.

const FORMATS = ["tsv", "csv", "tmx", "po", "jsonl", "xlf", "xliff"];
const SHOWN = "TSV, CSV, TMX, PO, JSONL or XLIFF";

/** The name without .gz, cut at its last dot. */
function parts({ name }) {
  const plain = name.replace(/\.gz$/i, "");
  const dot = plain.lastIndexOf(".");
  return dot > 0 ? { stem: plain.slice(0, dot), suffix: plain.slice(dot + 1) } : { stem: plain, suffix: "" };
}

const isFormat = (file) => FORMATS.includes(parts(file).suffix.toLowerCase());

/** What is wrong with a choice of files, in words; nothing when it can be used or there are none. */
export function checkFiles(files) {
  const empty = files.find((file) => file.size === 0);
  if (empty) return `${empty.name} is empty.`;
  if (files.length > 2) return `${files.length} files were chosen. Give one file of pairs, or two text files of the same sentences.`;
  if (files.length === 2) return checkTwo(...files);
  if (!files.length || isFormat(files[0])) return "";
  const { suffix } = parts(files[0]);
  if (/^[a-z]{2}$/i.test(suffix))
    return `${files[0].name} is one side of a pair. Add its other side too: the file with the same name that ends in the other language.`;
  return `${files[0].name} is not a file of sentence pairs this page can read. Give ${SHOWN}, or two text files such as book.en and book.es.`;
}

function checkTwo(first, second) {
  const formatted = [first, second].find(isFormat);
  if (formatted) return `${formatted.name} holds both languages already. Give it alone, or two text files such as book.en and book.es.`;
  const [a, b] = [parts(first), parts(second)];
  if (a.stem !== b.stem)
    return `${first.name} and ${second.name} do not look like a pair. Name them alike but for the language at the end: book.en and book.es.`;
  if (!a.suffix || !b.suffix || a.suffix === b.suffix) return "The two files must end in their languages, such as book.en and book.es.";
  return "";
}

/** The languages two files are named after, if there are two. */
export function guessLanguages(chosen) {
  return chosen.length === 2 && !checkFiles(chosen) ? chosen.map((file) => parts(file).suffix) : null;
}

/** A name for the model, made of the file's. */
export function guessName(chosen) {
  if (!chosen.length || checkFiles(chosen)) return "";
  return parts(chosen[0]).stem.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 41);
}
