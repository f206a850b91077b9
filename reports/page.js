// Comfort only: without this script every figure and table is there, tasks and cost views as <details>.
"use strict";

const $ = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const controls = document.getElementById("controls");
const svgs = $("svg.figure").filter((svg) => !svg.closest("#coordinates")); // arms there are axes of a model
const armNames = new Map($("#arms input").map((input) => [input.value, input.dataset.name]));
const armOf = new Map([...armNames].map(([index, name]) => [name, index]));

// ---------------------------------------------------------------- state: one object, in the address behind #
const start = { task: "", size: "", view: "total", metric: "", seeds: "1", off: "" };
const state = { ...start };
const readHash = () => {
  if (!location.hash.includes("=")) return;
  const given = new URLSearchParams(location.hash.slice(1));
  for (const key of Object.keys(start)) state[key] = given.get(key) ?? start[key];
  for (const key of ["task", "size", "view"]) // what this page does not have would hide everything
    if (!$(`[data-${key}]`).some((block) => block.dataset[key] === state[key])) state[key] = start[key];
};
const writeHash = () => {
  const told = Object.entries(state).filter(([key, value]) => value !== start[key]);
  const hash = told.length ? `#${new URLSearchParams(told)}` : location.hash.includes("=") ? "#first" : location.hash;
  if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname);
};
const off = () => new Set(state.off.split(".").filter(Boolean));

const show = () => {
  const hidden = off();
  for (const view of $("details[data-view]")) view.open = view.dataset.view === state.view;
  for (const block of $("[data-task]")) {
    block.hidden = state.task !== "" && block.dataset.task !== state.task;
    if (state.task && !block.hidden && block.matches("details.of-task")) block.open = true;
  }
  for (const block of $("[data-size]"))
    block.classList.toggle("other-size", state.size !== "" && block.dataset.size !== state.size);
  document.body.dataset.metric = state.metric;
  document.body.classList.toggle("no-seeds", state.seeds === "0");
  for (const svg of svgs) for (const part of $("[data-arm]", svg)) part.classList.toggle("off", hidden.has(part.dataset.arm));
  for (const item of $(".key button[data-arm]")) item.setAttribute("aria-pressed", String(!hidden.has(item.dataset.arm)));
  for (const input of $("#arms input")) input.checked = !hidden.has(input.value);
  for (const table of $("table.arms")) filter(table);
  for (const input of $("#controls [name]"))
    if (input.type === "radio") input.checked = input.value === state[input.name];
    else if (input.type === "checkbox") input.checked = state[input.name] === "1";
    else input.value = state[input.name];
};
const change = (key, value) => {
  state[key] = value;
  show();
  writeHash();
};
const toggle = (arm) => {
  const hidden = off();
  if (!hidden.delete(arm)) hidden.add(arm);
  change("off", [...hidden].join("."));
};
controls.hidden = false;
controls.addEventListener("change", ({ target }) => {
  if (target.closest("#arms")) toggle(target.value);
  else change(target.name, target.type === "checkbox" ? (target.checked ? "1" : "0") : target.value);
});
controls.addEventListener("input", ({ target }) => {
  if (target.id !== "find-arm") return;
  const wanted = target.value.toLowerCase();
  for (const item of $("#arms li")) item.hidden = !item.textContent.toLowerCase().includes(wanted);
});
controls.addEventListener("click", ({ target }) => {
  if (target.id === "all-arms") change("off", "");
  if (target.id === "no-arms") change("off", [...armNames.keys()].join("."));
  if (target.id === "start-again") Object.assign(state, start), show(), writeHash();
});
for (const group of $(".views")) {
  group.classList.add("live");
  for (const summary of $("details[data-view] > summary", group)) summary.tabIndex = -1;
}
// Paper has no switch: print every view and task.
const folded = "details[data-view], details.of-task";
addEventListener("beforeprint", () => {
  for (const part of $(folded)) (part.dataset.was = part.open ? "1" : ""), (part.open = true);
});
addEventListener("afterprint", () => {
  for (const part of $(folded)) part.open = part.dataset.was === "1";
});

