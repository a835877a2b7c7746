"use strict";
const MOST_PIXELS = 16e6; // of a picture; browsers of phones have no larger canvas
const LONGEST = 16; // short sides of a picture, the rest is cut off, as in every command

const facts = JSON.parse(document.getElementById("imagenet_ddp").textContent);
const state = document.getElementById("state"), results = document.getElementById("results");
const more = document.getElementById("more");
const rows = new Map(); // item -> its row of the table to save
let round = 0; // of pictures, which ends when the answers are cleared

function bytes(id) {
  const text = atob(document.getElementById(id).textContent);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

function unpacked(id) {
  return new Response(new Blob([bytes(id)]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function moduleAddress(id) {
  return URL.createObjectURL(new Blob([await unpacked(id)], { type: "text/javascript" }));
}

async function load() {
  const ort = await import(await moduleAddress("runtime"));
  ort.env.wasm.numThreads = 1; // a page that is opened as a file has no memory that threads could share
  ort.env.wasm.wasmPaths = { mjs: await moduleAddress("loader") };
  ort.env.wasm.wasmBinary = await unpacked("wasm");
  const session = await ort.InferenceSession.create(bytes("model"), { executionProviders: ["wasm"] });
  return async (pixels, height, width) => {
    const found = await session.run({ images: new ort.Tensor("uint8", pixels, [1, 3, height, width]) });
    return { probabilities: found.probabilities.data, familiarity: found.familiarity && found.familiarity.data[0] };
  };
}

// Returns the pixels of a picture, colour by colour, as they are in the file: colour profiles are not applied.
async function decode(file) {
  const bitmap = await createImageBitmap(file, {
    colorSpaceConversion: "none", premultiplyAlpha: "none", imageOrientation: facts.exif_orientation ? "from-image" : "none",
  });
  const most = LONGEST * Math.min(bitmap.width, bitmap.height);
  const cut = { width: Math.min(bitmap.width, most), height: Math.min(bitmap.height, most) };
  const scale = Math.min(1, Math.sqrt(MOST_PIXELS / (cut.width * cut.height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.floor(cut.width * scale));
  canvas.height = Math.max(1, Math.floor(cut.height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  const left = Math.floor((bitmap.width - cut.width) / 2), top = Math.floor((bitmap.height - cut.height) / 2);
  context.drawImage(bitmap, left, top, cut.width, cut.height, 0, 0, canvas.width, canvas.height);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  bitmap.close();
  const size = canvas.width * canvas.height, pixels = new Uint8Array(3 * size);
  for (let i = 0; i < size; i++) {
    pixels[i] = data[4 * i];
    pixels[size + i] = data[4 * i + 1];
    pixels[2 * size + i] = data[4 * i + 2];
  }
  return [pixels, canvas.height, canvas.width];
}

function element(tag, text = "", properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
}

function percent(share, digits) {
  return `${(100 * share).toFixed(digits)} %`;
}

// Adds the answer to an item, in the words of predict, and returns its row of the table.
function answer(item, name, { probabilities, familiarity }) {
  const shares = Array.from(probabilities);
  if (!shares.every(Number.isFinite)) throw new Error("the model gives no number for it");
  const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 5);
  const hasKnown = familiarity !== undefined, isKnown = !hasKnown || familiarity >= facts.familiarity_threshold;
  const [first, second] = order.map((index) => `${facts.labels[index]} ${percent(shares[index], 0)}`);
  const isSure = isKnown && shares[order[0]] >= Number(results.dataset.sure);
  item.append(element("h2", isSure ? first : isKnown ? `Not sure: ${first} or ${second}` : "Unlike the training images"));
  if (!isKnown) item.append(element("p", "It shows probably none of the classes. The likeliest are:"));
  const list = element("ol");
  for (const index of order.filter((index, place) => !place || shares[index] >= 0.0005)) { // others would be 0.0 %
    const row = element("li");
    const share = shares[index];
    row.append(element("span", facts.labels[index]));
    row.append(element("span", percent(share, 1), { className: "share" }));
    row.append(element("meter", "", { value: share, title: facts.labels[index] }));
    list.append(row);
  }
  item.append(list);
  return [name, facts.labels[order[0]], shares[order[0]].toFixed(6), hasKnown ? (isKnown ? "yes" : "no") : "", ""];
}

// Returns the table to save, with the columns of predict and a row for each picture, in their order on the page. An apostrophe keeps a spreadsheet from running a name.
function table() {
  const cell = (text) => `"${text.replace(/^'*[=+\-@\t\r ]/, "'$&").replaceAll('"', '""')}"`;
  const lines = [["path", "class_1", "probability_1", "known", "error"], ...Array.from(results.children, (item) => rows.get(item))];
  return lines.filter(Boolean).map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

// Shows a file above the items that were there when it was dropped. Returns what to say of it.
async function show(file, earlier, classify) {
  const key = [file.name, file.size, file.lastModified].join("/");
  if (Array.from(results.children).some((each) => each.dataset.key === key)) return `${file.name} has its answer below.`;
  const item = element("li"), frame = element("div"), text = element("div");
  const picture = element("img", "", { alt: "", src: URL.createObjectURL(file) });
  picture.style.imageOrientation = facts.exif_orientation ? "from-image" : "none";
  frame.append(picture);
  text.append(element("p", file.name, { className: "name" }));
  item.append(frame, text);
  item.dataset.key = key;
  results.insertBefore(item, earlier);
  const refuse = (reason) => {
    text.append(element("p", reason));
    rows.set(item, [file.name, "", "", "", reason]);
    return "";
  };
  let pixels;
  try {
    pixels = await decode(file);
  } catch {
    frame.remove();
    return refuse("This browser cannot read the file as a picture. Use JPEG, PNG or WebP.");
  }
  try {
    rows.set(item, answer(text, file.name, await classify(...pixels)));
  } catch (error) {
    return refuse(`This picture could not be classified: ${error.message}`);
  }
  return "";
}

let queue = load().then(
  (classify) => { state.textContent = ""; return classify; },
  (error) => {
    state.textContent = `This browser cannot run the model (${error.message}). Open the file in a current Chrome, Edge, Firefox or Safari.`;
  },
);

// One picture after the other, because each takes the memory of a whole photograph.
function add(files) {
  const earlier = results.firstChild, mine = round;
  for (const file of files) {
    queue = queue.then(async (classify) => {
      if (!classify || mine !== round) return classify;
      state.textContent = `Looking at ${file.name} …`;
      await new Promise((done) => setTimeout(done)); // so that the line above is seen
      if (mine === round) state.textContent = await show(file, earlier, classify);
      more.hidden = !results.firstChild;
      return classify;
    });
  }
}

document.getElementById("clear").addEventListener("click", () => {
  round += 1;
  for (const picture of results.querySelectorAll("img")) URL.revokeObjectURL(picture.src);
  results.replaceChildren();
  rows.clear();
  state.textContent = "";
  more.hidden = true;
});

document.getElementById("save").addEventListener("click", () => {
  const address = URL.createObjectURL(new Blob(["\ufeff", table()], { type: "text/csv" }));
  element("a", "", { href: address, download: "answers.csv" }).click();
});

const drop = document.getElementById("drop"), input = document.getElementById("files");
input.addEventListener("change", () => { add(Array.from(input.files)); input.value = ""; });
document.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
document.addEventListener("dragleave", () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  add(Array.from(event.dataTransfer.files));
});
document.addEventListener("paste", (event) => add(Array.from(event.clipboardData.files)));
