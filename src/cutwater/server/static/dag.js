// Draws the steps and channels: a column for each distance from the sources, curves between them.
// The layout is made when the shape changes; every second only texts and classes are set.

import { h, s } from "./dom.js";
import { brief, bytes, count, duration, rate, short } from "./format.js";

const WIDTH = 212, HEIGHT = 92, GAP_X = 240, GAP_Y = 44, MARGIN = 16;
const WORDS = {
  NONE: "", AWAITED: "waits for the barrier", ALIGNING: "aligning",
  SENT: "barrier sent, storing", ACKNOWLEDGED: "acknowledged",
};

// How a step's inputs meet the barrier of the open checkpoint.
export function alignment(found) {
  if (!found) return "";
  const parts = [`${found.aligned.length} of ${found.inputs} inputs aligned`];
  if (found.waiting.length) parts.push(`waits for ${found.waiting.map((input) => input.replace(/^\d+:/, "")).join(", ")}`);
  if (found.behind) parts.push(`${bytes(found.behind)} before the barrier`);
  if (found.held) parts.push(`${bytes(found.held)} held behind it`);
  if (found.recorded) parts.push(`${bytes(found.recorded)} overtaken and recorded`);
  return parts.join(", ");
}

function columns(dag) {
  const depth = new Map(dag.steps.map((step) => [step.id, 0]));
  // Steps come in order, each after those it reads: one pass is enough.
  for (const step of dag.steps) {
    for (const edge of dag.channels) {
      if (edge.reader === step.id && depth.has(edge.source)) {
        depth.set(step.id, Math.max(depth.get(step.id), depth.get(edge.source) + 1));
      }
    }
  }
  const found = [];
  for (const step of dag.steps) (found[depth.get(step.id)] ||= []).push(step.id);
  return found;
}

function layout(dag) {
  const found = columns(dag);
  const place = new Map();
  const tallest = Math.max(1, ...found.map((column) => column.length));
  const middle = MARGIN + (tallest * HEIGHT + (tallest - 1) * GAP_Y) / 2;
  found.forEach((column, at) => {
    // As near as possible to what each step reads, so that few curves cross.
    const weight = (id) => {
      const above = dag.channels.filter((channel) => channel.reader === id && place.has(channel.source));
      return above.length ? above.reduce((sum, channel) => sum + place.get(channel.source).y, 0) / above.length : 0;
    };
    if (at) column.sort((a, b) => weight(a) - weight(b));
    const height = column.length * HEIGHT + (column.length - 1) * GAP_Y;
    column.forEach((id, row) => place.set(id, {
      x: MARGIN + at * (WIDTH + GAP_X), y: middle - height / 2 + row * (HEIGHT + GAP_Y),
    }));
  });
  return {
    place,
    width: 2 * MARGIN + found.length * WIDTH + (found.length - 1) * GAP_X,
    height: 2 * MARGIN + tallest * HEIGHT + (tallest - 1) * GAP_Y,
  };
}

// Where an edge ends at its reader: each input has a door of its own, in the order of the producers.
function door(dag, place, edge) {
  const inputs = dag.channels.filter((channel) => channel.reader === edge.reader && place.has(channel.source))
    .sort((a, b) => place.get(a.source).y - place.get(b.source).y);
  return place.get(edge.reader).y + HEIGHT * (inputs.indexOf(edge) + 1) / (inputs.length + 1);
}

// Where the texts of an edge are: near whichever end has it alone, so that they meet no others.
function spot(dag, edge) {
  const readers = dag.channels.filter((channel) => channel.source === edge.source).length;
  const inputs = dag.channels.filter((channel) => channel.reader === edge.reader).length;
  return readers > inputs ? 0.6 : inputs > readers ? 0.38 : 0.46;
}

function curve(from, to, y2, middle) {
  const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x;
  const bend = Math.max(40, (x2 - x1) / 2);
  // A point of the curve; the barrier waits at the reader's door.
  const at = (t) => {
    const u = 1 - t, mix = (a, b, c, d) => u * u * u * a + 3 * u * u * t * b + 3 * u * t * t * c + t * t * t * d;
    return { x: mix(x1, x1 + bend, x2 - bend, x2), y: mix(y1, y1, y2, y2) };
  };
  return { path: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, text: at(Math.abs(y2 - y1) < HEIGHT / 2 ? 0.44 : middle), barrier: at(0.92) };
}

// What the signs of the drawing mean.
function legend() {
  const sign = (kind, text) => h("span", { class: `sign ${kind}` }, text);
  return h("p", { class: "legend" }, sign("of-source", "source"), sign("of-sink", "sink"), sign("of-flow", "rows flow"), sign("of-behind", "more than 20 batches behind"),
    sign("of-barrier", "the checkpoint's barrier waits here"), sign("of-done", "✓ the step has stored its part"));
}

