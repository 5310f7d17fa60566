"use strict";
// One view (the words' alignment, or a head of a layer) is shown at a time, as text, as lines and as a matrix.
// `point` says what the reader points at: a query (row), a key (column), or both.

const byId = (id) => document.getElementById(id);
const sight = JSON.parse(byId("sight").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const KIND_NAMES = { cross: "cross-attention", self: "self-attention", causal: "causal self-attention" };
const MEAN = -1; // the head number that stands for the mean of all heads
const NOTHING = { row: null, column: null };

const views = sight.panels.flatMap((panel, index) => {
  const heads = [...Array(panel.heads).keys()];
  return (panel.heads > 1 ? [MEAN, ...heads] : heads).map((head) => ({ panel, index, head }));
});
let view = null;
let point = NOTHING;
let held = false;

// Colours: one hue, lightness in even steps; weight 1 is darkest on light pages and brightest on dark ones.

const RAMPS = {
  light: ["#f6f8fc", "#c3d5f0", "#7ea5dc", "#3e6cb9", "#172b5f"],
  dark: ["#171d29", "#1f3d6d", "#3a74bd", "#86b8ec", "#f1f7ff"],
};

function makeRamp(stops) {
  const rgb = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (rgb.length - 1);
    const low = Math.min(Math.floor(place), rgb.length - 2);
    return rgb[low].map((from, channel) => Math.round(from + (rgb[low + 1][channel] - from) * (place - low)));
  });
}

let ramp, pixels;
function useTheme() {
  ramp = makeRamp(dark.matches ? RAMPS.dark : RAMPS.light);
  pixels = new Uint32Array(ramp.map(([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0));
}
const level = (weight) => Math.max(0, Math.min(255, Math.round(weight * 255)));
const colour = (weight) => `rgb(${ramp[level(weight)].join(" ")})`;
const inkOn = (weight) => (dark.matches ? weight > 0.6 : weight < 0.5) ? "#1b2233" : "#ffffff";
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (weight) => (weight < 0.001 ? "0%" : weight < 0.095 ? `${(weight * 100).toFixed(1)}%` : `${Math.round(weight * 100)}%`);

// Weights: deflated bytes q with weight (q / 255)²; unpacked when a layer is first needed.

const SQUARES = Float32Array.from({ length: 256 }, (_, q) => (q / 255) ** 2);
const unpacked = new Map();

function unpack(index) {
  if (!unpacked.has(index)) unpacked.set(index, inflate(byId(`weights-${index}`).textContent));
  return unpacked.get(index);
}

async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function weightsOf({ panel, index, head }) {
  const bytes = await unpack(index);
  const size = sight.texts[panel.queries].length * sight.texts[panel.keys].length;
  const heads = head === MEAN ? [...Array(panel.heads).keys()] : [head];
  const weights = new Float32Array(size);
  for (const number of heads) {
    for (let cell = 0; cell < size; cell++) weights[cell] += SQUARES[bytes[number * size + cell]] / heads.length;
  }
  return weights;
}

function rowPeaks(weights, columns) {
  const peaks = new Float32Array(columns ? weights.length / columns : 0);
  weights.forEach((weight, cell) => { const row = Math.floor(cell / columns); if (weight > peaks[row]) peaks[row] = weight; });
  return peaks;
}

/** A picture of one pixel a cell. */
function picture(weights, columns, peaks) {
  const rows = peaks.length;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.max(columns, 1), Math.max(rows, 1)];
  const image = new ImageData(canvas.width, canvas.height);
  const target = new Uint32Array(image.data.buffer);
  weights.forEach((weight, cell) => { target[cell] = pixels[level(weight / (peaks[Math.floor(cell / columns)] || 1))]; });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Size a canvas for the screen's density and return its context in CSS pixels. */
function prepare(canvas, width, height) {
  const density = Math.min(devicePixelRatio || 1, 8192 / Math.max(width, height, 1));
  [canvas.width, canvas.height] = [Math.ceil(width * density), Math.ceil(height * density)];
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  return context;
}

// Choosing a view

const nameOf = ({ panel, head }) => panel.heads === 1 ? panel.name : `${panel.name} · ${head === MEAN ? "mean of heads" : `head ${head}`}`;
const addressOf = ({ index, head }) => `#${index}.${head === MEAN ? "mean" : head}`;

async function show(chosen) {
  const weights = await weightsOf(chosen);
  const { panel } = chosen;
  const [queries, keys] = [sight.texts[panel.queries], sight.texts[panel.keys]];
  view = { ...chosen, queries, keys, weights, at: (row, column) => weights[row * keys.length + column] };
  point = NOTHING;
  held = false;
  const translates = panel.kind === "cross" || panel.kind === "alignment";
  byId("view-name").textContent = nameOf(chosen);
  byId("view-kind").textContent = KIND_NAMES[panel.kind] || "";
  byId("keys-side").textContent = translates ? "source" : "looked at";
  byId("queries-side").textContent = translates ? "target" : "looking";
  byId("matrix").setAttribute("aria-label", `${nameOf(chosen)}: ${queries.length} rows, ${keys.length} columns. Move with the arrow keys.`);
  for (const place of ["text", "column"]) {
    fillWords(byId(`keys-${place}`), keys, (index) => ({ row: null, column: index }));
    fillWords(byId(`queries-${place}`), queries, (index) => ({ row: index, column: null }));
  }
  byId("lines").scrollTop = 0;
  history.replaceState(null, "", addressOf(chosen));
  markChosen();
  paint();
}

function step(by) {
  const at = views.findIndex((other) => other.index === view.index && other.head === view.head);
  show(views[(at + by + views.length) % views.length]);
}

// Words: each list is one stop of the Tab key, the arrows move inside it.

function fillWords(list, words, pointAt) {
  list.replaceChildren(...words.map((word, index) => {
    const element = document.createElement("span");
    element.textContent = word;
    element.title = word;
    element.dir = "auto";
    element.tabIndex = index ? -1 : 0;
    const look = () => { if (!held) pointTo(pointAt(index)); };
    element.addEventListener("pointerenter", look);
    element.addEventListener("focus", look);
    element.addEventListener("click", () => hold(pointAt(index)));
    return element;
  }));
}

function moveAmongWords(event) {
  const word = event.target;
  if (word.tagName !== "SPAN") return;
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); word.click(); return; }
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const next = by === 1 ? word.nextElementSibling : by === -1 ? word.previousElementSibling : null;
  if (!next) return;
  event.preventDefault();
  held = false;
  [word.tabIndex, next.tabIndex] = [-1, 0];
  next.focus();
}

