"use strict";
// Sorting, searching and CSV. The page is complete without this script.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const plain = (element) => element.textContent.replace(/\s+/g, " ").trim();

// --- CSV -----------------------------------------------------------------------------------------

// A spreadsheet treats text that begins with one of these characters as a formula.
const cell = (text) => {
  const safe = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? "'" + text : text;
  return /[",\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
};

function download(name, rows) {
  const text = rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  const link = make("a", "", { download: name + ".csv" });
  link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  link.click();
  URL.revokeObjectURL(link.href);
}

const named = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 40);

// --- Tables --------------------------------------------------------------------------------------

const MANY_ROWS = 8;

function value(row, column) {
  const found = row.cells[column];
  const text = found.dataset.v ?? plain(found);
  const number = Number.parseFloat(text.replaceAll(",", "").replace("−", "-"));
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;  // cells without a number come last
}

function sort(table, header) {
  const down = header.getAttribute("aria-sort") === "ascending";
  const column = header.cellIndex, body = table.tBodies[0];
  for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column)));
  body.append(...(down ? rows.reverse() : rows));
}

function sortable(table) {
  for (const header of table.tHead ? table.tHead.rows[0].cells : []) {
    if (!plain(header) || header.matches(".picture")) continue;
    const button = make("button", "", { type: "button" });
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, header));
  }
}

function tools(table) {
  const bar = make("div", "", { class: "table-tools" });
  const caption = plain(table.caption);
  const button = make("button", "CSV", { type: "button", "aria-label": "CSV of " + caption });
  button.addEventListener("click", () => {
    download(named(caption), [...table.rows].map((row) => all("th, td", row).filter((part) => !part.matches(".picture")).map(plain)));
  });
  bar.append(button);
  if (table.tBodies[0].rows.length > MANY_ROWS && !table.matches(".overview")) {
    const field = make("input", "", { type: "search", placeholder: "search", "aria-label": "Search in " + caption });
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !plain(row).toLowerCase().includes(wanted);
    });
    bar.append(field);
  }
  (table.closest(".scroll") ?? table).after(bar);
}

for (const table of all("table.data")) {
  sortable(table);
  tools(table);
}

// --- Phenotypes ----------------------------------------------------------------------------------

const cards = all(".card");
const search = document.getElementById("search");
search?.addEventListener("input", () => {
  const wanted = search.value.toLowerCase();
  let hits = 0;
  for (const card of cards) {
    card.hidden = !`${card.textContent} ${card.dataset.words}`.toLowerCase().includes(wanted);
    hits += !card.hidden;
    for (const row of all(`[data-card="${card.id}"]`)) row.hidden = card.hidden;
  }
  document.getElementById("hits").textContent = wanted ? `${hits} of ${cards.length}` : "";
});

document.getElementById("codes-csv")?.addEventListener("click", () => {
  const rows = [["phenotype", "title", "mode", "code", "description", "share", "lift"]];
  for (const card of cards) {
    for (const list of all(".codes", card)) {
      for (const code of all("li", list)) {
        const text = code.lastElementChild, name = plain(text.querySelector("b"));
        const description = plain(text).slice(name.length).trim();
        rows.push([card.dataset.number, card.dataset.title, list.dataset.mode,
          ...[name, description].map((path) => path.replaceAll(" › ", "|")),
          code.dataset.s, code.dataset.l]);
      }
    }
  }
  download("phenotypes", rows);
});

const unfold = document.getElementById("unfold");
unfold?.addEventListener("click", () => {
  const open = unfold.getAttribute("aria-pressed") === "false";
  unfold.setAttribute("aria-pressed", String(open));
  for (const part of all(".card details")) part.open = open;
});

// --- The page ------------------------------------------------------------------------------------

for (const part of all(".tools")) part.hidden = false;

function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) {
    if (part.tagName === "DETAILS") part.open = true;
    part.hidden = false;
  }
}
addEventListener("hashchange", reveal);
reveal();

// Readers cannot unfold paper, so everything except the long lists of codes is printed.
let folded = [];
addEventListener("beforeprint", () => {
  folded = all("details:not([open])").filter((part) => !part.closest(".codes"));
  for (const part of folded) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of folded) part.open = false;
});
