// Tables: sort by a column, search, save as CSV. Sections: opened by links that lead to them, and for print. No library.
(() => {
  "use strict";
  const SEARCH_FROM = 10, FORMULA = /^\s*[=+\-@\t\r]/;

  for (const table of document.querySelectorAll("main table")) {
    const body = table.tBodies[0], head = table.tHead && table.tHead.rows[0];
    if (body && head && body.rows.length) tend(table, body, head);
  }

  // A name that is shown in short says the whole one; it is written once.
  for (const full of document.querySelectorAll("summary + .full")) full.previousElementSibling.title ||= full.textContent;

  function tend(table, body, head) {
    const rows = [...body.rows], order = new Map(rows.map((row, at) => [row, at]));
    if (rows.length > 1) [...head.cells].forEach((cell, column) => { if (cell.tagName === "TH") sortable(cell, column); });
    tools();

    function sortable(cell, column) {
      const button = document.createElement("button");
      button.type = "button"; button.className = "sort";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const now = cell.getAttribute("aria-sort"), number = cell.classList.contains("number");
        // Numbers begin with the largest, words with A; the third time all stand as they did.
        const ways = number ? ["descending", "ascending"] : ["ascending", "descending"];
        const next = now === null ? ways[0] : now === ways[0] ? ways[1] : null;
        for (const other of head.cells) other.removeAttribute("aria-sort");
        if (next) cell.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1, keys = new Map(rows.map(row => [row, key(row.cells[column], number)]));
        const sorted = [...rows].sort((a, b) => !next ? order.get(a) - order.get(b) : compare(keys.get(a), keys.get(b), sign) || order.get(a) - order.get(b));
        body.append(...sorted);
      });
    }

    function tools() {
      const box = document.createElement("span");
      box.className = "table-tools";
      if (rows.length >= SEARCH_FROM) {
        const search = document.createElement("input"), found = document.createElement("span");
        search.type = "search"; search.placeholder = "Search"; search.setAttribute("aria-label", `Search: ${name()}`);
        found.setAttribute("role", "status");
        search.addEventListener("input", () => {
          const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
          let count = 0;
          for (const row of rows) {
            const text = row.textContent.toLowerCase();
            row.hidden = !words.every(word => text.includes(word));
            count += !row.hidden;
          }
          found.textContent = words.length ? `${count} of ${rows.length} rows` : "";
        });
        box.append(search, found);
      }
      const save = document.createElement("button");
      save.type = "button"; save.textContent = "CSV"; save.title = "Save the rows shown as CSV";
      save.setAttribute("aria-label", `Save as CSV: ${name()}`);
      save.addEventListener("click", () => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
        link.download = `${name().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "table"}.csv`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      });
      box.append(save);
      const caption = table.caption;
      if (caption) caption.append(box); else table.before(box);
    }

    function name() {
      return (table.dataset.name || "table").trim();
    }

    function csv() {
      const lines = [[...head.cells].map(cell => cell.textContent.trim())];
      for (const row of body.rows) if (!row.hidden) lines.push([...row.cells].map((cell, column) => plain(cell, head.cells[column])));
      return lines.map(line => line.map(quoted).join(",")).join("\n") + "\n";
    }
  }

  // A cell's number: as the page says it exactly, else as it is written; NaN where there is none.
  function numberOf(cell) {
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim().replace(/[\s\u202f\u00a0,]/g, "").replace(/^[<>~≥≤]/, "").replace("−", "-");
    return /^-?[\d.]+(e[-+]?\d+)?/i.test(text) ? parseFloat(text) : NaN;
  }

  function key(cell, number) {
    if (!cell) return null;
    if (number || cell.classList.contains("number")) {
      const value = numberOf(cell);
      return Number.isNaN(value) ? null : value;
    }
    return cell.classList.contains("unknown") ? null : textOf(cell);
  }

  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);  // what is not known comes last either way
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  // A cell in full: a long name unfolded, a size in bytes, nothing where nothing is known.
  function plain(cell, head) {
    if (cell.classList.contains("unknown")) return "";
    if (cell.dataset.value !== undefined) return cell.dataset.value;
    const text = textOf(cell), number = head && head.classList.contains("number") && text.replace(/[\s\u202f\u00a0,]/g, "");
    return number && /^-?[\d.]+$/.test(number) ? number : text;
  }

  function textOf(cell) {
    const full = cell.querySelector(".full");
    return (full || cell).textContent.trim();
  }

  function quoted(text) {
    const safe = FORMULA.test(text) && !/^-?[\d.]+$/.test(text) ? `'${text}` : text;  // no spreadsheet takes a name for a formula
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function reveal() {
    const id = decodeURIComponent(location.hash.slice(1)), to = id && document.getElementById(id);
    if (!to) return;
    for (let fold = to.closest("details") || to.querySelector("details.part"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    to.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  document.addEventListener("click", event => {
    const link = event.target.closest && event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  window.addEventListener("beforeprint", () => document.querySelectorAll("details.part").forEach(fold => { fold.open = true; }));
  reveal();
})();
