"use strict";

for (const line of document.querySelectorAll("code.line")) {
  const text = line.textContent.trim(), button = Object.assign(document.createElement("button"), { textContent: "Copy" });
  button.addEventListener("click", () => navigator.clipboard.writeText(text).then(
    () => { button.textContent = "Copied"; }, () => getSelection().selectAllChildren(line),
  ));
  line.prepend(button);
}

// The choices below the pictures become a list for prepare=relabel. Moving or removing an image counts wherever it is
// shown. Keeping it counts in one list only, because a blurred photograph may stay and still be in the wrong class.
// The browser keeps them, under a digest of the page: opened from a folder, too, and until the page has other images.
const decisions = document.getElementById("decisions");
if (decisions) {
  const choices = Array.from(document.querySelectorAll("select"));
  const before = choices.map((each) => [each.value, "proposed" in each.dataset]);
  const clear = Object.assign(document.createElement("button"), { textContent: "Clear" });
  decisions.querySelector("button").after(clear);
  let digest = 0, isKept = true, made = []; // by a person, in this order: [place in choices, value]
  for (const letter of document.querySelector("main").innerHTML) digest = (31 * digest + letter.codePointAt(0)) | 0;
  const key = `imagenet_ddp.decisions.${digest}`;
  const count = () => {
    const paths = (isProposed) => choices.filter((each) => each.value && "proposed" in each.dataset === isProposed).map((each) => each.dataset.path);
    const decided = new Set(paths(false)), proposed = new Set(paths(true).filter((path) => !decided.has(path)));
    decisions.hidden = !decided.size && !proposed.size && !made.length;
    clear.hidden = !made.length;
    const where = isKept ? "kept in this browser" : "lost when this page is closed";
    const numbers = [`${decided.size} decided by you`, `${proposed.size} proposed`].filter((_, place) => [decided, proposed][place].size);
    decisions.firstChild.textContent = `${numbers.join(", ") || "0 decided"}${made.length ? `; ${where}` : ""}`;
  };
  const spread = (target) => {
    delete target.dataset.proposed;
    for (const other of choices.filter((each) => each !== target && each.dataset.path === target.dataset.path)) {
      const isOfOne = other.dataset.row === target.dataset.row;
      if (target.value === "keep" && ["keep", ""].includes(other.value) && !isOfOne) continue;
      const chosen = target.selectedOptions[0], isThere = Array.from(other.options).some((each) => each.value === chosen.value);
      if (!isThere) other.add(chosen.cloneNode(true));
      other.value = chosen.value;
      delete other.dataset.proposed;
    }
  };
  document.addEventListener("change", ({ target }) => {
    spread(target);
    made.push([choices.indexOf(target), target.value]);
    try { localStorage.setItem(key, JSON.stringify(made)); } catch { isKept = false; } // the browser may keep nothing
    count();
  });
  window.addEventListener("beforeunload", (event) => { if (made.length && !isKept) event.preventDefault(); });
  clear.addEventListener("click", () => {
    if (!confirm("Forget what you have chosen on this page?")) return;
    made = [];
    try { localStorage.removeItem(key); } catch { } // nothing was kept
    choices.forEach((each, place) => {
      const [value, isProposed] = before[place];
      each.value = value;
      each.toggleAttribute("data-proposed", isProposed);
    });
    count();
  });
  decisions.querySelector("button").addEventListener("click", () => {
    const rows = new Set(choices.map((each) => `${each.dataset.row},"${each.value.replaceAll('"', '""')}"\n`));
    const file = new Blob(["\ufeffpath,label,group,list,decision\n", ...rows], { type: "text/csv" });
    Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: "decisions.csv" }).click();
  });
  try { made = JSON.parse(localStorage.getItem(key)) || []; } catch { isKept = false; }
  for (const [place, value] of made) { choices[place].value = value; spread(choices[place]); }
  count();
}

// A picture is shown larger when it is chosen: its file, which is not a part of the page, where a copy as large as a
// screen would take twenty times the bytes of the small one.
{
  const large = document.body.appendChild(document.createElement("dialog"));
  const { folder } = document.querySelector("main").dataset;
  const view = large.appendChild(new Image()), below = large.appendChild(document.createElement("p"));
  let shown; // the frame of the small one
  const enlarge = (frame) => {
    const small = frame.firstElementChild, path = frame.parentNode.title;
    const say = (more) => { below.textContent = `${path}${more}`; };
    shown = frame;
    say("");
    view.onload = () => say(` · ${view.naturalWidth} × ${view.naturalHeight}`);
    view.onerror = () => {
      view.onload = view.onerror = null;
      view.src = small.src;
      say(": not larger, because the file is not where it was, or this browser cannot show it");
    };
    const file = path.startsWith("/") ? path : `${folder}/${path}`;
    view.src = frame.closest("#map-images") ? small.src : file.split("/").map(encodeURIComponent).join("/");
    if (!large.open) large.showModal();
  };
  large.addEventListener("click", () => large.close());
  large.addEventListener("keydown", ({ key }) => {
    const frames = Array.from(document.querySelectorAll("button.frame")).filter((each) => each.checkVisibility());
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (step) enlarge(frames.at((frames.indexOf(shown) + step) % frames.length));
  });
  for (const frame of document.querySelectorAll("button.frame")) frame.addEventListener("click", () => enlarge(frame));
}

