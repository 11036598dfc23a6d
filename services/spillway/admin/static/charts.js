// The charts: uPlot on what the service remembers. Each look of the service asks for it again. All charts of a page show
// one range of time, with one cursor: they are there to be compared.
"use strict";
(() => {
  const UNITS = ["B", "kB", "MB", "GB", "TB"];
  const size = (value) => {
    if (value === null || value === undefined) return "–";
    let unit = 0;
    while (value >= 1024 && unit < UNITS.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
  };
  const WRITE = { size, rate: (value) => `${size(value)}/s` };
  // Round in units of 1024, so that a scale reads 0, 256 kB, 512 kB.
  const INCREMENTS = [];
  for (let power = 0; power <= 50; power += 1) INCREMENTS.push(2 ** power);
  const SPANS = {
    "": { seconds: 15 * 60, shown: "15 min", other: "12 h", told: "15 min are shown; switch to 12 hours" },
    minute: { seconds: 12 * 3600, shown: "12 h", other: "15 min", told: "12 h are shown; switch to 15 minutes" },
  };
  const charts = [];
  // "", or minute: a row each.
  let by = "";
  let end = Date.now() / 1000;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const make = (place, data) => {
    const write = WRITE[place.dataset.kind];
    const axis = () => ({ stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" });
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: 180,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "page" } },
        // The range, and not the data's: a series that began just now stands at the right.
        scales: { x: { time: true, range: () => [end - SPANS[by].seconds, end] }, y: { range: (_, __, top) => [0, Math.max(top * 1.1, 1024)] } },
        axes: [
          { ...axis(), size: 34, space: 80, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis(), size: 72, space: 40, incrs: INCREMENTS, values: (_, ticks) => ticks.map(write) },
        ],
        series: [{}, { stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5, points: { show: false } }],
        hooks: {
          setCursor: [
            (u) => {
              const value = u.cursor.idx === null || u.cursor.idx === undefined ? null : u.data[1][u.cursor.idx];
              place.parentElement.querySelector(".reading").textContent =
                value === null || value === undefined ? "" : `${write(value)} at ${new Date(u.data[0][u.cursor.idx] * 1000).toLocaleTimeString()}`;
            },
          ],
        },
      },
      data,
      place,
    );
    return plot;
  };

  for (const place of document.querySelectorAll("[data-chart]")) {
    const reading = document.createElement("span");
    reading.className = "reading faint";
    place.parentElement.querySelector("figcaption").append(reading);
    const chart = { place, plot: null };
    new ResizeObserver(() => chart.plot && chart.plot.setSize({ width: place.clientWidth, height: 180 })).observe(place);
    charts.push(chart);
  }
  const clear = () => {
    for (const chart of charts) {
      if (chart.plot) chart.plot.destroy();
      chart.plot = null;
    }
  };
  if (charts.length) {
    const switcher = document.createElement("button");
    switcher.type = "button";
    switcher.className = "quiet span";
    const name = () => {
      switcher.textContent = SPANS[by].shown;
      switcher.setAttribute("aria-label", SPANS[by].told);
    };
    name();
    switcher.addEventListener("click", () => {
      by = by ? "" : "minute";
      name();
      clear();
      refresh(true);
    });
    charts[0].place.closest(".charts").prepend(switcher);
  }

  let busy = false;
  let again = false;
  const refresh = async (insist) => {
    if (document.hidden) return;
    if (busy) {
      again ||= insist === true;
      return;
    }
    busy = true;
    const asked = by;
    try {
      const answers = new Map();
      for (const chart of charts) {
        const address = `${chart.place.dataset.chart}?by=${asked}`;
        if (!answers.has(address)) {
          let answer = null;
          try {
            const response = await fetch(address);
            if (response.ok) answer = await response.json();
          } catch {
            // The service is away: the page's sign says so, the next look tries again.
          }
          if (answer === null) return;
          answers.set(address, answer);
        }
        const answer = answers.get(address);
        // Another range was chosen meanwhile.
        if (asked !== by) return;
        end = Math.max(Date.now() / 1000, answer.time.at(-1) || 0);
        const empty = chart.place.querySelector(".plot-empty");
        if (answer.time.length < 2) {
          if (empty) empty.hidden = false;
          continue;
        }
        if (empty) empty.hidden = true;
        const data = [answer.time, answer[chart.place.dataset.column]];
        if (chart.plot) chart.plot.setData(data);
        else chart.plot = make(chart.place, data);
      }
    } finally {
      busy = false;
      if (again) {
        again = false;
        refresh();
      }
    }
  };
  document.addEventListener("spillway:look", () => refresh());
  document.addEventListener("spillway:theme", () => {
    clear();
    refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("spillway:theme")));
  refresh();
})();
