"use strict";
const main = document.querySelector("main");
const rows = [...main.querySelectorAll("tr")];
for (const name of ["ran", "odd", "changed", "different"]) {
  const box = document.getElementById(name);
  if (box === null) continue;
  const apply = () => main.classList.toggle("only-" + name, box.checked);
  box.addEventListener("change", apply);
  apply();
}
document.getElementById("search").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase();
  for (const row of rows) row.classList.toggle("hidden", words !== "" && !row.textContent.toLowerCase().includes(words));
});
