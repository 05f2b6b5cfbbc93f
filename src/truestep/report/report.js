"use strict";
// Pages the long lists of a truestep report. All text goes in as text, never as markup.
(function () {
  const byId = (id) => document.getElementById(id);
  const packed = async (element) => {
    const bytes = Uint8Array.from(atob(element.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const read = async (id) => {
    const element = byId(id);
    return JSON.parse(element.type === "application/json" ? element.textContent : await packed(element));
  };

  const make = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const card = (fields) => {
    const article = make("article", undefined, "finding " + fields.tone);
    const head = make("h3");
    head.append(make("span", fields.tone_word, "badge " + fields.tone), " " + fields.title);
    article.append(head);
    if (fields.place) {
      const place = make("p");
      place.append(make("code", fields.place));
      article.append(place);
    }
    article.append(make("p", fields.message));
    const rows = make("dl");
    for (const [name, value] of fields.rows) rows.append(make("dt", name), make("dd", value));
    if (fields.rows.length) article.append(rows);
    return article;
  };

  const page = async (list) => {
    const all = await read(list.id.replace(/-list$/, "-rest"));
    const shown = list.querySelector(".shown"), state = list.querySelector(".state");
    const filter = list.querySelector("input"), further = list.querySelector("button");
    const step = Number(list.dataset.step);
    const words = all.map((item) => JSON.stringify(Object.values(item)).toLowerCase());
    let found = all, num = 0;
    const show = (count) => {
      shown.append(...found.slice(num, num + count).map(card));
      num = Math.min(num + count, found.length);
      const what = filter.value ? `with “${filter.value}”` : "more";
      state.textContent = `${num.toLocaleString("en")} of ${found.length.toLocaleString("en")} ${what} are shown.`;
      further.disabled = num >= found.length;
    };
    further.addEventListener("click", () => show(step));
    let timer = 0;
    filter.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        const wanted = filter.value.toLowerCase();
        found = wanted ? all.filter((_, index) => words[index].includes(wanted)) : all;
        shown.replaceChildren();
        num = 0;
        show(wanted ? step : 0);
      }, 150);
    });
    list.dataset.ready = "yes";
  };

  document.querySelectorAll(".rest").forEach((list) => page(list).catch((error) => {
    list.querySelector(".state").textContent = "This browser could not read the list: " + error.message;
  }));
})();
