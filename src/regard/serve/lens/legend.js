// The places of the page that explain the colours.

import { drawScale, isDark } from "./look/colours.js";

export function drawLegends() {
  for (const place of document.querySelectorAll("[data-legend]")) {
    const canvas = place.querySelector("canvas") || Object.assign(document.createElement("canvas"), { width: 256, height: 1 });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", isDark() ? "Colour scale: dark is 0, bright is 1" : "Colour scale: light is 0, dark is 1");
    drawScale(canvas);
    if (!canvas.isConnected) place.replaceChildren(place.dataset.legend || "weight 0", canvas, "1");
  }
}
