"use strict";
// Draws the charts of a truestep report and pages long lists. All text goes in as text, never as markup.
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

  // The page's own colours have names; plotly needs their values.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) {
      return typeof value[1] === "number" ? value : value.map((item) => coloured(item, style));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    }
    return value;
  };

  const layoutOf = (figure, isLog) => {
    const axis = {
      gridcolor: "var(--grid)", linecolor: "var(--line)", zeroline: false, automargin: true,
      tickfont: { color: "var(--muted)", size: 12 }, title: { font: { color: "var(--muted)", size: 12 } },
    };
    const given = figure.layout;
    const merge = (own) => ({ ...axis, ...own, title: { ...axis.title, ...(own || {}).title } });
    const narrow = innerWidth < 600;
    return {
      height: figure.height, margin: { l: narrow ? 44 : 56, r: 14, t: 30, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", color: "var(--ink)", size: 12 },
      hovermode: narrow ? "closest" : "x unified", hoverdistance: 30,
      hoverlabel: { bgcolor: "var(--panel)", bordercolor: "var(--line)", font: { color: "var(--ink)" } },
      showlegend: figure.data.length > 1,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: "var(--muted)", size: 12 }, ...given.legend },
      dragmode: narrow ? false : "zoom",
      ...Object.fromEntries(Object.entries(given).filter(([key]) => key !== "legend")),
      xaxis: merge({ title: { text: "step", standoff: 8 }, ...given.xaxis }),
      yaxis: { ...merge(given.yaxis), ...(isLog ? { type: "log", dtick: 1 } : {}) },
    };
  };

  const drawn = new Map();
  const draw = async (element) => {
    const state = drawn.get(element.id) || { figure: await read(element.id + "-data") };
    state.isLog = state.isLog ?? state.figure.is_log;
    drawn.set(element.id, state);
    const style = getComputedStyle(document.documentElement);
    await Plotly.react(
      element,
      coloured(state.figure.data, style),
      coloured(layoutOf(state.figure, state.isLog), style),
      { displayModeBar: false, responsive: true, showTips: false },
    );
    element.dataset.drawn = "yes";
  };

  const start = async () => {
    const charts = [...document.querySelectorAll(".chart")];
    if (!charts.length) return;
    const script = document.createElement("script");
    script.textContent = await packed(byId("plotly"));
    document.head.append(script);
    const eye = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          eye.unobserve(entry.target);
          draw(entry.target);
        }
      }
    }, { rootMargin: "800px" });
    charts.forEach((chart) => eye.observe(chart));
    const again = () => charts.filter((chart) => chart.dataset.drawn).forEach(draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    addEventListener("beforeprint", () => charts.forEach(draw));
    for (const button of document.querySelectorAll("button.log")) {
      button.addEventListener("click", () => {
        const chart = byId(button.dataset.chart);
        const state = drawn.get(chart.id);
        if (!state) return;
        state.isLog = !state.isLog;
        button.setAttribute("aria-pressed", String(state.isLog));
        draw(chart);
      });
    }
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

  const showError = (error) => {
    for (const chart of document.querySelectorAll(".chart:not([data-drawn])")) {
      chart.textContent = "This browser could not draw the chart: " + error.message;
    }
  };
  start().catch(showError);
  document.querySelectorAll(".rest").forEach((list) => page(list).catch(showError));
})();
