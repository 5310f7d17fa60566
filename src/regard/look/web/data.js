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
const inkOn = (weight) => (dark.matches ? weight > 0.6 : weight < 0.62) ? "#1b2233" : "#ffffff";
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
  const letters = atob(base64);
  const packed = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) packed[at] = letters.charCodeAt(at);
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