// ---------------------------------------------------------------- tables: sort by value, missing last; filter by words
const filter = (table) => {
  const hidden = off();
  const words = (table.filterInput?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  let left = 0;
  for (const row of table.tBodies[0].rows) {
    row.searched ??= row.textContent.toLowerCase();
    const arm = armOf.get(row.cells[0].dataset.value);
    row.hidden = hidden.has(arm) || !words.every((word) => row.searched.includes(word));
    left += !row.hidden;
  }
  if (table.filterCount) table.filterCount.textContent = `${left} of ${table.tBodies[0].rows.length} rows`;
};
for (const table of $("table.sortable")) {
  if (table.tBodies[0].rows.length > 5) {
    const label = `Filter rows: ${table.parentElement.getAttribute("aria-label")}`;
    table.filterInput = make("input", { type: "search", placeholder: "filter rows", ariaLabel: label });
    table.filterCount = make("output", {});
    table.filterInput.addEventListener("input", () => filter(table));
    table.parentElement.before(make("p", { className: "filter" }, table.filterInput, table.filterCount));
  }
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
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

// ---------------------------------------------------------------- figures: highlight, values, keys, downloads
const light = (svg, arm) => {
  svg.classList.toggle("lit", arm !== undefined);
  for (const part of $("[data-arm]", svg)) part.classList.toggle("on", part.dataset.arm === arm);
};
const tip = document.body.appendChild(make("div", { id: "tip", role: "status", hidden: true }));
const digits = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(3) : String(Number(value.toPrecision(5))));

// Every marker that lies in a plot, with the values that its place stands for.
const points = (svg) =>
  (svg.points ??= JSON.parse(svg.dataset.axes).flatMap((axes) => {
    const inverse = ([low, high, from, to, log], at) => {
      const share = (at - from) / (to - from);
      return log ? low * (high / low) ** share : low + (high - low) * share;
    };
    const inside = ([, , from, to], at) => at >= Math.min(from, to) - 0.5 && at <= Math.max(from, to) + 0.5;
    return $("[data-arm] use", svg)
      .map((use) => ({ use, arm: use.closest("[data-arm]").dataset.arm, at: [Number(use.getAttribute("x")), Number(use.getAttribute("y"))] }))
      .filter(({ at }) => inside(axes.x, at[0]) && inside(axes.y, at[1]))
      .map((point) => ({ ...point, text: `${axes.xlabel}: ${digits(inverse(axes.x, point.at[0]))}\n${axes.ylabel}: ${digits(inverse(axes.y, point.at[1]))}` }));
  }));
const visible = (svg) => points(svg).filter(({ use, arm }) => !off().has(arm) && use.getClientRects().length);
const say = (svg, point) => {
  if (!point) return void (tip.hidden = true);
  const box = point.use.getBoundingClientRect();
  tip.textContent = `${armNames.get(point.arm) ?? ""}\n${point.text}`.trim();
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(box.left + scrollX + 12, scrollX + innerWidth - tip.offsetWidth - 12))}px`;
  tip.style.top = `${box.top + scrollY + 14}px`;
  light(svg, point.arm);
};
for (const svg of svgs) {
  svg.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = ({ at }) => Math.hypot(at[0] - place.x, at[1] - place.y);
    const near = visible(svg).reduce((best, point) => (far(point) < far(best) ? point : best), { at: [1e9, 1e9] });
    if (far(near) < 12) return say(svg, near);
    tip.hidden = true;
    light(svg, event.target.closest("[data-arm]")?.dataset.arm);
  });
  svg.addEventListener("pointerleave", () => (say(svg), light(svg)));
  const picture = svg.closest(".picture");
  picture.addEventListener("blur", () => (say(svg), light(svg)));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], turn = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return say(svg), light(svg);
    if (!step && !turn) return;
    event.preventDefault();
    const all = visible(svg);
    if (!all.length) return;
    const arms = [...new Set(all.map(({ arm }) => arm))];
    let arm = all.includes(svg.told) ? svg.told.arm : arms[0];
    if (turn) arm = arms[(arms.indexOf(arm) + turn + arms.length) % arms.length];
    const own = all.filter((point) => point.arm === arm).sort((a, b) => a.at[0] - b.at[0] || a.at[1] - b.at[1]);
    const from = own.indexOf(svg.told);
    svg.told = own[from < 0 ? 0 : Math.max(0, Math.min(own.length - 1, from + (step ?? 0)))];
    say(svg, svg.told);
  });
}
for (const item of $(".key li[data-arm]")) {
  const figure = item.closest("figure").querySelector("svg.figure");
  if (!svgs.includes(figure)) continue;
  const button = make("button", { type: "button", title: "show or hide" }, ...item.childNodes);
  button.dataset.arm = item.dataset.arm;
  item.append(button);
  button.addEventListener("click", () => toggle(item.dataset.arm));
  for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => light(figure, item.dataset.arm));
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => light(figure));
}

const save = (name, blob) => {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
// The drawing by itself: variables become their light colours, and what is hidden is left out.
const alone = (svg) => {
  const copy = svg.cloneNode(true);
  for (const part of $(".off", copy)) part.remove();
  if (state.seeds === "0") for (const part of $(".seed", copy)) part.remove();
  copy.removeAttribute("data-axes");
  const [, , width, height] = copy.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const text = new XMLSerializer().serializeToString(copy).replace(/var\(--[\w-]+, ([^()]+)\)/g, "$1");
  return { text, width, height };
};
const csv = (table) =>
  [...table.rows]
    .map((row) => [...row.cells].map((cell) => `"${(cell.dataset.value ?? cell.textContent.trim()).replaceAll('"', '""')}"`).join(","))
    .join("\n");
const exports = {
  SVG: (svg, name) => save(`${name}.svg`, new Blob([alone(svg).text], { type: "image/svg+xml" })),
  PNG: (svg, name) => {
    const { text, width, height } = alone(svg);
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = make("canvas", { width: 3 * width, height: 3 * height });
      const pen = canvas.getContext("2d");
      pen.fillStyle = "white";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(`${name}.png`, blob));
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  },
  CSV: (svg, name) => save(`${name}.csv`, new Blob([csv(svg.closest("figure").querySelector("table"))], { type: "text/csv" })),
};
for (const svg of $("svg.figure")) {
  const figure = svg.closest("figure");
  const name = figure.id.replace("figure-", "growbench-");
  const buttons = Object.entries(exports).map(([kind, run]) => {
    const button = make("button", { type: "button", ariaLabel: `Download ${kind}: ${svg.querySelector("title").textContent}` }, kind);
    button.addEventListener("click", () => run(svg, name));
    return button;
  });
  figure.querySelector("figcaption > p").after(make("p", { className: "downloads" }, "Download ", ...buttons));
}

readHash();
show();
addEventListener("hashchange", () => (readHash(), show()));
