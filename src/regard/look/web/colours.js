// One hue, lightness in even steps: readable with any kind of colour vision, and in print.
// Weight 1 is darkest on light pages and brightest on dark ones.

const RAMPS = {
  light: ["#f6f8fc", "#c3d5f0", "#7ea5dc", "#3e6cb9", "#172b5f"],
  dark: ["#171d29", "#1f3d6d", "#3a74bd", "#86b8ec", "#f1f7ff"],
};
const dark = matchMedia("(prefers-color-scheme: dark)");
let ramp, pixels;

function mix(stops) {
  const rgb = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (rgb.length - 1);
    const low = Math.min(Math.floor(place), rgb.length - 2);
    return rgb[low].map((from, channel) => Math.round(from + (rgb[low + 1][channel] - from) * (place - low)));
  });
}

function useTheme() {
  ramp = mix(dark.matches ? RAMPS.dark : RAMPS.light);
  pixels = new Uint32Array(ramp.map(([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0));
}
useTheme();
dark.addEventListener("change", useTheme);

export const isDark = () => dark.matches;
export const onTheme = (action) => dark.addEventListener("change", action);
const level = (weight) => Math.max(0, Math.min(255, Math.round(weight * 255)));
export const colour = (weight) => `rgb(${ramp[level(weight)].join(" ")})`;
export const inkOn = (weight) => ((dark.matches ? weight > 0.6 : weight < 0.62) ? "#1b2233" : "#ffffff");
export const lineColour = () => colour(dark.matches ? 0.75 : 0.72);
export const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const font = (size, weight = 400) => `${weight} ${size}px ui-sans-serif, system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif`;

/** A canvas with one pixel for each cell; `peak(row)` is the weight that gets the full colour. */
export function bitmap({ weights, rows, columns }, peak) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.max(columns, 1), Math.max(rows, 1)];
  const image = new ImageData(canvas.width, canvas.height);
  const target = new Uint32Array(image.data.buffer);
  for (let row = 0; row < rows; row++) {
    const gain = 1 / (peak(row) || 1);
    for (let cell = row * columns; cell < (row + 1) * columns; cell++) target[cell] = pixels[level(weights[cell] * gain)];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Size a canvas for the screen's density and return its context in CSS pixels. */
export function prepare(canvas, width, height) {
  const density = Math.min(devicePixelRatio || 1, 8192 / Math.max(width, height, 1));
  const [w, h] = [Math.ceil(width * density), Math.ceil(height * density)];
  if (canvas.width !== w || canvas.height !== h || !canvas.style.width) {
    [canvas.width, canvas.height] = [w, h];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  }
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Draw the colours of the weights from 0 to 1 on a canvas of 256 x 1 pixels. */
export function drawScale(canvas) {
  const scale = { weights: Float32Array.from({ length: 256 }, (_, index) => index / 255), rows: 1, columns: 256 };
  canvas.getContext("2d").drawImage(bitmap(scale, () => 1), 0, 0);
}