function hold(place) {
  held = !(held && place.row === point.row && place.column === point.column);
  pointTo(place);
}

function pointTo(place) {
  point = place;
  shadeWords();
  drawThreads();
  drawMatrix();
  tell();
}

/** What share of the attention pointed at falls on this query or key; null when nothing is pointed at on the other side. */
const shareOfKey = (column) => (point.row === null ? null : view.at(point.row, column));
const shareOfQuery = (row) => (point.row !== null || point.column === null ? null : view.at(row, point.column));

function shadeWords() {
  const gain = rowGain();
  for (const place of ["text", "column"]) {
    [...byId(`keys-${place}`).children].forEach((word, column) => shade(word, shareOfKey(column), point.row === null ? 1 : gain(point.row), column === point.column));
    [...byId(`queries-${place}`).children].forEach((word, row) => shade(word, shareOfQuery(row), gain(row), row === point.row));
  }
}

function shade(word, share, gain, isOn) {
  word.classList.toggle("on", isOn);
  const visible = share === null ? 0 : Math.min(1, share * gain);
  word.style.backgroundColor = visible < 0.01 ? "" : colour(visible);
  word.style.color = visible < 0.01 ? "" : inkOn(visible);
  if (share !== null && share >= 0.005) word.dataset.percent = percent(share);
  else delete word.dataset.percent;
}

function rowGain() {
  if (!byId("relative").checked) return () => 1;
  const peaks = rowPeaks(view.weights, view.keys.length);
  return (row) => 1 / (peaks[row] || 1);
}

