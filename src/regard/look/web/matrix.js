// The matrix

const matrix = { cell: 1, left: 0, top: 0, image: null };

function layMatrix() {
  const { queries, keys, weights } = view;
  const room = Math.max(byId("matrix-frame").clientWidth, 200) - 2;
  const labelled = Math.max(queries.length, keys.length) <= VERY_LONG;
  const context = byId("matrix").getContext("2d");
  const fontSize = 13;
  context.font = labelFont(fontSize);
  const widest = (words) => Math.min(130, Math.max(0, ...words.map((word) => context.measureText(word).width)));
  const slope = labelled ? widest(keys) * 0.72 + 16 : 0;
  matrix.left = labelled ? Math.min(widest(queries), room * 0.3) + 14 : 0;
  matrix.top = labelled ? slope : 0;
  const fit = (room - matrix.left - slope * 0.8) / Math.max(keys.length, 1);
  matrix.cell = labelled ? Math.max(13, Math.min(68, fit, Math.max(24, 620 / queries.length))) : Math.max(0.5, fit);
  matrix.fontSize = Math.min(fontSize, matrix.cell * 0.66);
  matrix.labelled = labelled;
  matrix.width = matrix.left + keys.length * matrix.cell + slope * 0.8 + 2;
  matrix.height = matrix.top + queries.length * matrix.cell + 4;
  matrix.image = picture(weights, keys.length, byId("relative").checked ? view.peaks : view.peaks.map(() => 1));
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
      context.fillStyle = inkOn(Math.min(1, weight * gain(row)));
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