export class Graph {
  constructor() {
    this.shape = "";
    this.note = h("p", { class: "graph-note", "aria-live": "polite" });
    this.box = h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Steps and channels" });
    this.element = h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "Steps and channels"), this.note), this.box, legend());
  }

  // `open` is the attempt that is under way, if there is one.
  show(dag, open) {
    const shape = JSON.stringify([dag.steps.map((step) => step.id), dag.channels.map((channel) => [channel.source, channel.reader])]);
    if (shape !== this.shape) { this.shape = shape; this.draw(dag); }
    this.update(dag);
    this.say(dag, open);
  }

  draw(dag) {
    this.nodes = new Map();
    this.edges = new Map();
    if (!dag.steps.length) {
      this.box.replaceChildren(h("p", { class: "empty" }, "The steps are shown after the first checkpoint."));
      return;
    }
    const { place, width, height } = layout(dag);
    const lines = [], texts = [], boxes = [];
    for (const edge of dag.channels) {
      if (!place.has(edge.source) || !place.has(edge.reader)) continue;
      const way = curve(place.get(edge.source), place.get(edge.reader), door(dag, place, edge), spot(dag, edge));
      const parts = {
        line: s("path", { d: way.path, class: "edge" }),
        flow: s("path", { d: way.path, class: "flow" }),
        rate: s("text", { x: way.text.x, y: way.text.y - 9, class: "edge-text" }),
        backlog: s("text", { x: way.text.x, y: way.text.y + 18, class: "edge-text faint" }),
        mark: s("text", { x: way.text.x, y: way.text.y + 32, class: "edge-text faint" }),
        barrier: s("g", { class: "barrier", transform: `translate(${way.barrier.x} ${way.barrier.y})` },
          s("rect", { x: -3, y: -13, width: 6, height: 26, rx: 3 })),
        title: s("title", {}),
      };
      // All lines below all texts: where two channels cross, both can be read.
      parts.under = s("g", {}, parts.line, parts.flow);
      parts.group = s("g", { class: "channel" }, parts.title, parts.rate, parts.backlog, parts.mark, parts.barrier);
      lines.push(parts.under);
      texts.push(parts.group);
      this.edges.set(`${edge.source}\n${edge.reader}`, parts);
    }
    for (const step of dag.steps) {
      const { x, y } = place.get(step.id);
      const parts = {
        frame: s("rect", { width: WIDTH, height: HEIGHT, rx: 10, class: "frame" }),
        side: s("rect", { width: 5, height: HEIGHT - 20, x: 0, y: 10, rx: 2.5, class: "side" }),
        name: s("text", { x: 16, y: 24, class: "step-name" }, short(step.id, 24)),
        kind: s("text", { x: 16, y: 41, class: "faint" }),
        rate: s("text", { x: 16, y: 63, class: "step-rate" }),
        mark: s("text", { x: 16, y: 80, class: "faint" }),
        badge: s("text", { x: WIDTH - 12, y: 24, class: "badge", "text-anchor": "end" }),
        late: s("text", { x: WIDTH - 12, y: 63, class: "late", "text-anchor": "end" }),
        title: s("title", {}),
      };
      parts.group = s("g", { class: "step", transform: `translate(${x} ${y})` },
        parts.title, parts.frame, parts.side, parts.name, parts.kind, parts.rate, parts.mark, parts.badge, parts.late);
      boxes.push(parts.group);
      this.nodes.set(step.id, parts);
    }
    this.box.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `${dag.steps.length} steps, ${dag.channels.length} channels` }, lines, texts, boxes));
  }

  update(dag) {
    for (const step of dag.steps) {
      const parts = this.nodes.get(step.id);
      if (!parts) continue;
      const kinds = [step.is_source ? "source" : null, step.sink ? `${(step.target || "").split(" ")[0]} sink`.trim() : null].filter(Boolean);
      const what = [kinds.join(" and ") || "step", step.stateful ? "keeps state" : null].filter(Boolean);
      parts.group.setAttribute("class", `step ${step.barrier.toLowerCase()}${step.sink ? " sink" : ""}${step.is_source ? " source" : ""}`);
      parts.kind.textContent = what.join(", ");
      parts.rate.textContent = step.finished ? "finished" : dag.live ? rate(step.rows_per_second)
        : step.batch === null || step.batch < 0 ? "no batch" : `batch ${count(step.batch)}`;
      parts.mark.textContent = step.watermark ? `watermark ${brief(step.watermark)}` : dag.live ? `batch ${count(step.batch)}` : "";
      const met = step.alignment;
      const aligning = met ? `${met.aligned.length}/${met.inputs} aligned` : "aligning";
      parts.badge.textContent = { AWAITED: "waits", ALIGNING: aligning, SENT: "storing", ACKNOWLEDGED: "✓" }[step.barrier] || "";
      const behind = step.lag.reduce((sum, partition) => sum + partition.lag, 0);
      parts.late.textContent = [step.late_rows ? `${count(step.late_rows)} late` : "",
        step.lag.length ? `${count(behind)} behind` : ""].filter(Boolean).join(", ");
      parts.title.textContent = [step.id, step.description, step.target ? `writes ${step.target}` : "",
        step.rows === null ? "" : `${count(step.rows)} rows in this generation`, WORDS[step.barrier], alignment(met),
        ...step.lag.map((partition) => `${partition.topic}-${partition.partition}: ${count(partition.lag)} behind, at ${count(partition.position)} of ${count(partition.end)}`)].filter(Boolean).join("\n");
    }
    for (const edge of dag.channels) {
      const parts = this.edges.get(`${edge.source}\n${edge.reader}`);
      if (!parts) continue;
      const behind = edge.backlog_messages;
      const mark = `${edge.barrier ? " has-barrier" : ""}${edge.rows_per_second > 0 ? " flows" : ""}${behind > 20 ? " behind" : ""}`;
      parts.group.setAttribute("class", `channel${mark}`);
      parts.under.setAttribute("class", mark);
      parts.rate.textContent = edge.rows_per_second === null ? "" : rate(edge.rows_per_second);
      parts.backlog.textContent = behind === null ? "" : behind === 0 ? "no backlog" : `${count(behind)} ${behind === 1 ? "batch" : "batches"} behind, ${bytes(edge.backlog_bytes)}`;
      parts.mark.textContent = edge.watermark ? `watermark ${brief(edge.watermark)}` : "";
      parts.title.textContent = [`channel ${edge.channel}, read by ${edge.reader}`, edge.reason,
        edge.barrier ? "the barrier is in this channel" : ""].filter(Boolean).join("\n");
    }
  }

  say(dag, open) {
    this.note.classList.toggle("active", dag.checkpoint !== null);
    if (dag.checkpoint === null) {
      this.note.textContent = dag.live ? "" : "as of the current checkpoint";
      return;
    }
    const waiting = dag.steps.filter((step) => step.barrier !== "ACKNOWLEDGED").map((step) => step.id);
    const since = open ? `, ${duration(open.end_to_end_duration)} so far` : "";
    const named = waiting.slice(0, 4).join(", ") + (waiting.length > 4 ? ` and ${waiting.length - 4} more` : "");
    this.note.textContent = `Checkpoint ${dag.checkpoint}${since}: ${dag.steps.length - waiting.length} of ${dag.steps.length} steps have stored their part; `
      + (waiting.length ? `it waits for ${named}` : "it is being decided");
  }
}

