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
  // What only reads is not waited for without end; what changes something is: whoever gives up on it does not know what was done.
  const READING_MS = 30000;
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb === "get") event.detail.timeout = READING_MS;
  });
  // What was asked for did not come. What is there stays, marked as what it is: of before.
  const failed = (event) => {
    const { target, requestConfig } = event.detail;
    if (!target) return;
    const box = document.createElement("div");
    box.className = "error-box";
    box.setAttribute("role", "alert");
    if (requestConfig.verb === "get") {
      const left = target.textContent.trim() !== "" && !target.matches(".htmx-indicator");
      box.textContent = `The service does not answer.${left ? " What is shown is of before." : ""} Is it running? Try again.`;
      for (const said of target.querySelectorAll(":scope > .error-box.unanswered")) said.remove();
      box.classList.add("unanswered");
      target.prepend(box);
      target.classList.add("of-before");
      return;
    }
    box.textContent = "The service does not answer. Is it running? Nothing was sent twice; try again.";
    target.replaceChildren(box);
  };
  document.body.addEventListener("htmx:sendError", failed);
  document.body.addEventListener("htmx:timeout", failed);
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target, requestConfig } = event.detail;
    // A gateway that speaks for a service that is away: its page is not put into ours.
    if (xhr.status >= 502 && requestConfig.verb === "get" && !xhr.responseText.includes("error-box")) {
      event.detail.shouldSwap = false;
      failed(event);
      return;
    }
    target.classList.remove("of-before");
  });

  // What was asked for a part of the page that is gone meanwhile is nobody's: what it would put
  // elsewhere (sizes of tables) would be put beside what took its place. No event of a part that is
  // gone comes here, so each is listened to where it is asked for.
  const askedFor = new WeakSet();
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    const target = event.detail.target;
    if (!target || askedFor.has(target)) return;
    askedFor.add(target);
    target.addEventListener("htmx:beforeSwap", (swap) => {
      if (!swap.target.isConnected) swap.detail.shouldSwap = false;
    });
  });

  // -- times: the reader's own zone, with UTC beside them ----------------------------------------
  const two = (number) => String(number).padStart(2, "0");
  const local = (at) =>
    `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  // A moment as it is said: with its day, unless that is today.
  const moment = (at) => {
    const said = local(at);
    return at.toDateString() === new Date().toDateString() ? said.slice(-8) : said;
  };
  window.Spillway = { moment };
  const localise = (root) => {
    for (const time of root.querySelectorAll("time.when, time.ago")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime()) || time.dataset.local) continue;
      time.dataset.local = "yes";
      if (time.classList.contains("when")) time.textContent = local(at);
      else time.title = `${local(at)}; ${time.title}`;
    }
  };
  localise(document);
  // On a phone the nouns are scrolled to where one is.
  const current = document.querySelector(".bar nav [aria-current]");
  if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 80;
  document.body.addEventListener("htmx:afterSwap", (event) => localise(event.detail.target));
  const zone = document.getElementById("zone");
  if (zone) zone.textContent = `Times are those of ${Intl.DateTimeFormat().resolvedOptions().timeZone}; UTC on hover`;

  // -- live parts --------------------------------------------------------------------------
  // An open connection says nothing of who is at its end: something must come of it, and something new. A machine that sleeps
  // stops one clock, and one that is set moves the other.
  const url = document.body.dataset.liveUrl;
  const follows = "liveFollows" in document.body.dataset;
  const status = document.getElementById("live");
  const SILENCE_MS = Number(document.body.dataset.silenceS) * 1000;
  const REOPEN_MS = 5000;
  const now = () => [Date.now(), performance.now()];
  const passed = (since) => Math.max(...now().map((clock, of) => clock - since[of]));
  const isLong = (since) => passed(since) > SILENCE_MS;
  // When something came, when something new came, and when it was asked for.
  let heardAt = now();
  let newsAt = now();
  let askedAt = now();
  let answered = false;
  let broken = false;
  // What the service said instead of a stream: a sign, and why.
  let refused = null;
  // As of when the page is, by the service's clock.
  let seenAt = document.body.dataset.seenAt;
  const say = (state, text, why = "") => {
    const isPast = state !== "live" && (state !== "waiting" || isLong(newsAt));
    const at = new Date(seenAt);
    const said = isPast && state !== "gone" && !Number.isNaN(at.getTime()) ? `${text}; as of ${moment(at)}` : text;
    // What is not live any more does not look as if it were, and says of when it is.
    document.body.classList.toggle("stale", isPast);
    status.dataset.state = state;
    status.title = why;
    const shown = status.querySelector(".live-text");
    if (shown.textContent !== said) shown.textContent = said;
  };
  const judge = () => {
    if (!status || document.hidden || status.dataset.state === "gone") return;
    if (refused) say("lost", ...refused);
    else if (broken || isLong(heardAt)) say("lost", "no answer", "The service does not answer.");
    else if (!answered) say("waiting", "connecting");
    else if (isLong(newsAt)) say("lost", "nothing new", "The service answers, and has seen nothing new for a while.");
    else say("live", "live");
  };
  const heard = () => {
    heardAt = now();
    answered = true;
    broken = false;
    refused = null;
    judge();
  };
  const REFUSALS = {
    204: ["signed out", "The session is over. Reload the page and sign in."],
    503: ["not followed", "The service follows as many pages as it can, or is about to end. It is asked again."],
  };
  // An EventSource does not tell the status of an answer.
  const askWhy = async (address) => {
    let said = null;
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (answer.body) answer.body.cancel();
      said = REFUSALS[answer.status] || (answer.ok ? null : ["refused", `The service answers ${answer.status}.`]);
    } catch {
      // It is as it looks: nobody answers.
    }
    if (!source) refused = said;
    judge();
  };
  const put = (name, html) => {
    const part = document.querySelector(`[data-live="${name}"]`);
    if (!part) return;
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    localise(fresh.content);
    Idiomorph.morph(part, [...fresh.content.childNodes], {
      morphStyle: "innerHTML",
      ignoreActiveValue: true,
      // What a reader opened stays open, what was ticked stays ticked.
      callbacks: { beforeAttributeUpdated: (attribute) => attribute !== "open" && attribute !== "checked" },
    });
    htmx.process(part);
    document.dispatchEvent(new CustomEvent("spillway:part", { detail: name }));
  };
  let source = null;
  const open = () => {
    askedAt = now();
    // What a list shows stands in the address; its stream follows that.
    const address = follows ? url + location.search : url;
    source = new EventSource(address);
    source.onerror = () => {
      broken = true;
      judge();
      // Refused rather than broken off: the browser would not come again by itself.
      if (source && source.readyState === EventSource.CLOSED) {
        source = null;
        askWhy(address);
        setTimeout(() => !source && !document.hidden && open(), 3000);
      }
    };
    for (const part of document.querySelectorAll("[data-live]")) {
      const name = part.dataset.live;
      source.addEventListener(name, (event) => put(name, event.data));
    }
    source.addEventListener("beat", heard);
    source.addEventListener("look", (event) => {
      if (event.data && event.data !== seenAt) {
        seenAt = event.data;
        newsAt = now();
      }
      heard();
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
  // Nobody listened for a while: that nothing was heard says nothing.
  const comeBack = () => {
    if (source || document.hidden || status.dataset.state === "gone") return;
    heardAt = now();
    answered = false;
    open();
    judge();
  };
  if (url) {
    open();
    setInterval(() => {
      judge();
      if (!source || !isLong(heardAt) || passed(askedAt) < REOPEN_MS) return;
      // A connection whose other end is gone for good breaks at no time by itself; the browser may have more of that kind.
      close();
      open();
    }, 1000);
    // A hidden tab holds no connection: browsers allow few to one host.
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : comeBack()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", (event) => event.persisted && comeBack());
    document.body.addEventListener("htmx:replacedInHistory", () => {
      if (!follows) return;
      close();
      open();
    });
  }

  // -- times that are typed: the reader's zone, told in UTC -------------------------------------
  const typed = "input[type=datetime-local]";
  for (const field of document.querySelectorAll(typed)) {
    for (const said of field.parentElement.querySelectorAll(".of-utc")) said.remove();
    // As the service wrote it: what a browser has kept of a visit before is local already.
    const at = new Date(`${field.defaultValue}Z`);
    if (!Number.isNaN(at.getTime())) field.value = local(at).replace(" ", "T");
  }
  // However a form is sent; and what is not asked is not in the address.
  document.addEventListener("formdata", (event) => {
    const { target: form, formData } = event;
    for (const field of form.querySelectorAll(typed)) {
      const at = new Date(field.value);
      if (!Number.isNaN(at.getTime())) formData.set(field.name, at.toISOString().replace(".000Z", "Z"));
    }
    if (form.id !== "question") return;
    for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  });

  // -- what opens over the page closes by Escape, and by a click beside it ------------------------
  const closeOthers = (kept) => {
    for (const one of document.querySelectorAll("details.drop-down[open]")) if (one !== kept) one.open = false;
  };
  document.addEventListener("click", (event) => closeOthers(event.target.closest("details.drop-down")));
  document.addEventListener("keydown", (event) => {
    const one = event.key === "Escape" && event.target.closest("details.drop-down[open]");
    if (!one) return;
    one.open = false;
    one.querySelector("summary").focus();
  });

  // -- lists: an address without what is not asked; what is ticked ------------------------------
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.elt.id !== "filter") return;
    for (const [name, value] of Object.entries(event.detail.parameters)) if (value === "") delete event.detail.parameters[name];
  });
  const bulk = document.getElementById("bulk");
  if (bulk) {
    const boxes = () => [...document.querySelectorAll("#list tbody .tick input")];
    const tell = () => {
      const number = boxes().filter((box) => box.checked).length;
      document.getElementById("ticked").textContent = number ? `${number} ticked` : "None ticked";
      for (const button of bulk.querySelectorAll("button")) button.disabled = number === 0;
      const all = document.getElementById("tick-all");
      if (!all) return;
      all.checked = number > 0 && number === boxes().length;
      all.indeterminate = number > 0 && number < boxes().length;
    };
    document.addEventListener("change", (event) => {
      if (event.target.id === "tick-all") for (const box of boxes()) box.checked = event.target.checked;
      if (event.target.closest(".tick")) tell();
    });
    document.addEventListener("spillway:part", tell);
    document.body.addEventListener("htmx:afterSettle", tell);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.dismiss");
    if (button) button.closest("form, section").remove();
  });

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
    let tailHeardAt = now();
    const stop = () => {
      if (stream) stream.close();
      stream = null;
      tail.setAttribute("aria-pressed", "false");
      tail.textContent = "Live tail";
    };
    // A tail that went on after that would hide what it has missed.
    const breakOff = () => {
      const ended = new Date(tailHeardAt[0]);
      stop();
      for (const waiting of box.querySelectorAll(".waiting")) waiting.remove();
      const said = document.createElement("div");
      said.className = "error-box";
      said.setAttribute("role", "alert");
      said.textContent = `The live tail broke off at ${moment(ended)}: the service does not answer. What committed since then is not here; Peek shows it.`;
      box.prepend(said);
    };
    setInterval(() => stream && isLong(tailHeardAt) && breakOff(), 1000);
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
      tailHeardAt = now();
      stream = new EventSource(`${tail.dataset.url}?${query}`);
      for (const name of ["open", "beat", "rows"]) stream.addEventListener(name, () => (tailHeardAt = now()));
      stream.addEventListener("error", breakOff);
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

  // -- what the address names is opened: /ui/slots/audit#rewind ---------------------------------
  const named = () => {
    const place = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!place) return;
    if (place.tagName !== "DETAILS") {
      const folded = place.closest("details:not([open])");
      if (folded) folded.open = true;
      // The browser has gone there already; a reader may be elsewhere by now.
      if (document.activeElement === document.body) place.focus();
      return;
    }
    place.open = true;
    place.scrollIntoView({ block: "center" });
    (place.querySelector("input:not([type=hidden]), button, textarea") || place.querySelector("summary")).focus({ preventScroll: true });
  };
  // After the browser has gone there itself, which takes the focus away.
  addEventListener("load", () => setTimeout(named));
  addEventListener("hashchange", () => setTimeout(named));

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
