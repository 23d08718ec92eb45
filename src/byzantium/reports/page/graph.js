// -- the graph of a training without a server -----------------------------------------------------

/** An element of a drawing. */
function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The graph in words and as a drawing: who attacks, and how much of each edge was kept. */
function graph({ graph: own, n, q }) {
  if (!own) return [];
  const words = make("p", { class: "faint" }, `${own.text}.`);
  if (!own.places.length) return [words, note("It has too many edges to be drawn.")];
  const known = own.kept.some((share) => share !== null);
  const says = known
    ? "The graph. The less of an edge honest nodes kept, compared with plain gossip, the thinner and the " +
      "more orange it is: the mean over the rounds"
    : "The graph. This run did not record how much of each edge honest nodes kept (--record weights)";
  const label = `a graph of ${n} nodes, of which ${q} attack`;
  const drawing = shape("svg", { viewBox: "-112 -112 224 224", role: "img", "aria-label": label },
    ...own.edges.map((ends, k) => edge(ends, own.kept[k], own, known)),
    ...own.places.map((at, k) => node(at, k, k >= n - q, sizeIn(own))));
  return [make("figure", { class: "graph" }, make("figcaption", null, says), drawing, key(known, q)), words];
}

/** How large nodes are drawn, such that they do not touch. */
function sizeIn({ places }) {
  const apart = places.flatMap(([x, y], k) => places.slice(k + 1).map(([u, v]) => Math.hypot(x - u, y - v)));
  return Math.min(7, Math.max(2, 46 * apart.reduce((least, one) => Math.min(least, one), 1)));
}

/** The width of the edges of which all is kept; thinner where there are many. */
const widthIn = ({ edges }) => Math.min(2.2, Math.max(0.6, 18 / Math.sqrt(edges.length)));

/** The color of an edge, and its width: what was not recorded is dotted. */
function ink(kept, width) {
  if (kept === null) return "stroke: var(--faint); stroke-width: 0.8; stroke-dasharray: 1 2.5";
  const color = `color-mix(in oklab, var(--faint) ${(100 * kept).toFixed(0)}%, var(--${palette.attacker}))`;
  return `stroke: ${color}; stroke-width: ${(width * (0.25 + 0.75 * kept)).toFixed(2)}`;
}

function edge([i, j], kept, own, known) {
  const [[x1, y1], [x2, y2]] = [own.places[i], own.places[j]].map((at) => at.map((x) => 100 * x));
  const share = kept === null ? "not recorded" : `${(100 * kept).toFixed(0)} % kept`;
  return shape("line", { x1, y1, x2, y2, style: ink(known ? kept : 1, widthIn(own)), class: "edge" },
    shape("title", {}, `${i} to ${j}: ${share}`));
}

/** An honest node is a disc, an attacker a diamond. */
function node([x, y], k, bad, size) {
  const place = `translate(${(100 * x).toFixed(1)} ${(100 * y).toFixed(1)})`;
  const who = shape("title", {}, `${bad ? "attacker" : "node"} ${k}`);
  const side = 0.9 * size;
  const mark = bad
    ? shape("rect", { x: -side, y: -side, width: 2 * side, height: 2 * side, transform: "rotate(45)" })
    : shape("circle", { r: size });
  mark.style.fill = `var(--${bad ? palette.attacker : palette.honest})`;
  const text = size < 3 ? [] : [shape("text", { "font-size": 0.95 * size }, k)];
  return shape("g", { transform: place, class: bad ? "bad" : "honest" }, mark, ...text, who);
}

/** What the marks and the lines mean. */
function key(known, q) {
  const shares = known ? [[1, "kept as in plain gossip"], [0.5, "half of it"], [0, "nothing"]] : [];
  const small = { viewBox: "-4 -4 8 8", "aria-hidden": "true" };
  const entries = [["honest", node([0, 0], "", false, 2.9)]];
  if (q) entries.push(["attacker", node([0, 0], "", true, 2.9)]);
  for (const [share, text] of shares) {
    entries.push([text, shape("line", { x1: -4, y1: 0, x2: 4, y2: 0, style: ink(share, 2.2) })]);
  }
  return make("div", { class: "key" }, entries.map(([text, mark]) =>
    make("span", null, shape("svg", small, mark), text)));
}

