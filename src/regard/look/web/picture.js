// The offline page of a picture: its data lie in the page itself.

const byId = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const sight = JSON.parse(byId("sight").textContent);

byId("title").textContent = sight.title;
for (const [name, value] of Object.entries({ model: sight.model, ...sight.meta })) {
  const fact = document.createElement("li");
  fact.append(`${name} `, Object.assign(document.createElement("b"), { textContent: value }));
  byId("facts").append(fact);
}
new PictureView(document.body, sight, { weightsOf: unpack, prepare, percent });
