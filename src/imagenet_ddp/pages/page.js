// Sort a table by the column whose heading is clicked.
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
