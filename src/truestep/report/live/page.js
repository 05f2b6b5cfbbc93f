// The live page: asks for the run's state once a second and draws it.
// Texts of the run are set as text only, never as markup: a run may hold anything.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const EVERY_MS = 1000;
const WORDS = {
  waiting: "waiting for the run to start", running: "running", done: "done", stopped: "stopped early",
  killed: "killed", unknown: "on another machine", lost: "the viewer does not answer",
};
const KINDS = {
  kill: "killed", resume: "resumed", processes: "resumed on another number of processes", stop: "stopped",
  lineage: "resumed with a difference", damage: "damaged snapshot", "save-failed": "snapshot not written",
};
const byId = (id) => document.getElementById(id);
const charts = new Map();
let version = -1;
let state = null;

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function number(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e5)) {
    return size < 1000 ? String(Number(value.toPrecision(4))) : Math.round(value).toLocaleString("en");
  }
  return value.toExponential(2);
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${Number(value.toPrecision(4))} ${units[at]}`;
}

function shown(name, value) { return name.endsWith("_bytes") ? bytes(value) : number(value); }

function duration(seconds) {
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function count(num, thing, many) { return `${num.toLocaleString("en")} ${num === 1 ? thing : many || `${thing}s`}`; }

// Losses and norms fall by powers of ten; a learning rate that ends in nought does not.
function isSpread(name) { return name.endsWith("loss") || name.endsWith("norm"); }

// Round numbers from low to high, about as many as wanted.
function ticks(low, high, num) {
  const raw = (high - low) / Math.max(num, 1);
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw) || 10 * power;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9 && found.length < 50; at += 1) found.push(at * step);
  return found.length ? found : [low];
}

function logTicks(low, high, num) {
  const found = [];
  const isWide = Math.log10(high / low) > num / 2;
  const every = Math.max(Math.ceil(Math.log10(high / low) / num), 1);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += isWide ? every : 1) {
    for (const factor of isWide ? [1] : [1, 2, 5]) {
      const value = Number(`${factor}e${power}`);
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length ? found : [low, high];
}

// A chart: one SVG that is drawn again when its data or its width changes.
class Chart {
  constructor(parent, name, height) {
    this.name = name;
    this.height = height;
    this.box = make("div");
    this.head = make("div", undefined, "chart-head");
    this.title = make("h3", name);
    this.last = make("span");
    this.head.append(this.title, this.last);
    this.svg = draw("svg", { role: "img" });
    if (parent.id !== "loss-chart") this.box.append(this.head);
    this.box.append(this.svg);
    parent.append(this.box);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
  }

  show(curve, marks) {
    this.curve = curve;
    this.marks = marks;
    const bad = curve.num_nonfinite ? ` (${curve.num_nonfinite.toLocaleString("en")} not finite)` : "";
    this.last.textContent = curve.last + bad;
    this.redraw();
  }

  redraw() {
    const { steps, values } = this.curve;
    this.width = Math.max(this.box.clientWidth, 200);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    if (!steps.length) return;
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    this.isLog = isSpread(this.name) && low > 0 && high / low > 30;
    const take = this.isLog ? Math.log : (value) => value / 2; // halved: the span of the largest would be infinite
    let bottom = take(low), top = take(high);
    if (!(top > bottom)) { const pad = Math.abs(top) * 0.05 || 1; bottom -= pad; top += pad; }
    const num = this.height > 200 ? 6 : 4;
    const rows = this.isLog ? logTicks(low, high, num) : ticks(bottom, top, num).map((half) => 2 * half);
    const labels = rows.map((value) => shown(this.name, value));
    const longest = labels.reduce((length, label) => Math.max(length, label.length), 0);
    this.margin = { left: Math.max(30, 14 + 6.6 * longest), right: 14, top: 10, bottom: 24 };
    const inner = { width: this.width - this.margin.left - this.margin.right, height: this.height - this.margin.top - this.margin.bottom };
    this.first = steps[0];
    this.span = Math.max(steps[steps.length - 1] - steps[0], 1);
    this.x = (step) => this.margin.left + ((step - this.first) / this.span) * inner.width;
    this.y = (value) => this.margin.top + (1 - (take(value) - bottom) / (top - bottom)) * inner.height;
    this.drawGrid(rows, labels);
    this.drawMarks(inner);
    const points = steps.map((step, at) => `${this.x(step).toFixed(1)},${this.y(values[at]).toFixed(1)}`);
    const { course } = this.curve;
    const isNoisy = course.steps.length > 0;
    this.svg.append(draw("polyline", { class: isNoisy ? "curve raw" : "curve", points: points.join(" ") }));
    if (steps.length === 1) this.svg.append(draw("circle", { class: "only", cx: this.x(steps[0]), cy: this.y(values[0]), r: 3 }));
    if (isNoisy) {
      const smooth = course.steps.map((step, at) => `${this.x(step).toFixed(1)},${this.y(course.values[at]).toFixed(1)}`);
      this.svg.append(draw("polyline", { class: "curve", points: smooth.join(" ") }));
    }
    this.cross = draw("line", { class: "cross", y1: this.margin.top, y2: this.margin.top + inner.height });
    this.dot = draw("circle", { class: "dot", r: 4.5 });
    this.svg.append(this.cross, this.dot);
    const words = `${this.name}: ${steps.length} points, from ${number(values[0])} at step ${steps[0]} to ` +
      `${this.curve.last} at step ${steps[steps.length - 1]}, lowest ${number(low)}, highest ${number(high)}`;
    this.svg.setAttribute("aria-label", words);
  }

  drawGrid(rows, labels) {
    rows.forEach((value, at) => {
      const y = this.y(value);
      this.svg.append(draw("line", { class: "grid", x1: this.margin.left, x2: this.width - this.margin.right, y1: y, y2: y }));
      const label = draw("text", { x: this.margin.left - 8, y: y + 4, "text-anchor": "end" });
      label.textContent = labels[at];
      this.svg.append(label);
    });
    const columns = ticks(this.first, this.first + this.span, this.width > 600 ? 8 : 3);
    for (const step of columns.map(Math.round)) {
      const x = this.x(step);
      const label = draw("text", { x: Math.min(x, this.width - 18), y: this.height - 6, "text-anchor": "middle" });
      label.textContent = step.toLocaleString("en");
      this.svg.append(label);
    }
  }

  drawMarks(inner) {
    for (const mark of this.marks) {
      if (!(mark.kind in KINDS) || mark.step < this.first || mark.step > this.first + this.span + 1) continue;
      const x = Math.min(this.x(mark.step), this.width - this.margin.right);
      const line = draw("line", { class: `mark k-${mark.kind}`, x1: x, x2: x, y1: this.margin.top, y2: this.margin.top + inner.height });
      const title = draw("title", {});
      title.textContent = mark.text;
      line.append(title);
      this.svg.append(line);
    }
  }

  point(event) {
    if (!this.x) return;
    const { steps, values } = this.curve;
    const box = this.svg.getBoundingClientRect();
    const wanted = this.first + (((event.clientX - box.left) / box.width) * this.width - this.margin.left) /
      (this.width - this.margin.left - this.margin.right) * this.span;
    let low = 0, high = steps.length - 1;
    while (low < high) { const mid = (low + high) >> 1; if (steps[mid] < wanted) low = mid + 1; else high = mid; }
    if (low > 0 && wanted - steps[low - 1] < steps[low] - wanted) low -= 1;
    const x = this.x(steps[low]), y = this.y(values[low]);
    this.cross.setAttribute("x1", x); this.cross.setAttribute("x2", x);
    this.dot.setAttribute("cx", x); this.dot.setAttribute("cy", y);
    this.svg.classList.add("seen");
    const tip = byId("tip");
    tip.textContent = `step ${steps[low].toLocaleString("en")}: ${shown(this.name, values[low])}`;
    tip.hidden = false;
    const left = box.left + (x / this.width) * box.width;
    tip.style.setProperty("left", `${Math.min(Math.max(left + 12, 4), window.innerWidth - tip.offsetWidth - 4)}px`);
    tip.style.setProperty("top", `${box.top + (y / this.height) * box.height - 34}px`);
  }

  leave() {
    this.svg.classList.remove("seen");
    byId("tip").hidden = true;
  }
}

function showTiles(parent, tiles) {
  parent.replaceChildren(...tiles.map(([name, value, note]) => {
    const box = make("div"), shownValue = make("dd", value);
    if (note) shownValue.append(make("small", note));
    box.append(make("dt", name), shownValue);
    return box;
  }));
}

function showHead() {
  document.title = `${WORDS[state.status] || state.status} · ${state.folder}`;
  byId("folder").textContent = state.folder;
  const pill = byId("status");
  const words = WORDS[state.status] || state.status;
  pill.dataset.status = state.status;
  if (pill.textContent !== words) pill.textContent = words; // screen readers read it once
  const bar = byId("bar");
  bar.max = state.end || 1;
  bar.value = state.end ? Math.min(state.cursor, state.end) : 0;
  const of = state.end === null ? "" : ` of ${state.end.toLocaleString("en")}`;
  const share = state.end ? `  ·  ${Math.floor((100 * state.cursor) / state.end)}%` : "";
  byId("steps").textContent = state.processes ? `${state.cursor.toLocaleString("en")}${of} steps${share}` : "";
}

function showNow() {
  const loss = state.curves.find((curve) => curve.name === "loss");
  const tiles = [];
  if (loss) tiles.push(["Loss", loss.last, `lowest ${number(loss.values.reduce((a, b) => Math.min(a, b), Infinity))}`]);
  if (state.rate !== null) tiles.push(["Steps per second", number(state.rate), state.status === "running" ? "recently" : "when it last ran"]);
  if (state.left_s !== null) tiles.push(["Time left", duration(state.left_s), "at this speed"]);
  if (state.wait_share !== null) tiles.push(["Waiting for data", `${Number((100 * state.wait_share).toPrecision(2))} %`, "of a step's time"]);
  if (state.processes) {
    const alive = state.processes.each.filter((item) => item.alive).length;
    tiles.push(["Processes", String(state.processes.num), state.status === "unknown" ? state.processes.host : `${alive} running`]);
    tiles.push(["Resumed", state.num_resumes === 0 ? "never" : state.num_resumes === 1 ? "once" : `${state.num_resumes} times`,
      state.snapshot === null ? "no snapshot yet" : `last snapshot at step ${state.snapshot.toLocaleString("en")}`]);
  }
  if (state.verdict !== null) tiles.push(["Verified", state.verdict, "by truestep verify"]);
  if (state.num_findings) tiles.push(["Findings", state.num_findings.toLocaleString("en"), "of truestep check"]);
  showTiles(byId("tiles"), tiles);
}

function showCurves() {
  const names = new Set(state.curves.map((curve) => curve.name));
  for (const [name, chart] of charts) {
    if (!names.has(name)) { chart.box.remove(); charts.delete(name); }
  }
  byId("loss-empty").hidden = names.has("loss");
  byId("values-section").hidden = state.curves.every((curve) => curve.name === "loss");
  for (const curve of state.curves) {
    const isLoss = curve.name === "loss";
    if (!charts.has(curve.name)) {
      charts.set(curve.name, new Chart(byId(isLoss ? "loss-chart" : "charts"), curve.name, isLoss ? 340 : 150));
    }
    charts.get(curve.name).show(curve, state.marks);
  }
  const kinds = [...new Set(state.marks.map((mark) => mark.kind))].filter((kind) => kind in KINDS);
  byId("legend").replaceChildren(...kinds.map((kind) => {
    const item = make("li"), sample = draw("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
    sample.append(draw("line", { class: `mark k-${kind}`, x1: 0, x2: 22, y1: 5, y2: 5 }));
    item.append(sample, document.createTextNode(KINDS[kind]));
    return item;
  }));
}

function showProcesses() {
  byId("processes-section").hidden = !state.processes;
  if (!state.processes) return;
  const { num, cursor, started_s: started, host, each } = state.processes;
  const when = new Date(started * 1000).toLocaleTimeString("en-GB");
  byId("processes-words").textContent = `${count(num, "process", "processes")}${host ? ` on ${host}` : ""}, started after step ${cursor.toLocaleString("en")} at ${when}`;
  byId("processes").replaceChildren(...each.map((item) => {
    const row = make("tr");
    const gone = state.status === "done" || state.status === "stopped" ? "ended" : "gone";
    const words = item.alive === null ? "on another machine" : item.alive ? "runs" : gone;
    row.append(make("td", String(item.rank)), make("td", String(item.pid)), make("td", words, item.alive ? "alive" : words === "gone" ? "gone" : ""));
    return row;
  }));
}

function showHappened() {
  byId("happened-empty").hidden = state.marks.length > 0;
  const items = [...state.marks].reverse().map((mark) => {
    const item = make("li"), time = make("time", new Date(mark.time_s * 1000).toLocaleTimeString("en-GB"));
    item.append(time, make("span", mark.text, mark.kind in KINDS ? `w-${mark.kind}` : ""));
    return item;
  });
  if (state.num_marks > state.marks.length) items.push(make("li", `and ${(state.num_marks - state.marks.length).toLocaleString("en")} earlier ones`));
  byId("happened").replaceChildren(...items);
}

function showFindings() {
  byId("findings-section").hidden = state.num_findings === 0;
  const cut = state.num_findings > state.findings.length;
  byId("findings-words").textContent = cut
    ? `The first ${state.findings.length} of ${state.num_findings.toLocaleString("en")}. All are in truestep report.` : count(state.num_findings, "finding");
  byId("findings").replaceChildren(...state.findings.map((finding) => {
    const item = make("li"), head = make("p");
    const severity = ["error", "warning", "info"].includes(finding.severity) ? finding.severity : "info";
    head.append(make("span", finding.severity || "", `sev-${severity}`), document.createTextNode(`${finding.code || ""} ${finding.name || ""}`));
    item.append(head);
    if (finding.file) item.append(make("p", `${finding.file}:${finding.line || "?"}`, "where"));
    if (finding.message) item.append(make("p", finding.message));
    if (finding.fix) item.append(make("p", `Fix: ${finding.fix}`, "quiet"));
    return item;
  }));
}

function showAll() {
  showHead();
  showNow();
  showCurves();
  showProcesses();
  showHappened();
  byId("evaluations-section").hidden = state.evaluations.length === 0;
  showTiles(byId("evaluations"), state.evaluations.map((item) => [item.name, item.value, `after step ${item.cursor.toLocaleString("en")}`]));
  showFindings();
  showFoot();
}

function showFoot() {
  if (!state) return;
  const parts = [];
  if (state.last_s) parts.push(`Last record ${duration(Math.max(Date.now() / 1000 - state.last_s, 0))} ago`);
  if (state.num_curves > state.curves.length) parts.push(`${state.num_curves - state.curves.length} more curves are in truestep report`);
  if (state.num_unread) parts.push(`${count(state.num_unread, "torn or unknown line")} skipped`);
  byId("foot").textContent = parts.join(" · ");
}

async function update() {
  try {
    const answer = await fetch(`state?since=${version}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    if (answer.status === 200) {
      state = await answer.json();
      version = state.version;
      showAll();
    } else {
      if (byId("status").dataset.status === "lost") showHead();
      showFoot();
    }
  } catch {
    const pill = byId("status");
    pill.dataset.status = "lost";
    pill.textContent = WORDS.lost;
  }
  setTimeout(update, EVERY_MS);
}

let resizing = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => { for (const chart of charts.values()) if (chart.curve) chart.redraw(); });
});
update();
