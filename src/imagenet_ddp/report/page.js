// Sort tables, filter lists by class, and show whole galleries. Without JavaScript, the page shows everything unsorted.
"use strict";

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

for (const input of document.querySelectorAll("input[data-filter]")) {
  const list = document.getElementById(input.dataset.filter);
  const items = Array.from(list.children, (item) => [(item.dataset.key || item.textContent).toLowerCase(), item]);
  const count = input.closest(".tools").querySelector("output");
  const more = document.querySelector(`button[data-more="${list.id}"]`);
  input.closest(".tools").hidden = false;
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const [key, item] of items) {
      item.hidden = !key.includes(wanted);
      shown += !item.hidden;
    }
    list.classList.toggle("short", !wanted && more !== null && !more.hidden);
    count.textContent = wanted ? `${shown} of ${items.length}` : "";
  });
}

for (const button of document.querySelectorAll("button[data-more]")) {
  const list = document.getElementById(button.dataset.more);
  list.classList.add("short");
  button.hidden = false;
  button.addEventListener("click", () => {
    list.classList.remove("short");
    button.hidden = true;
    list.children[24].querySelector("a, .frame").focus();
  });
}
