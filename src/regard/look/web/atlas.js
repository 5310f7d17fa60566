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
  const about = make("div", {}, make("h3", { textContent: titleOf(panel) }), make("p", { textContent: `${kindOf(panel)}, ${size}` }));
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
  drawWhenIdle(entry.target);
}), { rootMargin: "300px" });

// One at a time with a breath between, so that hundreds of large maps never freeze the page.
let lastDrawn = Promise.resolve();
function drawWhenIdle(canvas) {
  lastDrawn = lastDrawn.then(() => drawThumbnail(canvas)).then(() => new Promise((done) => setTimeout(done)));
}

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
