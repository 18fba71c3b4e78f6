// Equations: what `pymdownx.arithmatex` marks, by KaTeX. `document$` is Material's, on
// which each page arrives.
function renderMath() {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    const display = text.startsWith("\\[");
    katex.render(text.slice(2, -2), element, {displayMode: display, throwOnError: true});
  }
}
if (typeof document$ === "undefined") document.addEventListener("DOMContentLoaded", renderMath);
else document$.subscribe(renderMath);
