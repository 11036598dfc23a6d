// The forms that add something: looking for a table among those that may be ticked, and what does the same beside them.
"use strict";
(() => {
  const filter = (input) => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const labels = [...input.closest(".of-tables").querySelectorAll("label.check")];
    let shown = 0;
    for (const label of labels) {
      const text = label.textContent.toLowerCase();
      // What is ticked stays in sight: it is part of what will be made.
      label.hidden = !label.querySelector("input").checked && !words.every((word) => text.includes(word));
      shown += label.hidden ? 0 : 1;
    }
    document.getElementById("tables-found").textContent = words.length ? `${shown} of ${labels.length} are shown` : "";
  };
  document.addEventListener("input", (event) => {
    if (event.target.id === "f-look-for") filter(event.target);
  });
  // After htmx, which asks for it when it opens.
  addEventListener("load", () => {
    const beside = document.querySelector(".is-beside > .as-commands");
    if (beside && matchMedia("(min-width: 1400px)").matches) beside.open = true;
  });
  document.addEventListener("htmx:afterSwap", () => {
    const input = document.getElementById("f-look-for");
    if (input && input.value) filter(input);
  });
})();
