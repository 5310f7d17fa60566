// How the offline page finds the view of a kind of axis: every module in axes/ registers one, and the page has only the
// modules that its report needs.

const views = new Map();

/**
 * `markup` is the content of the page's main element, `layout` its class; `hasScale` if the page needs the scale of
 * colours. `open(root, report, weightsOf)` shows a report; `weightsOf(number)` gives the bytes of a panel, all heads one
 * after another, row by row.
 */
export function registerView(kind, { markup, layout = "", hasScale = false, open }) {
  views.set(kind, { markup, layout, hasScale, open });
}

export const viewOf = (kind) => views.get(kind);
