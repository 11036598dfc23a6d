// Before anything is painted: the theme that was chosen on this browser, if one was.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("spillway-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is switched off: the system's choice holds.
  }
})();