const KINDS = [["completed", "aligned"], ["unaligned", "barriers overtook data"], ["savepoint", "savepoint"], ["failed", "failed"], ["in_progress", "under way"]];

// A bar for each of the newest checkpoints: as high as it took, coloured by what became of it.
export function strip(checkpoints, choose) {
  const shown = checkpoints.slice(0, 80).reverse();
  const longest = Math.max(1, ...shown.map((checkpoint) => checkpoint.end_to_end_duration || 0));
  const bars = shown.map((checkpoint, at) => {
    const height = Math.max(3, (checkpoint.end_to_end_duration || 0) / longest * 64);
    const kind = checkpoint.status !== "COMPLETED" ? checkpoint.status.toLowerCase() : checkpoint.is_savepoint ? "savepoint"
      : checkpoint.checkpoint_type === "UNALIGNED_CHECKPOINT" ? "unaligned" : "completed";
    return s("rect", { x: at * 12, y: 68 - height, width: 9, height, rx: 2, class: `bar-${kind}`, onclick: () => choose(checkpoint.id) },
      s("title", {}, `${checkpoint.id}: ${kind.replace("_", " ")}, ${duration(checkpoint.end_to_end_duration)}`));
  });
  return h("div", {}, h("div", { class: "strip" },
    s("svg", { viewBox: `0 0 ${shown.length * 12} 70`, width: shown.length * 12, height: 70, role: "img",
      "aria-label": `How long the newest ${shown.length} checkpoints took; the longest ${duration(longest)}` }, bars)),
    h("p", { class: "legend" }, shown.length ? `the newest ${shown.length}; the longest took ${duration(longest)}` : "no checkpoint yet",
      shown.length ? KINDS.map(([kind, text]) => h("span", { class: `sign is-${kind}` }, text)) : null));
}