function tell() {
  const { row, column } = point;
  const line = byId("readout");
  const bold = (text) => Object.assign(document.createElement("b"), { textContent: text, dir: "auto" });
  if (row !== null && column !== null) {
    line.replaceChildren(bold(view.queries[row]), " looks at ", bold(view.keys[column]), ` with ${percent(view.at(row, column))} of its attention`);
  } else if (row !== null) {
    line.replaceChildren(bold(view.queries[row]), " looks at ", ...heaviest(view.keys, (index) => view.at(row, index), bold));
  } else if (column !== null) {
    line.replaceChildren(bold(view.keys[column]), " is looked at by ", ...heaviest(view.queries, (index) => view.at(index, column), bold));
  } else line.replaceChildren();
}

function heaviest(words, weightOf, bold) {
  const order = words.map((_, index) => index).sort((a, b) => weightOf(b) - weightOf(a)).slice(0, 3).filter((index) => weightOf(index) >= 0.01);
  return order.flatMap((index, place) => [place ? ", " : "", bold(words[index]), ` ${percent(weightOf(index))}`]);
}

// Lines between keys (left) and queries (right); only what is scrolled into sight is drawn.

function drawThreads() {
  const frame = byId("lines"), canvas = byId("threads");
  const [width, height] = [frame.clientWidth, frame.clientHeight];
  canvas.style.width = `${width}px`;
  canvas.style.height = "0";
  const context = prepare(canvas, width, height);
  canvas.style.height = `${height}px`;
  canvas.style.marginBottom = `-${height}px`;
  const keys = byId("keys-column"), queries = byId("queries-column");
  const left = keys.offsetLeft + keys.offsetWidth + 3, right = queries.offsetLeft - 3;
  const pitch = 30, middle = 13.5;
  const first = Math.max(0, Math.floor(frame.scrollTop / pitch) - 1), last = Math.ceil((frame.scrollTop + height) / pitch);
  const gain = rowGain();
  const [plain, accent] = [colour(dark.matches ? 0.75 : 0.72), cssColour("--accent")];
  for (let row = point.column !== null ? 0 : first; row < Math.min(view.queries.length, point.column !== null ? Infinity : last); row++) {
    for (let column = 0; column < view.keys.length; column++) {
      const weight = Math.min(1, view.at(row, column) * gain(row));
      if (weight < 0.03) continue;
      const isOn = point.row === null && point.column === null ? null : (point.row ?? row) === row && (point.column ?? column) === column;
      if (isOn === false && weight < 0.12) continue;
      const from = column * pitch + middle - frame.scrollTop, to = row * pitch + middle - frame.scrollTop;
      context.globalAlpha = isOn === false ? 0.1 : 0.12 + 0.88 * weight;
      context.strokeStyle = isOn ? accent : plain;
      context.lineWidth = 0.6 + 4.4 * weight;
      context.beginPath();
      context.moveTo(left, from);
      context.bezierCurveTo(left + (right - left) * 0.45, from, right - (right - left) * 0.45, to, right, to);
      context.stroke();
    }
  }
}

// The matrix

const matrix = { cell: 1, left: 0, top: 0, image: null };

function layMatrix() {
  const { queries, keys, weights } = view;
  const room = Math.max(byId("matrix-frame").clientWidth, 200);
  const labelled = Math.max(queries.length, keys.length) <= 160;
  const context = byId("matrix").getContext("2d");
  const fontSize = 13;
  context.font = labelFont(fontSize);
  const widest = (words) => Math.min(130, Math.max(0, ...words.map((word) => context.measureText(word).width)));
  const slope = labelled ? widest(keys) * 0.72 + 16 : 0;
  matrix.left = labelled ? Math.min(widest(queries), room * 0.3) + 14 : 0;
  matrix.top = labelled ? slope : 0;
  const fit = (room - matrix.left - slope * 0.8) / Math.max(keys.length, 1);
  matrix.cell = labelled ? Math.max(13, Math.min(54, fit, Math.max(26, 620 / queries.length))) : Math.max(0.5, fit);
  matrix.fontSize = Math.min(fontSize, matrix.cell * 0.66);
  matrix.labelled = labelled;
  matrix.width = matrix.left + keys.length * matrix.cell + slope * 0.8 + 2;
  matrix.height = matrix.top + queries.length * matrix.cell + 4;
  const peaks = rowPeaks(weights, keys.length);
  matrix.image = picture(weights, keys.length, byId("relative").checked ? peaks : peaks.map(() => 1));
}

