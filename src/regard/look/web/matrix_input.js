// Mouse, touch and keyboard on a Matrix: pointing and holding, and, where it can be zoomed, zooming and moving.

import { within } from "./dom.js";
import { NOTHING } from "./pointing.js";

const DRAG = 5; // pixels a pointer may move before it drags
const ZOOMS = { "+": (matrix) => matrix.zoom(1.6), "=": (matrix) => matrix.zoom(1.6), "-": (matrix) => matrix.zoom(1 / 1.6), 0: (matrix) => matrix.whole() };

/** Point with the mouse and the arrow keys, hold with a click or Enter. */
export function listenToPointing(matrix) {
  const { canvas, pointing } = matrix;
  canvas.addEventListener("pointermove", (event) => { if (matrix.map && !event.buttons) pointing.look(matrix.under(event)); });
  canvas.addEventListener("pointerleave", (event) => { if (matrix.map && !event.buttons) pointing.look(NOTHING); });
  canvas.addEventListener("click", (event) => { if (matrix.map && !matrix.dragged) pointing.hold(matrix.under(event)); });
  canvas.addEventListener("keydown", (event) => { if (matrix.map) type(matrix, event); });
}

/** Zoom with the wheel and with two fingers, and move what is zoomed by dragging it. */
export function listenToZooming(matrix) {
  const { canvas } = matrix;
  const down = new Map(); // pointers on the canvas, by their id
  canvas.addEventListener("pointerdown", (event) => {
    if (!matrix.map) return;
    down.set(event.pointerId, { x: event.clientX, y: event.clientY, fromX: event.clientX, fromY: event.clientY });
    matrix.dragged = false;
  });
  canvas.addEventListener("pointermove", (event) => {
    const finger = down.get(event.pointerId);
    if (!matrix.map || !finger) return;
    if (down.size === 2) pinch(matrix, down, event);
    else if (Math.hypot(event.clientX - finger.fromX, event.clientY - finger.fromY) > DRAG || matrix.dragged) {
      if (!matrix.dragged) canvas.setPointerCapture(event.pointerId);
      matrix.dragged = true;
      matrix.pan(finger.x - event.clientX, finger.y - event.clientY);
    }
    [finger.x, finger.y] = [event.clientX, event.clientY];
    if (down.size === 2) matrix.dragged = true;
  });
  const lift = (event) => down.delete(event.pointerId);
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("wheel", (event) => { if (matrix.map) turn(matrix, event); }, { passive: false });
}

function pinch(matrix, down, event) {
  const [a, b] = [...down.values()];
  const moved = down.get(event.pointerId);
  const still = moved === a ? b : a;
  const before = Math.hypot(moved.x - still.x, moved.y - still.y);
  const after = Math.hypot(event.clientX - still.x, event.clientY - still.y);
  const box = matrix.canvas.getBoundingClientRect();
  const [x, y] = [(event.clientX + still.x) / 2, (event.clientY + still.y) / 2];
  matrix.zoom(after / Math.max(before, 1), x - box.left - matrix.left, y - box.top - matrix.top);
}

/** Ctrl and the wheel zoom; the wheel alone moves a zoomed map, and scrolls the page where the map ends. */
function turn(matrix, event) {
  const box = matrix.canvas.getBoundingClientRect();
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    matrix.zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left - matrix.left, event.clientY - box.top - matrix.top);
  } else if (matrix.pan(event.shiftKey ? event.deltaY : event.deltaX, event.shiftKey ? 0 : event.deltaY)) event.preventDefault();
}

function type(matrix, event) {
  const { pointing, map } = matrix;
  const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [0, 0];
  if (down || right) {
    const { row, column } = pointing.place;
    const started = row !== null && column !== null;
    const next = started
      ? { row: within(row + down, 0, map.rows - 1), column: within(column + right, 0, map.columns - 1) }
      : { row: row ?? 0, column: column ?? 0 };
    pointing.move(next);
    matrix.reveal(next);
  } else if (matrix.zoomable && event.key in ZOOMS) ZOOMS[event.key](matrix);
  else if (event.key === "Enter") pointing.hold(pointing.place);
  else return;
  event.preventDefault();
}
