// Choosing a view

const titleOf = (panel) => (panel.kind === "alignment" ? "Word alignment" : panel.name);
const kindOf = (panel) => KIND_NAMES[panel.kind] || `words, read from ${panel.name}`;
const nameOf = ({ panel, head }) => panel.heads === 1 ? titleOf(panel) : `${panel.name} · ${head === MEAN ? "mean of heads" : `head ${head}`}`;
const addressOf = ({ index, head }) => `#${index}.${head === MEAN ? "mean" : head}`;

async function show(chosen) {
  const weights = await weightsOf(chosen);
  const { panel } = chosen;
  const [queries, keys] = [sight.texts[panel.queries], sight.texts[panel.keys]];
  view = { ...chosen, queries, keys, weights, peaks: rowPeaks(weights, keys.length), at: (row, column) => weights[row * keys.length + column] };
  point = NOTHING;
  held = false;
  const translates = panel.kind === "cross" || panel.kind === "alignment";
  byId("view-name").textContent = nameOf(chosen);
  byId("view-kind").textContent = kindOf(panel);
  byId("keys-side").textContent = translates ? "source" : "looked at";
  byId("queries-side").textContent = translates ? "target" : "looking";
  byId("matrix").setAttribute("aria-label", `${nameOf(chosen)}: ${queries.length} rows, ${keys.length} columns. Move with the arrow keys.`);
  for (const place of ["text", "column"]) {
    fillWords(byId(`keys-${place}`), keys, (index) => ({ row: null, column: index }));
    fillWords(byId(`queries-${place}`), queries, (index) => ({ row: index, column: null }));
  }
  document.querySelector(".stage").classList.toggle("long", Math.max(queries.length, keys.length) > LONG);
  byId("lines").scrollTop = 0;
  if (location.protocol !== "about:") history.replaceState(null, "", addressOf(chosen)); // a notebook's frame has no address
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
  if (share !== null && share >= 0.02) word.dataset.percent = percent(share);
  else delete word.dataset.percent;
}

function rowGain() {
  if (!byId("relative").checked) return () => 1;
  return (row) => 1 / (view.peaks[row] || 1);
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
  dark.addEventListener("change", () => { useTheme(); drawLegend(); if (shownPlace !== null) showForetold(shownPlace); paint(); document.querySelectorAll(".heads canvas").forEach((small) => inSight.observe(small)); });
}

async function start() {
  useTheme();
  drawLegend();
  writeHeading();
  buildAtlas();
  buildForetold();
  if (!views.length) return;
  byId("relative").checked = Math.max(...sight.texts.map((words) => words.length)) > VERY_LONG;
  await show(views.find((each) => addressOf(each) === location.hash) || views[0]);
  listen();
}

start();
