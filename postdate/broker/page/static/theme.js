// Sets the theme before anything is drawn: the browser's own, or the one that was chosen with the button.
(() => {
  const chosen = localStorage.getItem("postdate.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
