// Ctrl-K: a box that finds sources, databases, slots, subscriptions, tables, pages and actions. The service finds them; here they
// are shown and chosen, by keyboard alone.
"use strict";
(() => {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const field = document.getElementById("palette-text");
  const list = document.getElementById("palette-list");
  const said = document.getElementById("palette-said");
  let entries = [];
  let chosen = 0;
  // The question that the shown answer is of; a slower one that comes later is left.
  let asked = 0;
  let shownFor = null;
  let waiting = 0;

  const choose = (number) => {
    if (!entries.length) {
      field.removeAttribute("aria-activedescendant");
      return;
    }
    chosen = (number + entries.length) % entries.length;
    for (const [at, option] of [...list.children].entries()) option.setAttribute("aria-selected", String(at === chosen));
    field.setAttribute("aria-activedescendant", list.children[chosen].id);
    list.children[chosen].scrollIntoView({ block: "nearest" });
  };
  const go = (number) => {
    const entry = entries[number];
    if (!entry) return;
    dialog.close();
    if (entry.href === "#theme") document.getElementById("theme").click();
    else location.assign(entry.href);
  };
  const show = (found) => {
    entries = found;
    list.replaceChildren(
      ...found.map((entry, number) => {
        const option = document.createElement("li");
        option.id = `palette-${number}`;
        option.setAttribute("role", "option");
        for (const part of ["kind", "title", "detail"]) {
          const text = document.createElement("span");
          text.className = `palette-${part}`;
          text.textContent = entry[part];
          option.append(text);
        }
        option.addEventListener("mousemove", () => chosen !== number && choose(number));
        option.addEventListener("click", () => go(number));
        return option;
      }),
    );
    choose(0);
  };
  const ask = async () => {
    const number = (asked += 1);
    const text = field.value;
    try {
      const response = await fetch(`/ui/palette?${new URLSearchParams({ q: text })}`, { signal: AbortSignal.timeout(10000) });
      if (!response.ok) throw new Error(response.statusText);
      const answer = await response.json();
      if (number !== asked) return;
      shownFor = text;
      show(answer.entries);
      said.textContent = answer.entries.length ? answer.note : "Nothing has that name.";
    } catch {
      if (number === asked) said.textContent = "The service does not answer.";
    }
  };
  const open = () => {
    if (dialog.open) return;
    field.value = "";
    shownFor = null;
    dialog.showModal();
    field.focus();
    ask();
  };

  document.getElementById("palette-open").addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (dialog.open) dialog.close();
      else open();
    }
  });
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, 60);
  });
  field.addEventListener("keydown", async (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter") {
      event.preventDefault();
      // Somebody fast has typed more than is shown.
      clearTimeout(waiting);
      if (shownFor !== field.value) await ask();
      if (shownFor === field.value) go(chosen);
      return;
    } else return;
    event.preventDefault();
  });
  // A click beside the box.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
})();