const labelFont = (size, weight = 400) => `${weight} ${size}px ui-sans-serif, system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif`;

function drawMatrix() {
  const canvas = byId("matrix");
  const { cell, left, top, width, height, labelled } = matrix;
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const context = prepare(canvas, width, height);
  const [columns, rows] = [view.keys.length, view.queries.length];
  context.imageSmoothingEnabled = cell < 1;
  context.drawImage(matrix.image, left, top, columns * cell, rows * cell);
  if (cell >= 10) drawGrid(context, rows, columns);
  if (labelled) drawLabels(context);
  if (cell >= 36) drawNumbers(context, rows, columns);
  context.strokeStyle = cssColour("--accent");
  context.lineWidth = 2;
  if (point.row !== null) context.strokeRect(left, top + point.row * cell, columns * cell, cell);
  if (point.column !== null) context.strokeRect(left + point.column * cell, top, cell, rows * cell);
}

function drawGrid(context, rows, columns) {
  const { cell, left, top } = matrix;
  context.fillStyle = cssColour("--card");
  for (let row = 1; row < rows; row++) context.fillRect(left, top + row * cell - 0.5, columns * cell, 1);
  for (let column = 1; column < columns; column++) context.fillRect(left + column * cell - 0.5, top, 1, rows * cell);
}

function drawLabels(context) {
  const { cell, left, top, fontSize } = matrix;
  const [ink, accent] = [cssColour("--ink"), cssColour("--accent")];
  const style = (isOn) => { context.fillStyle = isOn ? accent : ink; context.font = labelFont(fontSize, isOn ? 650 : 400); };
  context.textBaseline = "middle";
  context.textAlign = "right";
  view.queries.forEach((word, row) => { style(row === point.row); context.fillText(cut(context, word, left - 14), left - 8, top + (row + 0.5) * cell); });
  context.textAlign = "left";
  view.keys.forEach((word, column) => {
    style(column === point.column);
    context.save();
    context.translate(left + (column + 0.5) * cell, top - 7);
    context.rotate(-Math.PI / 4);
    context.fillText(cut(context, word, 130), 0, 0);
    context.restore();
  });
}

function cut(context, word, room) {
  if (context.measureText(word).width <= room) return word;
  const letters = [...word];
  while (letters.length && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function drawNumbers(context, rows, columns) {
  const { cell, left, top } = matrix;
  const gain = rowGain();
  context.font = labelFont(Math.min(12.5, cell * 0.3));
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const weight = view.at(row, column);
      if (weight < 0.05) continue; // lighter cells stay empty, so that the numbers that matter stand out
      context.fillStyle = dark.matches && weight * gain(row) < 0.6 ? "#e8ecf5" : inkOn(Math.min(1, weight * gain(row)));
      context.fillText(String(Math.round(weight * 100)), left + (column + 0.5) * cell, top + (row + 0.5) * cell);
    }
  }
}

function cellUnder(event) {
  const box = byId("matrix").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - matrix.left) / matrix.cell);
  const row = Math.floor((event.clientY - box.top - matrix.top) / matrix.cell);
  const inColumns = column >= 0 && column < view.keys.length, inRows = row >= 0 && row < view.queries.length;
  if (inColumns && inRows) return { row, column };
  if (inRows && column < 0) return { row, column: null };
  if (inColumns && row < 0) return { row: null, column };
  return NOTHING;
}

function moveInMatrix(event) {
  const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [0, 0];
  if (!down && !right) return;
  event.preventDefault();
  const within = (value, count) => Math.max(0, Math.min(count - 1, value));
  const started = point.row !== null && point.column !== null;
  held = false;
  pointTo(started
    ? { row: within(point.row + down, view.queries.length), column: within(point.column + right, view.keys.length) }
    : { row: point.row ?? 0, column: point.column ?? 0 });
}

// The atlas of every layer and head

