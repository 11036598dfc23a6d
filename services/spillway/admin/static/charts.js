// The charts: uPlot on what the service remembers and keeps. Each look of the service asks for it again, as often as it is new. All
// charts of a page show one range of time, with one cursor and the same marks: they are there to be compared.
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
  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value < 100) return `${value < 10 && value % 1 ? value.toFixed(1) : Math.round(value)} s`;
    if (value < 6000) return `${Math.round(value / 60)} min`;
    return value < 172800 ? `${(value / 3600).toFixed(value < 36000 && value % 3600 ? 1 : 0)} h` : `${Math.round(value / 86400)} d`;
  };
  const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }));
  const POWERS = [];
  // Round in units of 1024, so that a scale reads 0, 256 kB, 512 kB.
  for (let power = 0; power <= 50; power += 1) POWERS.push(2 ** power);
  const DECIMALS = [];
  for (let power = -1; power <= 12; power += 1) for (const of of [1, 2, 5]) DECIMALS.push(of * 10 ** power);
  const MOMENTS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
  // How each kind is written, what its scale's steps are, and what it shows at least.
  const KINDS = {
    size: { write: size, steps: POWERS, least: 1024 },
    rate: { write: (value) => `${size(value)}/s`, steps: POWERS, least: 1024 },
    seconds: { write: seconds, steps: MOMENTS, least: 10 },
    changes: { write: (value) => `${number(value)}/s`, steps: DECIMALS, least: 10 },
  };
  // How far back, and how often there is news of it.
  const RANGES = {
    "15m": { seconds: 900, name: "15 min", told: "15 minutes", every: 0 },
    "12h": { seconds: 12 * 3600, name: "12 h", told: "12 hours", every: 15 },
    "24h": { seconds: 24 * 3600, name: "24 h", told: "24 hours", every: 60 },
    "7d": { seconds: 7 * 86400, name: "7 d", told: "7 days", every: 60 },
    "30d": { seconds: 30 * 86400, name: "30 d", told: "30 days", every: 60 },
  };
  const DAY = 86400;
  const charts = [];
  let range = new URLSearchParams(location.search).get("range");
  if (!Object.hasOwn(RANGES, range)) range = "15m";
  let end = Date.now() / 1000;
  let marks = [];
  // A token may be light-dark(…), which only a style makes a colour of.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const when = (at) => Spillway.moment(new Date(at * 1000));
  // What stands at a tick: the time, and the day where one begins.
  const DAY_OF = { day: "numeric", month: "short" };
  const clock = (at, before, step) => {
    const moment = new Date(at * 1000);
    const begins = before !== undefined && new Date(before * 1000).toDateString() !== moment.toDateString();
    if (step >= DAY || begins) return moment.toLocaleDateString("en-GB", DAY_OF);
    const two = (value) => String(value).padStart(2, "0");
    return [moment.getHours(), moment.getMinutes(), ...(step < 60 ? [moment.getSeconds()] : [])].map(two).join(":");
  };
  const TONES = { bad: "--bad", warn: "--warn", ok: "--ok", info: "--muted", ddl: "--accent" };

  // A point without neighbours is no line: it is drawn as a point.
  const alone = (u, series) => {
    const values = u.data[series];
    const found = [];
    for (let i = 0; i < values.length; i += 1) if (isKnown(values[i]) && !isKnown(values[i - 1]) && !isKnown(values[i + 1])) found.push(i);
    return found;
  };
  const isKnown = (value) => value !== null && value !== undefined;

  const drawMarks = (u) => {
    const context = u.ctx;
    context.save();
    const ratio = devicePixelRatio || 1;
    for (const mark of marks) {
      if (mark.at < u.scales.x.min || mark.at > u.scales.x.max) continue;
      const x = Math.round(u.valToPos(mark.at, "x", true));
      context.strokeStyle = context.fillStyle = colour(TONES[mark.severity] || "--muted");
      context.lineWidth = ratio;
      context.setLineDash([3 * ratio, 3 * ratio]);
      context.beginPath();
      context.moveTo(x, u.bbox.top);
      context.lineTo(x, u.bbox.top + u.bbox.height);
      context.stroke();
      context.beginPath();
      context.moveTo(x - 4 * ratio, u.bbox.top);
      context.lineTo(x + 4 * ratio, u.bbox.top);
      context.lineTo(x, u.bbox.top + 6 * ratio);
      context.fill();
    }
    context.restore();
  };
  // What happened where the cursor is, within a few pixels.
  const markAt = (u) => {
    if (u.cursor.left === null || u.cursor.left === undefined || u.cursor.left < 0) return "";
    const near = marks.filter((mark) => Math.abs(u.valToPos(mark.at, "x") - u.cursor.left) < 6);
    return near.length ? near.map((mark) => mark.title).join("; ") : "";
  };

  // Charts that stand one over another have one axis of time, under the last.
  const height = (place) => Number(place.dataset.height);
  const make = (place, data) => {
    const { write, steps, least } = KINDS[place.dataset.kind];
    const axis = () => ({ stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" });
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: height(place),
        padding: [8, 14, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "page" } },
        // The range, and not the data's: a series that began just now stands at the right.
        scales: { x: { time: true, range: () => [end - RANGES[range].seconds, end] }, y: { range: (_, __, top) => [0, Math.max((top || 0) * 1.1, least)] } },
        axes: [
          { ...axis(), ...("withoutTimes" in place.dataset ? { size: 6, font: "1px sans-serif", stroke: "transparent" } : { size: 34 }), space: 80, values: (_, times, __, ___, step) => times.map((at, i) => clock(at, times[i - 1], step)) },
          { ...axis(), size: 72, space: 40, incrs: steps, values: (_, ticks) => ticks.map(write) },
        ],
        series: [{}, { stroke: colour("--accent"), fill: colour("--accent-soft"), width: 1.5, points: { show: true, size: 4, filter: alone } }],
        hooks: {
          draw: [drawMarks],
          setCursor: [
            (u) => {
              const index = u.cursor.idx;
              const reading = place.parentElement.querySelector(".reading");
              if (index === null || index === undefined) {
                reading.textContent = "";
                return;
              }
              const value = u.data[1][index];
              const known = value === null || value === undefined ? "not known" : write(value);
              reading.textContent = [`${known} at ${when(u.data[0][index])}`, markAt(u)].filter(Boolean).join(" · ");
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
    new ResizeObserver(() => chart.plot && chart.plot.setSize({ width: place.clientWidth, height: height(place) })).observe(place);
    charts.push(chart);
  }
  const clear = () => {
    for (const chart of charts) {
      if (chart.plot) chart.plot.destroy();
      chart.plot = null;
    }
  };
  // -- the choice of a range, and the marks as a list -------------------------------------------
  const unanswered = document.createElement("p");
  unanswered.className = "charts-unanswered warn-text";
  unanswered.setAttribute("role", "status");
  unanswered.hidden = true;
  const list = document.createElement("details");
  list.className = "marks";
  list.hidden = true;
  if (charts.length) {
    const box = charts[0].place.closest(".charts");
    const choice = document.createElement("fieldset");
    choice.className = "ranges";
    const legend = document.createElement("legend");
    legend.className = "visually-hidden";
    legend.textContent = "How far back the charts show";
    choice.append(legend);
    for (const [value, { name, told }] of Object.entries(RANGES)) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "range", value, checked: value === range });
      input.setAttribute("aria-label", `The last ${told}`);
      const text = document.createElement("span");
      text.textContent = name;
      label.append(input, text);
      choice.append(label);
    }
    choice.addEventListener("change", (event) => {
      range = event.target.value;
      const address = new URL(location.href);
      if (range === "15m") address.searchParams.delete("range");
      else address.searchParams.set("range", range);
      history.replaceState(history.state, "", address);
      marks = [];
      clear();
      refresh(true);
    });
    box.prepend(choice);
    box.append(list);
    choice.after(unanswered);
  }
  const markPast = (isPast) => {
    unanswered.hidden = !isPast;
    for (const { place, plot } of charts) {
      place.classList.toggle("of-before", isPast);
      const empty = place.querySelector(".plot-empty");
      if (isPast && empty && !plot) empty.textContent = "Not known.";
    }
    if (!isPast) unanswered.textContent = "";
    else if (charts.some(({ plot }) => plot)) unanswered.textContent = `The charts are as of ${when(answeredAt / 1000)}: the service gives nothing newer.`;
    else unanswered.textContent = "What the charts would show is not known: the service does not give it.";
  };
  const showMarks = () => {
    list.hidden = !marks.length;
    const summary = document.createElement("summary");
    summary.textContent = `${marks.length} ${marks.length === 1 ? "thing" : "things"} happened in this time`;
    const items = document.createElement("ol");
    items.tabIndex = 0;
    items.setAttribute("aria-label", "What happened, the newest first");
    for (const mark of [...marks].reverse()) {
      const item = document.createElement("li");
      const time = document.createElement("time");
      time.dateTime = time.title = new Date(mark.at * 1000).toISOString();
      time.textContent = when(mark.at);
      const title = document.createElement(mark.link ? "a" : "span");
      if (mark.link) title.href = mark.link;
      title.textContent = mark.title;
      item.append(time, title);
      items.append(item);
    }
    list.replaceChildren(summary, items);
  };
  // An answer that hangs must not keep the next question from being asked.
  const ANSWER_MS = Number(document.body.dataset.silenceS) * 1000;
  const ask = async (address) => {
    try {
      const response = await fetch(address, { signal: AbortSignal.timeout(ANSWER_MS) });
      if (response.ok) return await response.json();
    } catch {
      // Away, or too slow: the charts say of when they are, the next look tries again.
    }
    return null;
  };
  let markedAt = 0;
  const refreshMarks = async (asked) => {
    if (Date.now() - markedAt < 15000 && marks.length) return;
    const found = await ask(`${charts[0].place.dataset.chart}/marks?range=${asked}`);
    if (found === null || asked !== range) return;
    markedAt = Date.now();
    if (JSON.stringify(found) === JSON.stringify(marks)) return;
    marks = found;
    showMarks();
    for (const { plot } of charts) if (plot) plot.redraw(false, true);
  };

  let answeredAt = 0;
  let busy = false;
  let again = false;
  const refresh = async (insist) => {
    if (document.hidden || !charts.length) return;
    if (!insist && unanswered.hidden && Date.now() - answeredAt < RANGES[range].every * 1000) return;
    if (busy) {
      again ||= insist === true;
      return;
    }
    busy = true;
    const asked = range;
    try {
      const answers = new Map();
      for (const chart of charts) {
        const address = `${chart.place.dataset.chart}?range=${asked}`;
        if (!answers.has(address)) {
          const answer = await ask(address);
          // Another range was chosen meanwhile: of that one nothing is known yet.
          if (asked !== range) return;
          if (answer === null) {
            markPast(true);
            return;
          }
          answers.set(address, answer);
        }
        const answer = answers.get(address);
        end = Date.now() / 1000;
        const values = answer[chart.place.dataset.column] || [];
        if (asked === "15m") end = Math.max(end, answer.time.at(-1) || 0);
        const empty = chart.place.querySelector(".plot-empty");
        const known = values.reduce((count, value) => count + (value !== null), 0);
        if (known < (asked === "15m" ? 2 : 1)) {
          if (chart.plot) chart.plot.destroy();
          chart.plot = null;
          if (empty) {
            empty.hidden = false;
            empty.textContent = asked === "15m" ? "Gathering: a look every two seconds." : `Nothing is known of the last ${RANGES[asked].told} yet: every two minutes are kept.`;
          }
          continue;
        }
        if (empty) empty.hidden = true;
        const data = [answer.time, values];
        if (chart.plot) chart.plot.setData(data);
        else chart.plot = make(chart.place, data);
      }
      answeredAt = Date.now();
      markPast(false);
      await refreshMarks(asked);
    } finally {
      busy = false;
      if (again) {
        again = false;
        refresh(true);
      }
    }
  };
  document.addEventListener("spillway:look", () => refresh());
  document.addEventListener("spillway:theme", () => {
    clear();
    refresh(true);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("spillway:theme")));
  refresh();
})();
