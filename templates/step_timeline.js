// The timeline of a step: bars on a canvas, to zoom, to read with the mouse or the keyboard. No library.
(() => {
  "use strict";
  const ROW = 15, GAP = 2, HEAD = 20, LEVELS = ["annotation", "annotation", "operator", "operator", "call"];
  const KINDS = { compute: "compute", wait: "waiting for ranks", transfer: "transfer", annotation: "host: annotation", operator: "host: operator", call: "host: waits in a call" };

  for (const box of document.querySelectorAll(".step-timeline")) {
    const data = JSON.parse(box.querySelector("script").textContent);
    if (typeof DecompressionStream !== "undefined" && data.steps.length) start(box, data);
  }

  function start(box, data) {
    const canvas = box.querySelector("canvas"), hover = box.querySelector(".step-hover"), said = box.querySelector(".step-said");
    const choice = box.querySelector(".step-choice"), pen = canvas.getContext("2d"), cache = new Map();
    const shown = { t: data.ranks <= 8, s: true, c: true };
    const fold = box.querySelector(".step-fold input"), every = data.shown || [];
    let step = null, rows = [], lines = [], from = 0, to = 1, label = 168, colours = {}, chosen = null, marked = null, waiting = false, drag = null, range = null;
    const search = box.querySelector(".step-search"), keys = box.querySelector(".step-keys");

    data.steps.forEach((one, place) => {
      const option = document.createElement("option");
      option.value = place;
      option.textContent = one.step === null ? "whole window" : one.step + (place === data.first && data.steps.length > 1 ? " (longest)" : "");
      choice.append(option);
    });
    for (const input of box.querySelectorAll("[data-show]")) {
      input.checked = shown[input.dataset.show];
      input.addEventListener("change", () => { shown[input.dataset.show] = input.checked; layOut(); });
    }

    fold.closest("label").hidden = !data.folded;
    fold.checked = !!data.folded && every.length > 4;
    fold.addEventListener("change", layOut);

    async function unpack(place) {
      if (!cache.has(place)) cache.set(place, decode(data.steps[place].data));
      return cache.get(place);
    }

    async function open(place, rank) {
      choice.value = place;
      step = { place, ...(await unpack(place)) };
      if (typeof data.names === "string") data.names = parsed(await inflated(data.names));
      from = 0; to = step.length; chosen = range = null; marked = rank ?? null;
      if (fold.checked && rank !== undefined && !data.folded.some(one => one.rank === rank)) fold.checked = false;
      layOut();
      if (rank !== undefined) {
        const at = rows.findIndex(row => row.rank === rank);
        if (at >= 0) canvas.parentElement.scrollTop = Math.max(rows[at].y - HEAD - ROW - 8, 0);
        said.textContent = at >= 0 ? "" : `Rank ${rank} is not among the ranks drawn here: ${step.ranks.map(one => one.rank).join(", ")}.`;
      } else said.textContent = whatIsShown();
    }

    function whatIsShown() {
      const other = data.unlike ? ` ${data.unlike} ranks are like none of these.` : "";
      const few = step.ranks.length < data.ranks ? `${step.ranks.length} of ${data.ranks} ranks.${other} ` : "";
      const unseen = step.ranks.reduce((sum, one) => sum + one.unseen, 0);
      const less = unseen ? ` ${unseen} short transfers are not drawn.` : "";
      const apart = data.aligned ? "" : " The clocks of these ranks could not be compared: do not compare their positions.";
      return few + "Hover a bar, drag to measure, or press ? for the keys." + less + apart;
    }

    // The step's ranks by host; one of each kind, where alike ranks are one.
    function order() {
      const own = new Map(step.ranks.map(one => [one.rank, one])), list = fold.checked ? data.folded : every;
      const known = list.filter(one => own.has(one.rank)).map(one => ({ ...one, rank: own.get(one.rank) }));
      const named = new Set((fold.checked ? [...data.folded, ...every] : every).map(one => one.rank));
      const rest = step.ranks.filter(one => !named.has(one.rank));
      return [...known, ...rest.map(rank => ({ rank, host: "", label: "", count: 1 }))];
    }

    // Rows from top to bottom; each with its bars as columns in ns since the step's zero.
    function layOut() {
      rows = []; lines = [];
      let y = HEAD, host = "";
      for (const { rank, host: on, label: who, count } of order()) {
        const own = [], stages = Math.max(0, ...rank.moved.map(one => one[9] + 1));
        const threads = [...new Set(rank.lanes.filter(lane => lane.of === "t").map(lane => lane.number))];
        const streams = rank.lanes.filter(lane => lane.of === "s").length;
        let named = null;
        for (const lane of [...rank.lanes].sort((a, b) => (a.of === "s") - (b.of === "s") || a.number - b.number || a.level - b.level)) {
          if (!shown[lane.of] || !lane.start.length) continue;
          const host = lane.of === "t", thread = `host${threads.length > 1 ? ` ${threads.indexOf(lane.number) + 1}` : ""}`;
          const title = host ? thread : streams > 1 ? `compute ${lane.number}` : "compute";
          own.push({ ...lane, title, says: host ? `${thread}, ${LEVELS[lane.level]}` : `stream ${lane.number}`, label: title === named ? "" : title, kind: host ? LEVELS[lane.level] : "compute" });
          named = title;
        }
        if (shown.c) {
          for (const role of [...new Set(rank.moved.map(one => one[5]))].sort()) {
            for (let stage = 0; stage < stages; stage++) {
              const moved = rank.moved.filter(one => one[5] === role && one[9] === stage);
              const name = data.roles[role];
              const title = name === "unknown role" ? "communication" : name;
              if (moved.length) own.push({ of: "c", moved, title, says: title, label: stage ? "" : title, kind: "transfer",
                start: moved.map(one => one[0]), end: moved.map(one => one[2]) });
            }
          }
        }
        if (own.length && on !== host) { lines.push({ y, text: /^host/i.test(on) ? on : `host ${on}`, host: true }); y += ROW + 5; host = on; }
        const apart = count > 1 || who.length > 8;  // else it stands beside the row's own name
        if (own.length && apart) { lines.push({ y, text: who, rank: rank.rank }); y += ROW + GAP; }
        own.forEach((row, at) => {
          rows.push({ ...row, rank: rank.rank, first: at === 0 && !apart, begin: rank.begin, over: rank.end, y, last: at === own.length - 1 });
          y += ROW + (at === own.length - 1 ? 10 : GAP);
        });
      }
      canvas.style.height = `${Math.max(y, 60)}px`;
      chosen = range = null;
      redraw();
    }

    function redraw() {
      if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); }
    }

    function readColours() {
      const style = getComputedStyle(document.documentElement);
      const of = name => style.getPropertyValue(name).trim();
      colours = { ink: of("--ink"), soft: of("--soft"), sheet: of("--sheet"), line: of("--line"), link: of("--link"), text: of("--bar-ink"), light: "#ffffff", dark: "#14171a", head: of("--head") };
      for (const kind of ["annotation", "operator", "call", "compute", "wait", "transfer", "unmatched"]) colours[kind] = of(`--bar-${kind}`);
    }

    const width = () => canvas.clientWidth;
    const xOf = ns => label + (ns - from) / (to - from) * (width() - label);
    const nsOf = x => from + (x - label) / (width() - label) * (to - from);

    function draw() {
      const ratio = window.devicePixelRatio || 1, high = canvas.clientHeight, wide = width();
      label = wide < 600 ? 132 : 168;
      if (!wide || !step) return;
      if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
        canvas.width = Math.round(wide * ratio); canvas.height = Math.round(high * ratio);
      }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = colours.sheet; pen.fillRect(0, 0, wide, high);
      pen.textBaseline = "middle";
      ticks(wide, high);
      pen.save();
      pen.beginPath(); pen.rect(label, HEAD, wide - label, high - HEAD); pen.clip();
      for (const row of rows) drawRow(row, wide);
      if (range) {
        const left = xOf(range.from), right = xOf(range.to);
        pen.fillStyle = colours.link; pen.globalAlpha = .18; pen.fillRect(left, range.top, right - left, range.bottom - range.top);
        pen.globalAlpha = 1; pen.strokeStyle = colours.link; pen.strokeRect(left + .5, range.top + .5, right - left - 1, range.bottom - range.top - 1);
      }
      pen.restore();
      labels(wide);
    }

    function ticks(wide, high) {
      const about = (to - from) / Math.max((wide - label) / 110, 2), power = 10 ** Math.floor(Math.log10(about));
      const each = [1, 2, 5, 10].map(n => n * power).find(n => n >= about);
      pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center";
      for (let at = Math.ceil(from / each) * each; at <= to; at += each) {
        const x = Math.round(xOf(at)) + .5;
        pen.strokeStyle = colours.line; pen.beginPath(); pen.moveTo(x, HEAD - 4); pen.lineTo(x, high); pen.stroke();
        pen.fillStyle = colours.soft; pen.fillText(time(at, each), Math.min(Math.max(x, label + 22), wide - 24), 8);
      }
    }

    function labels(wide) {
      pen.textAlign = "left";
      for (const line of lines) {
        if (line.host) { pen.fillStyle = colours.head; pen.fillRect(0, line.y - 3, wide, ROW + 4); }
        pen.font = line.host ? "600 11.5px system-ui, sans-serif" : "600 12px system-ui, sans-serif";
        pen.fillStyle = !line.host && line.rank === marked ? colours.link : colours.ink;
        pen.fillText(fit(line.text, wide - 8), 4, line.y + ROW / 2);
      }
      for (const row of rows) {
        if (row.first) {
          if (row.rank === marked) { pen.fillStyle = colours.head; pen.fillRect(0, row.y - 2, label - 4, ROW + 3); }
          pen.font = "600 12px system-ui, sans-serif"; pen.fillStyle = row.rank === marked ? colours.link : colours.ink;
          pen.fillText(`rank ${row.rank}`, 4, row.y + ROW / 2);
        }
        pen.font = "11px system-ui, sans-serif"; pen.fillStyle = chosen && chosen.row === row ? colours.link : colours.soft;
        pen.fillText(fit(row.label, label - 66), 62, row.y + ROW / 2);
        if (row.last) { pen.strokeStyle = colours.line; pen.beginPath(); pen.moveTo(0, row.y + ROW + 5.5); pen.lineTo(wide, row.y + ROW + 5.5); pen.stroke(); }
      }
    }

    function drawRow(row, wide) {
      const first = lower(row.end, from), count = row.start.length;
      let reached = -1;
      for (let at = first; at < count && row.start[at] < to; at++) {
        const left = xOf(row.start[at]), right = xOf(row.end[at]);
        if (right < reached + .5 && right - left < 1) continue;  // below a pixel that is painted already
        const x = Math.max(left, label - 2), w = Math.max(Math.min(right, wide + 2) - x, 1);
        reached = x + w;
        if (row.of === "c") drawTransfer(row.moved[at], x, w, row.y);
        else {
          pen.fillStyle = colours[row.kind];
          pen.globalAlpha = row.counts[at] > 1 ? .65 : shade(row.name[at]);
          pen.fillRect(x, row.y, w > 3 ? w - .6 : w, ROW);
          pen.globalAlpha = 1;
          if (w > 34) word(row.counts[at] > 1 ? `${row.counts[at]} × ${data.names[row.name[at]]}` : data.names[row.name[at]], x, w, row.y, row.kind);
        }
        if (chosen && chosen.row === row && chosen.at === at) {
          pen.strokeStyle = colours.ink; pen.lineWidth = 2; pen.strokeRect(x + 1, row.y + 1, Math.max(w - 2, 2), ROW - 2); pen.lineWidth = 1;
        }
      }
    }

    function drawTransfer(one, x, w, y) {
      const [begin, turn, , op] = one, right = x + w;
      if (turn < 0) { pen.fillStyle = colours.unmatched; pen.fillRect(x, y, w, ROW); if (w > 34) word(step.words[op], x, w, y, "transfer"); return; }
      const middle = Math.min(Math.max(xOf(turn), x), right);
      if (turn > begin && middle > x) {
        pen.fillStyle = colours.wait; pen.fillRect(x, y + 3, middle - x, ROW - 6);
        if (middle - x > 40) word(one[8] >= 0 ? `wait for rank ${one[8]}` : "wait", x, middle - x, y, "wait");
      }
      pen.fillStyle = colours.transfer; pen.fillRect(middle, y, Math.max(right - middle - .6, 1), ROW);
      if (right - middle > 34) word(step.words[op] + (one[6] >= 0 ? ` ${size(one[6])}` : ""), middle, right - middle, y, "transfer");
    }

    function word(text, x, w, y, kind) {
      pen.font = "10.5px system-ui, sans-serif"; pen.textAlign = "left";
      pen.fillStyle = kind === "compute" ? colours.light : kind === "annotation" || kind === "operator" ? colours.text : colours.dark;
      const room = Math.min(w, width() - x) - 6;
      if (room > 20) pen.fillText(fit(text, room), x + 3, y + ROW / 2 + .5);
    }

    function fit(text, room) {
      if (pen.measureText(text).width <= room) return text;
      let low = 0, high = text.length;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(text.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
      }
      return low ? text.slice(0, low) + "…" : "";
    }

    // What a bar is, in words: what the trace says, and what it does not say is left out.
    function tell(row, at) {
      const lasts = row.end[at] - row.start[at], lines = [`Rank ${row.rank}, ${row.says}`];
      if (row.of === "c") {
        const [begin, turn, end, op, group, role, bytes, rate, last] = row.moved[at];
        lines.push([step.words[op], bytes >= 0 ? size(bytes) : "", step.words[group] && `group ${step.words[group]}`, data.roles[role]].filter(Boolean).join(" · "));
        if (turn < 0) lines.push(`${time(end - begin)} in all; not matched with other ranks, so how much of it is waiting is unknown`);
        else {
          lines.push(`waited ${time(turn - begin)}, then transferred for ${time(end - turn)}`);
          if (last >= 0) lines.push(last === row.rank ? "this rank came last" : `rank ${last} came last`);
          if (rate !== null) lines.push(`bus bandwidth of the transfer ${Number(rate.toPrecision(3))} GB/s, the waiting left out`);
        }
      } else if (row.counts[at] > 1) {
        lines.push(`${row.counts[at]} events drawn as one; the longest is`, data.names[row.name[at]]);
        lines.push(`${time(row.busy[at])} of ${time(lasts)} busy`);
      } else lines.push(data.names[row.name[at]], time(lasts));
      lines.push(`starts at ${time(row.start[at])}`);
      return lines.join("\n");
    }

    function find(x, y) {
      const row = rows.find(one => y >= one.y - 1 && y < one.y + ROW + 1);
      if (!row || x < label) return null;
      const slack = (to - from) / (width() - label) * 2, ns = nsOf(x);
      let at = lower(row.end, ns - slack), best = null;
      for (; at < row.start.length && row.start[at] <= ns + slack; at++) {
        const far = Math.max(row.start[at] - ns, ns - row.end[at], 0);
        if (best === null || far < best.far) best = { row, at, far };
      }
      return best;
    }

    function point(event) {
      const bounds = canvas.getBoundingClientRect(), x = event.clientX - bounds.left, y = event.clientY - bounds.top;
      const found = find(x, y);
      hover.hidden = !found;
      canvas.style.cursor = drag && !drag.measures ? "grabbing" : found ? "pointer" : "crosshair";
      if (!found) return;
      hover.textContent = tell(found.row, found.at);
      hover.style.left = `${Math.max(0, Math.min(x + 14, bounds.width - hover.offsetWidth - 4))}px`;
      hover.style.top = `${y + 18 + hover.offsetHeight > bounds.height ? Math.max(y - hover.offsetHeight - 10, 0) : y + 18}px`;
    }

    function move(first, last) {
      const least = Math.min(2000, step.length), all = step.length;
      let span = Math.min(Math.max(last - first, least), all);
      from = Math.min(Math.max(first, 0), all - span); to = from + span;
      redraw();
    }
    const zoom = (by, at = (from + to) / 2) => move(at - (at - from) * by, at + (to - at) * by);

    function select(row, at) {
      chosen = { row, at };
      const margin = (to - from) * .02;
      if (row.start[at] < from || row.end[at] > to) {
        const span = Math.max(to - from, (row.end[at] - row.start[at]) * 1.2);
        move(row.start[at] - margin, row.start[at] - margin + span);
      }
      said.textContent = tell(row, at);
      const view = canvas.parentElement;
      if (row.y - HEAD < view.scrollTop || row.y + ROW > view.scrollTop + view.clientHeight) view.scrollTop = Math.max(row.y - view.clientHeight / 2, 0);
      redraw();
    }

    // The rows from one height to another (all of them, from the time axis) between two moments: how long each kind takes.
    function measure(x, y) {
      const moments = [drag.at, nsOf(Math.max(x, label))].sort((a, b) => a - b), all = drag.y < HEAD;
      const [top, bottom] = all ? [HEAD, canvas.clientHeight] : [drag.y, y].sort((a, b) => a - b);
      const inside = rows.filter(row => row.y + ROW >= top && row.y <= bottom);
      if (!inside.length) return;
      range = { from: Math.max(moments[0], 0), to: Math.min(moments[1], step.length),
        top: Math.min(...inside.map(row => row.y)) - 1, bottom: Math.max(...inside.map(row => row.y)) + ROW + 1 };
      const sums = new Map(), add = (kind, start, end, share = 1) => {
        const lasts = Math.max(Math.min(end, range.to) - Math.max(start, range.from), 0) * share;
        if (lasts) sums.set(kind, (sums.get(kind) || 0) + lasts);
      };
      for (const row of inside) {
        if (row.of === "t" && row.level % 2 && row.level < 4) continue;  // inside bars of the row above
        for (let at = lower(row.end, range.from); at < row.start.length && row.start[at] < range.to; at++) {
          if (row.of === "c") {
            const [begin, turn, end] = row.moved[at];
            if (turn < 0) add("not matched", begin, end);
            else { add(KINDS.wait, begin, turn); add(KINDS.transfer, turn, end); }
          } else add(KINDS[row.kind], row.start[at], row.end[at], row.counts[at] > 1 ? row.busy[at] / Math.max(row.end[at] - row.start[at], 1) : 1);
        }
      }
      const ranks = new Set(inside.map(row => row.rank)).size, over = ranks > 1 ? `, summed over ${ranks} ranks` : "";
      const parts = [...sums].sort((a, b) => b[1] - a[1]).map(([kind, ns]) => `${kind} ${time(ns)}`);
      said.textContent = `${time(range.to - range.from)} selected${over}: ${parts.join(" · ") || "nothing runs"}`;
      redraw();
    }

    // The next bar whose name has the words, behind the chosen one.
    function seek(words) {
      const wanted = words.trim().toLowerCase();
      if (!wanted || !rows.length) return;
      const first = chosen ? rows.indexOf(chosen.row) : 0;
      for (let turn = 0; turn <= rows.length; turn++) {
        const row = rows[(first + turn) % rows.length];
        for (let at = turn || !chosen ? 0 : chosen.at + 1; at < row.start.length; at++) {
          const name = row.of === "c" ? step.words[row.moved[at][3]] : data.names[row.name[at]];
          if (name.toLowerCase().includes(wanted)) { select(row, at); return; }
        }
      }
      said.textContent = `No bar's name has “${words}”.`;
    }

    function frame() {
      const [first, last] = range ? [range.from, range.to] : chosen ? [chosen.row.start[chosen.at], chosen.row.end[chosen.at]] : [0, step.length];
      const margin = range ? 0 : (last - first) * .1;
      move(first - margin, last + margin);
    }

    function byKey(event) {
      const span = to - from, at = chosen ? rows.indexOf(chosen.row) : -1;
      const does = {
        w: () => zoom(.5), s: () => zoom(2), a: () => move(from - span * .2, to - span * .2), d: () => move(from + span * .2, to + span * .2),
        f: frame, "/": () => search.focus(), "?": () => { keys.hidden = !keys.hidden; },
        ArrowLeft: () => move(from - span * .2, to - span * .2), ArrowRight: () => move(from + span * .2, to + span * .2),
        "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), 0: () => move(0, step.length), Home: () => move(0, step.length),
        ArrowUp: () => near(at < 0 ? 0 : Math.max(at - 1, 0)), ArrowDown: () => near(at < 0 ? 0 : Math.min(at + 1, rows.length - 1)),
        ".": () => at >= 0 && select(chosen.row, Math.min(chosen.at + 1, chosen.row.start.length - 1)),
        ",": () => at >= 0 && select(chosen.row, Math.max(chosen.at - 1, 0)),
        PageUp: () => go(step.place - 1), PageDown: () => go(step.place + 1),
        Escape: () => { chosen = range = null; hover.hidden = keys.hidden = true; said.textContent = whatIsShown(); redraw(); },
      };
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      if (event.ctrlKey || event.metaKey || event.altKey || !does[key]) return;
      event.preventDefault();
      does[key]();
    }

    function near(place) {
      const row = rows[place];
      if (!row) return;
      const middle = chosen ? (chosen.row.start[chosen.at] + chosen.row.end[chosen.at]) / 2 : from;
      select(row, Math.min(lower(row.end, Math.max(middle, from)), row.start.length - 1));
    }

    function go(place, rank) {
      if (place >= 0 && place < data.steps.length) open(place, rank);
    }

    // #step=12&rank=3: the address of a place in the timeline.
    function fromAddress(scroll) {
      const words = new URLSearchParams(location.hash.slice(1));
      if (!words.has("step") && !words.has("rank")) return false;
      const place = words.has("step") ? data.steps.findIndex(one => String(one.step) === words.get("step")) : data.first;
      go(place < 0 ? data.first : place, words.has("rank") ? Number(words.get("rank")) : undefined);
      if (scroll) box.scrollIntoView({ block: "start" });
      return true;
    }

    document.addEventListener("click", event => {
      const link = event.target.closest && event.target.closest("a[data-step]");
      if (!link) return;
      event.preventDefault();
      const words = new URLSearchParams();
      if (link.dataset.step) words.set("step", link.dataset.step);
      if (link.dataset.rank) words.set("rank", link.dataset.rank);
      if (location.hash === `#${words}`) fromAddress(true); else location.hash = `${words}`;
      canvas.focus({ preventScroll: true });
    });
    window.addEventListener("hashchange", () => fromAddress(true));
    choice.addEventListener("change", () => go(Number(choice.value)));
    for (const button of box.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => ({ in: () => zoom(.5), out: () => zoom(2), all: () => move(0, step.length), keys: () => { keys.hidden = !keys.hidden; } })[button.dataset.do]());
    }
    canvas.addEventListener("keydown", byKey);
    search.addEventListener("keydown", event => {
      if (event.key === "Enter") { event.preventDefault(); seek(search.value); }
      if (event.key === "Escape") canvas.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", event => {
      if (drag && drag.measures) {
        const bounds = canvas.getBoundingClientRect();
        if (Math.abs(drag.x - event.clientX) > 3) drag.moved = true;
        if (drag.moved) { hover.hidden = true; measure(event.clientX - bounds.left, event.clientY - bounds.top); return; }
      } else if (drag) {
        const by = (drag.x - event.clientX) / (width() - label) * (to - from);
        if (Math.abs(drag.x - event.clientX) > 3) drag.moved = true;
        drag.x = event.clientX;
        move(from + by, to + by);
      }
      point(event);
    });
    // A mouse measures, and moves what is shown with shift; a finger moves it.
    canvas.addEventListener("pointerdown", event => {
      const bounds = canvas.getBoundingClientRect(), measures = event.pointerType === "mouse" && !event.shiftKey;
      drag = { x: event.clientX, y: event.clientY - bounds.top, at: nsOf(Math.max(event.clientX - bounds.left, label)), moved: false, measures };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", event => {
      const bounds = canvas.getBoundingClientRect(), found = drag && !drag.moved && find(event.clientX - bounds.left, event.clientY - bounds.top);
      drag = null;
      if (found) select(found.row, found.at);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { hover.hidden = true; });
    canvas.addEventListener("dblclick", event => zoom(.25, nsOf(event.clientX - canvas.getBoundingClientRect().left)));
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;  // plain turning scrolls the page
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : .8, nsOf(event.clientX - canvas.getBoundingClientRect().left));
    }, { passive: false });
    new ResizeObserver(redraw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });

    const legend = box.querySelector(".step-legend");
    for (const kind of ["compute", "wait", "transfer", "annotation", "operator", "call"]) {
      const item = document.createElement("li");
      item.className = "swatch"; item.textContent = KINDS[kind]; item.style.setProperty("--colour", `var(--bar-${kind})`);
      legend.append(item);
    }
    box.hidden = false;
    readColours();
    if (!fromAddress(false)) open(data.first);
  }

  // Bars of one name have one shade.
  const shade = name => .78 + (name * 7 % 5) * .055;

  const parsed = bytes => JSON.parse(new TextDecoder().decode(bytes));

  async function inflated(text) {
    const zipped = Uint8Array.from(atob(text.replaceAll("-", "/")), char => char.charCodeAt(0));
    return new Uint8Array(await new Response(new Blob([zipped]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
  }

  async function decode(text) {
    const bytes = await inflated(text);
    const length = new DataView(bytes.buffer).getUint32(0, true), head = parsed(bytes.subarray(4, 4 + length));
    const planes = bytes.subarray(4 + length), count = planes.length / 4;
    const lanes = head.ranks.flatMap(rank => rank.lanes = rank.lanes.map(([of, number, level, n]) => ({ of, number, level, n })));
    let at = 0;
    // Of all lanes one column after the other; a gap is less than nothing where bars overlap.
    const columns = signed => lanes.map(({ n }) => {
      const values = new Float64Array(n);
      for (let i = 0; i < n; i++, at++) {
        const value = planes[at] + planes[at + count] * 256 + planes[at + 2 * count] * 65536 + planes[at + 3 * count] * 16777216;
        values[i] = signed && value >= 2147483648 ? value - 4294967296 : value;
      }
      return values;
    });
    const [gaps, lasts, names, more, idle] = [columns(true), columns(), columns(), columns(), columns()];
    lanes.forEach((lane, place) => {
      const n = lane.n, start = new Float64Array(n), end = new Float64Array(n), busy = new Float64Array(n);
      for (let i = 0, reached = 0; i < n; i++) {
        const begin = reached + gaps[place][i];
        reached = begin + lasts[place][i];
        start[i] = begin * head.unit; end[i] = reached * head.unit; busy[i] = (lasts[place][i] - idle[place][i]) * head.unit;
      }
      Object.assign(lane, { start, end, busy, name: names[place], counts: more[place].map(one => one + 1) });
    });
    for (const rank of head.ranks) {
      let before = 0;
      for (const one of rank.moved) {
        const start = before += one[0];
        one.splice(0, 3, start, one[1] === null ? -1 : start + one[1], start + one[2]);
      }
      rank.moved.sort((a, b) => a[0] - b[0]);
    }
    return head;
  }

  // The first place whose value is beyond a moment.
  function lower(ends, moment) {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] <= moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  function time(ns, of = Math.abs(ns)) {
    const [scale, unit] = of >= 1e9 ? [1e9, "s"] : of >= 1e6 || ns === 0 ? [1e6, "ms"] : of >= 1e3 && Math.abs(ns) < 1e6 ? [1e3, "µs"] : Math.abs(ns) >= 1e6 ? [1e6, "ms"] : Math.abs(ns) >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    return `${Number((ns / scale).toPrecision(4))} ${unit}`;
  }

  function size(bytes) {
    const [scale, unit] = bytes >= 1e9 ? [1e9, "GB"] : bytes >= 1e6 ? [1e6, "MB"] : bytes >= 1e3 ? [1e3, "kB"] : [1, "bytes"];
    return `${Number((bytes / scale).toPrecision(3))} ${unit}`;
  }
})();
