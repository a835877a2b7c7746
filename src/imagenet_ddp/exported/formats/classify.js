"use strict";
const MOST_PIXELS = 16e6; // of a picture; browsers of phones have no larger canvas
const LONGEST = 16; // short sides of a picture, the rest is cut off, as in every command

const facts = JSON.parse(document.getElementById("imagenet_ddp").textContent);
const state = document.getElementById("state"), results = document.getElementById("results");

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

// The likelihood scale of the IPCC (2010).
function inWords(share) {
  const steps = [[0.99, "virtually certain"], [0.9, "very likely"], [0.66, "likely"], [0.33, "about as likely as not"], [0.1, "unlikely"]];
  const step = steps.find(([least]) => share >= least);
  return step ? step[1] : "very unlikely";
}

function element(tag, text = "", properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
}

function answer(item, { probabilities, familiarity }) {
  const shares = Array.from(probabilities);
  if (!shares.every(Number.isFinite)) throw new Error("the model gives no number for it");
  const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 5);
  const isKnown = familiarity === undefined || familiarity >= facts.familiarity_threshold;
  const first = `${facts.labels[order[0]]}, ${inWords(shares[order[0]])}`;
  item.append(element("h2", isKnown ? first : "Not sure"));
  if (!isKnown) item.append(element("p", "This picture is unlike those that the model was trained on. It would say:"));
  const list = element("ol");
  for (const index of order) {
    const row = element("li");
    const share = shares[index];
    row.append(element("span", facts.labels[index]));
    row.append(element("span", `${(100 * share).toFixed(1)} %`, { className: "share" }));
    row.append(element("meter", "", { value: share, title: facts.labels[index] }));
    list.append(row);
  }
  item.append(list);
}

// Shows a file above the items that were there when it was dropped.
async function show(file, earlier, classify) {
  const item = element("li"), frame = element("div"), text = element("div");
  const picture = element("img", "", { alt: "", src: URL.createObjectURL(file) });
  picture.style.imageOrientation = facts.exif_orientation ? "from-image" : "none";
  frame.append(picture);
  text.append(element("p", file.name, { className: "name" }));
  item.append(frame, text);
  results.insertBefore(item, earlier);
  let pixels;
  try {
    pixels = await decode(file);
  } catch {
    frame.remove();
    text.append(element("p", "This browser cannot read the file as a picture. Use JPEG, PNG or WebP."));
    return;
  }
  try {
    answer(text, await classify(...pixels));
  } catch (error) {
    text.append(element("p", `This picture could not be classified: ${error.message}`));
  }
}

let queue = load().then(
  (classify) => { state.textContent = ""; return classify; },
  (error) => {
    state.textContent = `This browser cannot run the model (${error.message}). Open the file in a current Chrome, Edge, Firefox or Safari.`;
  },
);

// One picture after the other, because each takes the memory of a whole photograph.
function add(files) {
  const earlier = results.firstChild;
  for (const file of files) {
    queue = queue.then(async (classify) => {
      if (!classify) return classify;
      state.textContent = `Looking at ${file.name} …`;
      await new Promise((done) => setTimeout(done)); // so that the line above is seen
      await show(file, earlier, classify);
      state.textContent = "";
      return classify;
    });
  }
}

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
