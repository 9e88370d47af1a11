// Keeps the regions of a page up to date by server-sent events, and draws the charts of a queue.
// Every page works without it.
"use strict";

const address = document.body.dataset.live;
const pause = document.getElementById("pause-live");
const state = document.getElementById("live-state");
const charts = [];
let source = null;
let isPaused = false;
let isPressed = false;
let again = 0;

function say(text) {
  if (state.textContent !== text) state.textContent = text;
}

// A region is not replaced while somebody selects text in it, or is in the middle of a click. The
// element with the focus keeps it, because it has an id.
function replace(region, markup) {
  const selection = document.getSelection();
  if (isPressed || (selection && !selection.isCollapsed && region.contains(selection.anchorNode))) return;
  const id = region.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = [...region.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
  const hadScroll = region.contains(document.activeElement) && document.activeElement.classList.contains("scroll");
  region.innerHTML = markup;
  region.querySelectorAll(".scroll").forEach((part, index) => { part.scrollLeft = scrolled[index] || 0; });
  if (id) document.getElementById(id)?.focus({ preventScroll: true });
  else if (hadScroll) region.querySelector(".scroll")?.focus({ preventScroll: true });
}

// A browser has few connections to a server, so a page that nobody sees gives its own back.
function listen() {
  clearTimeout(again);
  if (source) { source.close(); source = null; }
  if (isPaused) return say("Updates are paused.");
  if (document.hidden) return;
  source = new EventSource(address);
  for (const region of document.querySelectorAll("[data-region]")) {
    source.addEventListener(region.dataset.region, (event) => replace(region, event.data));
  }
  source.addEventListener("point", (event) => add(JSON.parse(event.data)));
  source.addEventListener("state", (event) => say(event.data === "live" ? "Updated as it changes." : event.data));
  source.onerror = () => {
    say("The console sends no changes. The page tries again.");
    // A browser connects anew by itself, but not after an answer such as "too many pages".
    if (source && source.readyState === EventSource.CLOSED) again = setTimeout(listen, 10000);
  };
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function shown(unit, value) {
  if (value == null) return "–";
  if (unit === "time") return value < 1 ? `${+(value * 1000).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`;
  return `${value < 100 ? +value.toPrecision(3) : Math.round(value).toLocaleString("en")}${unit === "rate" ? "/s" : ""}`;
}

// The time here, as the person writes it; with the day where the chart shows more than one.
function clock(seconds) {
  const time = new Date(seconds * 1000);
  if (points.length < 2 || points.at(-1).at - points[0].at < 7200) return time.toLocaleTimeString([], { hourCycle: "h23" });
  const hour = time.toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit" });
  return points.at(-1).at - points[0].at < 86400 ? hour : `${time.toLocaleDateString([], { month: "short", day: "numeric" })} ${hour}`;
}

function draw(figure) {
  const columns = figure.dataset.chart.split("|");
  const unit = figure.dataset.unit;
  const box = figure.querySelector(".chart");
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const series = columns.map((name, index) => ({
    label: name, stroke: color(`--c${index + 1}`), width: 2, points: { show: false },
    dash: [[], [8, 4], [2, 3], [10, 3, 2, 3]][index], value: (chart, value) => shown(unit, value),
  }));
  const size = () => ({ width: Math.max(240, box.clientWidth), height: 190 });
  const options = {
    ...size(), cursor: { y: false, drag: { x: false, y: false } }, legend: { live: true },
    scales: { y: { range: (chart, low, high) => [0, Math.max(high || 0, { time: 0.001, rate: 0.1 }[unit] || 1) * 1.05] } },
    axes: [{ ...axis, space: 95, values: (chart, ticks) => ticks.map(clock) }, { ...axis, size: 62, values: (chart, ticks) => ticks.map((tick) => shown(unit, tick)) }],
    series: [{ label: "Time", value: (chart, time) => time == null ? "–" : clock(time) }, ...series],
  };
  const chart = { columns, plot: new uPlot(options, [[], ...columns.map(() => [])], box) };
  charts.push(chart);
  new ResizeObserver(() => chart.plot.setSize(size())).observe(box);
}

let points = [];

function show() {
  const times = points.map((point) => point.at);
  for (const chart of charts) {
    chart.plot.setData([times, ...chart.columns.map((name) => points.map((point) => point[name]))]);
  }
}

function add(point) {
  const last = points.at(-1);
  if (!charts.length || box.dataset.points || (last && last.at >= point.at)) return;
  points.push(point);
  points = points.slice(-600);
  show();
}

async function load(box) {
  for (const figure of box.querySelectorAll("[data-chart]")) draw(figure);
  if (box.dataset.points) {
    points = JSON.parse(box.dataset.points);
    return show();
  }
  const answer = await fetch(box.dataset.series);
  if (!answer.ok) return;
  const newest = points;
  points = await answer.json();
  newest.forEach(add);
  show();
}

const box = document.querySelector("[data-series], [data-points]");
if (box) {
  load(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts.splice(0)) chart.plot.destroy();
    box.querySelectorAll("[data-chart]").forEach(draw);
    show();
  });
}

if (address) {
  document.addEventListener("pointerdown", () => { isPressed = true; });
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { isPressed = false; });
  document.addEventListener("visibilitychange", listen);
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Resume updates" : "Pause updates";
    listen();
  });
  listen();
}