// Sort a table by the column whose heading is clicked.

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

// Return the value by which a cell is sorted: its number if it has one, else its text. An empty number sorts last.
function cellValue(row, column) {
  const cell = row.cells[column];
  if (!cell.classList.contains("number")) return cell.textContent.trim();
  return cell.dataset.value === "" ? NaN : Number(cell.dataset.value);
}

function compare(a, b, sign) {
  if (typeof a === "string") return sign * collator.compare(a, b);
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return sign * (a - b);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const isAscending = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const rows = Array.from(body.rows, (row) => [cellValue(row, head.cellIndex), row]);
    rows.sort((a, b) => compare(a[0], b[0], isAscending ? 1 : -1));
    body.append(...rows.map(([, row]) => row));
  });
}

// The map of images: dots on a canvas; the dot nearest to the pointer shows its picture, a tile of one sheet.
for (const map of document.querySelectorAll(".map")) {
  const points = JSON.parse(map.dataset.points), canvas = map.querySelector(".plane"), pen = canvas.getContext("2d");
  const frame = map.querySelector(".frame"), caption = map.querySelector(".caption"), legend = map.nextElementSibling;
  const { sheet, columns, tile, pictures } = map.dataset, MARGIN = 10;
  const buttons = Array.from(legend.querySelectorAll("button"));
  // neighbours in the circle of hues differ in lightness, too
  const color = (number) => `oklch(${[52, 65, 78][number % 3]}% 0.16 ${number / buttons.length * 360})`;
  let chosen = -1, current = -1;
  const names = Object.fromEntries(buttons.map((button) => [button.dataset.class, button.textContent]));
  for (const button of buttons) button.firstElementChild.style.background = color(Number(button.dataset.class));
  const tiles = new Image();
  tiles.addEventListener("load", picture); // a large sheet is decoded after the first dot is pointed at
  tiles.src = sheet;

  const place = (point) => [MARGIN + point[0] / 1000 * (canvas.clientWidth - 2 * MARGIN), canvas.clientHeight - MARGIN - point[1] / 1000 * (canvas.clientHeight - 2 * MARGIN)];
  function draw() {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    pen.scale(ratio, ratio);
    const radius = points.length > 3000 ? 2 : 3.5;
    points.forEach((point, number) => {
      const [x, y] = place(point);
      pen.globalAlpha = chosen < 0 || chosen === point[2] ? 0.85 : 0.08;
      pen.fillStyle = color(point[2]);
      pen.beginPath();
      pen.arc(x, y, number === current ? 2 * radius : radius, 0, 7);
      pen.fill();
      if (number === current) { pen.globalAlpha = 1; pen.strokeStyle = getComputedStyle(map).color; pen.lineWidth = 2; pen.stroke(); }
    });
  }
  function picture() {
    const view = frame.getContext("2d");
    view.clearRect(0, 0, tile, tile);
    if (current < 0 || current >= pictures) return;
    view.drawImage(tiles, (current % columns) * tile, Math.floor(current / columns) * tile, tile, tile, 0, 0, tile, tile);
  }
  function show(event) {
    const box = canvas.getBoundingClientRect();
    let best = Infinity; // however far: half of a map may be empty
    let found = -1;
    points.forEach((point, number) => {
      if (chosen >= 0 && chosen !== point[2]) return;
      const [x, y] = place(point);
      const distance = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
      if (distance < best) [best, found] = [distance, number];
    });
    if (found < 0 || found === current) return;
    current = found;
    picture();
    caption.textContent = `${names[points[found][2]]}: ${points[found][3]}`;
    draw();
  }
  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerdown", show);
  legend.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    chosen = chosen === Number(button.dataset.class) ? -1 : Number(button.dataset.class);
    for (const each of buttons) each.setAttribute("aria-pressed", String(Number(each.dataset.class) === chosen));
    draw();
  });
  new ResizeObserver(draw).observe(canvas);
}