function buildAtlas() {
  const kinds = [...new Set(sight.panels.map((panel) => panel.kind).filter((kind) => kind !== "alignment"))];
  if (kinds.length > 1) ["all", ...kinds].forEach((kind) => byId("filters").append(filterButton(kind)));
  sight.panels.forEach((panel, index) => byId("layers").append(layerRow(panel, index)));
}

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function filterButton(kind) {
  const button = make("button", { type: "button", textContent: kind });
  button.setAttribute("aria-pressed", kind === "all");
  button.addEventListener("click", () => {
    [...byId("filters").children].forEach((other) => other.setAttribute("aria-pressed", other === button));
    document.querySelectorAll(".layer").forEach((layer) => { layer.hidden = kind !== "all" && layer.dataset.kind !== kind; });
  });
  return button;
}

function layerRow(panel, index) {
  const size = `${sight.texts[panel.queries].length} × ${sight.texts[panel.keys].length}`;
  const about = make("div", {}, make("h3", { textContent: panel.name }), make("p", { textContent: `${KIND_NAMES[panel.kind] || "words"}, ${size}` }));
  const heads = make("div", { className: "heads" }, ...views.filter((other) => other.index === index).map(thumbnail));
  const row = make("div", { className: "layer" }, about, heads);
  row.dataset.kind = panel.kind;
  return row;
}

function thumbnail(other) {
  const caption = other.panel.heads === 1 ? "open" : other.head === MEAN ? "mean" : `head ${other.head}`;
  const canvas = make("canvas", { width: 168, height: 168 });
  const button = make("button", { type: "button", title: nameOf(other) }, canvas, caption);
  button.dataset.address = addressOf(other);
  canvas.view = other;
  button.addEventListener("click", async () => { await show(other); document.querySelector(".stage").scrollIntoView({ block: "start" }); });
  inSight.observe(canvas);
  return button;
}

const inSight = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (!entry.isIntersecting) return;
  inSight.unobserve(entry.target);
  drawThumbnail(entry.target);
}), { rootMargin: "300px" });

async function drawThumbnail(canvas) {
  const { panel } = canvas.view;
  const weights = await weightsOf(canvas.view);
  const columns = sight.texts[panel.keys].length;
  const peaks = rowPeaks(weights, columns);
  const peak = peaks.reduce((most, each) => Math.max(most, each), 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = Math.max(columns, peaks.length) > canvas.width;
  context.drawImage(picture(weights, columns, peaks.fill(peak)), 0, 0, canvas.width, canvas.height);
}

function markChosen() {
  document.querySelectorAll(".heads button").forEach((button) => button.setAttribute("aria-pressed", button.dataset.address === addressOf(view)));
}

// Putting it together

function paint() {
  layMatrix();
  pointTo(point);
}

function drawLegend() {
  const canvas = byId("legend");
  canvas.getContext("2d").drawImage(picture(Float32Array.from({ length: 256 }, (_, index) => index / 255), 256, [1]), 0, 0);
}

function writeHeading() {
  byId("title").textContent = sight.title;
  const fact = (name, value) => make("li", {}, `${name} `, make("b", { textContent: value }));
  byId("facts").append(fact("model", sight.model), ...Object.entries(sight.meta).map(([name, value]) => fact(name, value)));
}

function listen() {
  const canvas = byId("matrix"), stage = document.querySelector(".stage");
  canvas.addEventListener("pointermove", (event) => { if (!held) pointTo(cellUnder(event)); });
  canvas.addEventListener("click", (event) => hold(cellUnder(event)));
  canvas.addEventListener("keydown", moveInMatrix);
  stage.addEventListener("pointerleave", () => { if (!held) pointTo(NOTHING); });
  document.querySelectorAll(".words").forEach((list) => list.addEventListener("keydown", moveAmongWords));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") { held = false; pointTo(NOTHING); } });
  byId("lines").addEventListener("scroll", drawThreads, { passive: true });
  byId("relative").addEventListener("change", paint);
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  addEventListener("resize", paint);
  dark.addEventListener("change", () => { useTheme(); drawLegend(); paint(); document.querySelectorAll(".heads canvas").forEach(drawThumbnail); });
}

async function start() {
  useTheme();
  drawLegend();
  writeHeading();
  buildAtlas();
  if (!views.length) return;
  await show(views.find((each) => addressOf(each) === location.hash) || views[0]);
  listen();
}

start();
