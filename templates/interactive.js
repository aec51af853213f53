(function () {
  "use strict";
  var data = document.getElementById("figures");
  if (!data || !window.Plotly) {
    return; // the page's own drawings stay
  }
  var charts = JSON.parse(data.textContent);
  var config = { displayModeBar: false, responsive: true };
  function colours(paper) {
    var style = getComputedStyle(document.documentElement);
    var ink = paper ? "#1a1c1f" : style.getPropertyValue("--ink").trim();
    var sheet = paper ? "#ffffff" : style.getPropertyValue("--sheet").trim();
    return { "font.color": ink, "legend.bgcolor": sheet, "hoverlabel.font.family": "monospace" };
  }
  function dress(paper) {
    Object.keys(charts).forEach(function (id) {
      var element = document.getElementById("chart-" + id);
      if (element && element.data) {
        Plotly.relayout(element, colours(paper));
      }
    });
  }
  Object.keys(charts).forEach(function (id) {
    var element = document.getElementById("chart-" + id);
    if (!element) {
      return;
    }
    element.replaceChildren();
    Plotly.newPlot(element, charts[id].data, charts[id].layout, config).then(function () {
      Plotly.relayout(element, colours(false));
      element.setAttribute("data-drawn", "yes");
    });
  });
  document.querySelectorAll("details").forEach(function (fold) {
    fold.addEventListener("toggle", function () {
      fold.querySelectorAll(".chart[data-drawn]").forEach(function (element) { Plotly.Plots.resize(element); });
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { dress(false); });
  addEventListener("beforeprint", function () { dress(true); });
  addEventListener("afterprint", function () { dress(false); });
})();
