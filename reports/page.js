// Comfort only: without this script every figure and table is there, the cost views as <details>.
"use strict";

// One cost view at a time, the same for all tasks.
const groups = [...document.querySelectorAll(".views")];
const showView = (name) => {
  for (const group of groups)
    for (const view of group.querySelectorAll("details[data-view]")) view.open = view.dataset.view === name;
  for (const radio of document.querySelectorAll(".switch input")) radio.checked = radio.value === name;
};
groups.forEach((group, index) => {
  const choice = document.createElement("fieldset");
  choice.className = "switch";
  choice.append(Object.assign(document.createElement("legend"), { textContent: "Cost view" }));
  for (const view of group.querySelectorAll("details[data-view]")) {
    const radio = Object.assign(document.createElement("input"), {
      type: "radio", name: `view-${index}`, value: view.dataset.view, checked: view.open,
    });
    radio.addEventListener("change", () => showView(radio.value));
    const label = document.createElement("label");
    label.append(radio, view.dataset.view);
    choice.append(label);
    view.querySelector("summary").tabIndex = -1;
  }
  group.classList.add("live");
  group.prepend(choice);
});
// Paper has no switch: print every view.
addEventListener("beforeprint", () => {
  for (const view of document.querySelectorAll(".views details[data-view]")) view.dataset.was = view.open ? "1" : "", (view.open = true);
});
addEventListener("afterprint", () => {
  for (const view of document.querySelectorAll(".views details[data-view]")) view.open = view.dataset.was === "1";
});

// Sort by a column: by value where a cell has one, missing values last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numeric = head.classList.contains("number");
      const key = (row) => {
        const value = row.cells[column].dataset.value ?? (numeric ? "" : row.cells[column].textContent);
        return numeric ? (value === "" ? NaN : Number(value)) : value;
      };
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (numeric && (Number.isNaN(x) || Number.isNaN(y))) return Number.isNaN(x) - Number.isNaN(y);
        return (numeric ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}

// Pointing at an arm in a figure dims the others there.
for (const svg of document.querySelectorAll("svg.figure")) {
  const parts = [...svg.querySelectorAll("[data-arm]")];
  const light = (arm) => {
    svg.classList.toggle("lit", arm !== undefined);
    for (const part of parts) part.classList.toggle("on", part.dataset.arm === arm);
  };
  svg.addEventListener("pointerover", (event) => light(event.target.closest("[data-arm]")?.dataset.arm));
  svg.addEventListener("pointerleave", () => light(undefined));
}
