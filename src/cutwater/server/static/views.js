// The smaller views: recoveries, tables at a cut, and what a rewind would do.

import { get, job } from "./api.js";
import { card, facts, h, s, table } from "./dom.js";
import { bytes, count, duration, moment } from "./format.js";

const PHASES = [["choose", "choose"], ["commit_replay", "commit replay"], ["fetch", "fetch"], ["start", "start"], ["first_batch", "first batch"]];

function phases(recovery) {
  let at = 0;
  const total = Math.max(1, recovery.total);
  const bars = PHASES.map(([field, label]) => {
    const width = (recovery[field] || 0) / total * 400;
    const bar = s("rect", { x: at, y: 0, width: Math.max(0, width - 1), height: 14, rx: 2, class: `phase-${field}` },
      s("title", {}, `${label} ${duration(recovery[field])}`));
    at += width;
    return bar;
  });
  return s("svg", { viewBox: "0 0 400 14", class: "phases", role: "img",
    "aria-label": PHASES.map(([field, label]) => `${label} ${duration(recovery[field])}`).join(", ") }, bars);
}

export function recoveries(list) {
  const rows = list.recoveries.map((recovery) => h("tr", {}, h("td", { class: "id" }, recovery.generation),
    h("td", {}, moment(recovery.timestamp)), h("td", {}, recovery.checkpoint_id === null ? "nothing" : `checkpoint ${recovery.checkpoint_id}`),
    h("td", { class: "right" }, duration(recovery.total)), h("td", {}, phases(recovery)),
    PHASES.map(([field]) => h("td", { class: "right" }, duration(recovery[field]))),
    h("td", { class: "right" }, count(recovery.repeated_commits)), h("td", { class: "right" }, bytes(recovery.state_size)),
    h("td", { class: "notes" }, recovery.reason ? h("span", { class: "why" }, recovery.reason) : "start of a process")));
  const right = (text) => ({ text, right: true });
  return card("Recoveries", h("p", { class: "faint" },
    "How each generation started: choose the cut and check every byte, repeat decided commits, fetch state, start, first batch."),
  table("plain", ["Generation", "Began", "From", right("Total"), "Phases", right("Choose"), right("Commit Replay"), right("Fetch"), right("Start"),
    right("First Batch"), right("Repeated Commits"), right("State"), "Why"], rows, "No recovery is recorded yet."));
}

export function tables(list) {
  const sinks = [...new Set([...list.sinks.map((row) => row.sink), ...list.cuts.flatMap((cut) => Object.keys(cut.versions))])].sort();
  const where = list.sinks.map((row) => h("tr", {}, h("th", { scope: "row" }, row.sink), h("td", {}, row.format), h("td", { class: "path" }, row.target)));
  const cuts = list.cuts.map((cut) => h("tr", { class: cut.is_current ? "current-row" : null }, h("td", { class: "id" }, cut.checkpoint), h("td", {}, moment(cut.timestamp)),
    sinks.map((sink) => h("td", { class: "right" }, cut.versions[sink] ?? "–")),
    h("td", {}, cut.is_current ? h("span", { class: "tag current" }, "current") : cut.name ? h("span", { class: "tag savepoint" }, cut.name) : "")));
  return [card("Sinks", table("plain", ["Sink", "Format", "Target"], where, "The store does not say where sinks write.")),
    card("Tables at a Cut", h("p", { class: "faint" }, "Each row is one moment: at these versions, all tables show the same cut of the pipeline."),
      table("plain", ["Checkpoint", "Began", ...sinks.map((text) => ({ text, right: true })), ""], cuts, "No sink has committed yet."))];
}

export class RewindView {
  constructor(jobId) {
    this.jobId = jobId;
    this.input = h("input", { id: "rewind-to", name: "to", autocomplete: "off", placeholder: "41, before-the-release, 2026-11-13 14:00", maxlength: "200" });
    this.result = h("div", { "aria-live": "polite" });
    this.element = h("div", {}, card("Rewind",
      h("p", { class: "faint" }, "A rewind makes an older checkpoint current again, tables included. A command carries it out while the pipeline is stopped; this page shows what it would do. Every byte of the checkpoint is read for it."),
      h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); this.preview(); } },
        h("label", { for: "rewind-to" }, "Checkpoint, savepoint or time"), this.input, h("button", { type: "submit" }, "Preview"))), this.result);
  }

  choose(id) {
    this.input.value = String(id);
    return this.preview();
  }

  async preview() {
    const to = this.input.value.trim();
    if (!to) { this.input.focus(); return; }
    this.result.replaceChildren(h("p", { class: "empty" }, "Reading the checkpoint."));
    try {
      this.result.replaceChildren(this.described(await get(job(this.jobId, `/rewind?to=${encodeURIComponent(to)}`))));
    } catch (error) {
      this.result.replaceChildren(card("The rewind is not possible", h("p", { class: "why" }, error.message), h("p", {}, error.nextStep || "")));
    }
  }

  described(found) {
    const right = (text) => ({ text, right: true });
    const steps = found.steps.map((step) => h("tr", {}, h("th", { scope: "row" }, step.step), h("td", { class: "right" }, step.batch ?? "–"),
      h("td", { class: "right" }, step.batch_then), h("td", { class: "right" }, bytes(step.state_bytes)), h("td", { class: "right" }, step.in_flight_bytes ? bytes(step.in_flight_bytes) : "–")));
    const sinks = found.sinks.map((sink) => h("tr", {}, h("th", { scope: "row" }, sink.sink), h("td", { class: "right" }, sink.version ?? "?"),
      h("td", { class: "right" }, sink.version_then ?? "its beginning"), h("td", { class: "right" }, sink.rows_removed === null ? "unknown" : count(sink.rows_removed)),
      h("td", { class: sink.obstacle ? "why" : "path" }, sink.obstacle || sink.target)));
    const sources = found.sources.map((source) => h("li", {}, `${source.stream}: ${source.position || "?"} → ${source.position_then || "its beginning"}${again(source)}`));
    const commands = h("pre", { class: "commands", tabindex: "0" }, found.commands.join("\n"));
    return h("div", {}, card(`To ${found.title}, taken ${moment(found.timestamp)}`, facts([
      ["Current", `checkpoint ${found.current}`],
      ["Undone", found.undone.length ? `${count(found.undone.length)} checkpoints: ${found.undone.slice(0, 20).join(", ")}${found.undone.length > 20 ? ", …" : ""}` : "nothing"]]),
    found.refused.map((reason) => h("p", { class: "warn" }, reason)),
    h("h3", {}, "Tables"), table("plain", ["Sink", right("Version now"), right("Version then"), right("Rows that disappear"), "Target"], sinks, "No sink."),
    h("h3", {}, "Steps"), table("plain", ["Step", right("Batch now"), right("Batch then"), right("State"), right("In flight")], steps, "No step."),
    sources.length ? [h("h3", {}, "Sources"), h("ul", {}, sources)] : null,
    h("h3", {}, found.refused.length ? "Command, when nothing prevents it any more" : "Command"), commands,
    h("button", { class: "secondary", onclick: async (event) => { await navigator.clipboard.writeText(found.commands.join("\n")); event.target.textContent = "Copied"; } }, "Copy")));
  }
}

// What is known of the rows that a source reads after a rewind.
function again(source) {
  if (source.replayed !== null) return `; ${count(source.replayed)} offsets are read again`;
  const why = source.unchecked ? `: ${source.unchecked}` : "";
  return source.checked ? "" : ` (whether the source still has the rows that follow is checked when the pipeline runs${why})`;
}
