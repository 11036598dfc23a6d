// What pages do beyond HTML: parts that change by themselves, the theme's switch, copying, the live tail.
"use strict";
(() => {
  // -- theme: the system's, until somebody chooses ------------------------------------------
  const root = document.documentElement;
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("spillway-theme", root.dataset.theme);
    } catch {
      // It holds for this page then.
    }
    document.dispatchEvent(new Event("spillway:theme"));
  });

  // -- htmx: the session's value with every request that changes something --------------------
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = document.body.dataset.csrf;
  });
  document.body.addEventListener("htmx:sendError", (event) => {
    const target = event.detail.target;
    if (!target) return;
    const box = document.createElement("div");
    box.className = "error-box";
    box.setAttribute("role", "alert");
    box.textContent = "The service does not answer. Is it running? Nothing was sent twice; try again.";
    target.replaceChildren(box);
  });

  // -- live parts --------------------------------------------------------------------------
  const url = document.body.dataset.liveUrl;
  const status = document.getElementById("live");
  let lookedAt = new Date();
  const say = (state, text) => {
    if (state === "live") lookedAt = new Date();
    if (!status || status.dataset.state === state) return;
    status.dataset.state = state;
    // What is not live any more does not look as if it were, and says of when it is.
    document.body.classList.toggle("stale", state === "lost" || state === "gone");
    status.querySelector(".live-text").textContent = state === "lost" ? `${text}; as of ${lookedAt.toLocaleTimeString()}` : text;
  };
  const put = (name, html) => {
    const part = document.querySelector(`[data-live="${name}"]`);
    if (!part) return;
    Idiomorph.morph(part, html, {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      // What a reader opened stays open.
      callbacks: { beforeAttributeUpdated: (attribute) => attribute !== "open" },
    });
    htmx.process(part);
  };
  let source = null;
  const open = () => {
    source = new EventSource(url);
    source.onopen = () => say("live", "live");
    source.onerror = () => {
      say("lost", "the service does not answer");
      // Refused rather than broken off: the browser would not come again by itself.
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(() => !source && !document.hidden && open(), 3000);
      }
    };
    for (const part of document.querySelectorAll("[data-live]")) {
      const name = part.dataset.live;
      source.addEventListener(name, (event) => put(name, event.data));
    }
    source.addEventListener("look", () => {
      say("live", "live");
      document.dispatchEvent(new Event("spillway:look"));
    });
    source.addEventListener("gone", () => {
      source.close();
      say("gone", "it was dropped");
    });
  };
  const close = () => {
    if (source) source.close();
    source = null;
  };
  if (url) {
    open();
    // A hidden tab holds no connection: browsers allow few to one host.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) close();
      else if (!source && status.dataset.state !== "gone") open();
    });
    addEventListener("pagehide", close);
  }

  // -- copy buttons ------------------------------------------------------------------------
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Not allowed here (plain http): mark it, so that the keyboard copies it.
      getSelection().selectAllChildren(code);
      button.textContent = "Marked";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });

  // -- the live tail of a slot: what commits from now on, a bounded number of rows ------------
  const tail = document.getElementById("tail");
  const ROWS_MAX = 200;
  if (tail) {
    const form = document.getElementById("filter");
    const box = document.getElementById("changes");
    let stream = null;
    const stop = () => {
      if (stream) stream.close();
      stream = null;
      tail.setAttribute("aria-pressed", "false");
      tail.textContent = "Live tail";
    };
    const start = () => {
      stop();
      const query = new URLSearchParams(new FormData(form));
      const head = document.createElement("template");
      head.innerHTML =
        '<div class="table-wrap" tabindex="0" role="region" aria-label="Rows"><table class="changes"><thead><tr><th scope="col">Change</th>' +
        '<th scope="col">Row</th><th scope="col">Position</th></tr></thead><tbody></tbody></table></div>' +
        '<p class="empty-line waiting">Waiting for the next transaction.</p>';
      box.replaceChildren(head.content);
      const body = box.querySelector("tbody");
      stream = new EventSource(`${tail.dataset.url}?${query}`);
      stream.addEventListener("rows", (event) => {
        const template = document.createElement("template");
        template.innerHTML = event.data;
        // The newest on top.
        const rows = [...template.content.querySelectorAll("tr")].reverse();
        body.prepend(...rows);
        while (body.rows.length > ROWS_MAX) body.lastElementChild.remove();
        const waiting = box.querySelector(".waiting");
        if (waiting) waiting.remove();
      });
      stream.addEventListener("problem", (event) => {
        const template = document.createElement("template");
        template.innerHTML = event.data;
        box.prepend(template.content);
        stop();
      });
      stream.addEventListener("gone", stop);
      tail.setAttribute("aria-pressed", "true");
      tail.textContent = "Stop";
    };
    tail.addEventListener("click", () => (stream ? stop() : start()));
    form.addEventListener("submit", stop);
    form.addEventListener("change", () => stream && start());
    document.addEventListener("visibilitychange", () => document.hidden && stop());
    addEventListener("pagehide", stop);
  }

  // -- forms -------------------------------------------------------------------------------
  const options = document.getElementById("f-options");
  if (options) {
    const proposals = JSON.parse(options.dataset.proposals || "{}");
    document.addEventListener("change", (event) => {
      if (event.target.name !== "plugin") return;
      const known = Object.values(proposals);
      if (options.value === "" || known.includes(options.value)) options.value = proposals[event.target.value] || "";
    });
  }
})();
