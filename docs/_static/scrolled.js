// What is wider than its place can be scrolled by the keyboard, too.
function reachable() {
  for (const part of document.querySelectorAll(".table-wrapper, .cell_output, pre")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
addEventListener("toggle", reachable, true); // what was folded had no width
