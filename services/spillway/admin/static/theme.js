// Before anything else: the theme that was chosen on this browser, if one was, and a language that scripts can use.
"use strict";
(() => {
  // With LANG=C Chromium says "en-US@posix", which Intl refuses with a RangeError: uPlot would not even load.
  try {
    Intl.getCanonicalLocales(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en-US" });
    Object.defineProperty(navigator, "languages", { value: ["en-US"] });
  }
  try {
    const chosen = localStorage.getItem("spillway-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is switched off: the system's choice holds.
  }
})();
