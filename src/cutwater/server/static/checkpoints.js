// Checkpoints as Flink users know them: overview, history, summary, configuration; and one step by
// step. The history is a table whose rows are made once and replaced only when they have changed.

import { get, job } from "./api.js";
import { card, facts, h, table } from "./dom.js";
import { bytes, count, duration, moment, TYPES, when } from "./format.js";

const SUMMARY = [
  ["End to End Duration", "end_to_end_duration", duration], ["Until Sinks Had Committed", "commit_duration", duration],
  ["Checkpointed Data Size", "checkpointed_size", bytes], ["Full Checkpoint Data Size", "state_size", bytes],
  ["Persisted In-flight Data", "persisted_data", bytes],
];
const HEADS = ["ID", "Status", "Acknowledged", "Trigger Time", "Latest Acknowledgement",
  { text: "End to End Duration", right: true }, { text: "Checkpointed Data Size", right: true, title: "what was uploaded for it" },
  { text: "Full Checkpoint Data Size", right: true, title: "everything that a restore needs" },
  { text: "In-flight Data", right: true, title: "stored with it, because a barrier overtook this data" }, "Notes"];
const STEP_HEADS = ["Step", "Acknowledged", ...["Start Delay", "Alignment", "Sync", "Async", "End to End", "Uploaded", "State", "In flight"]
  .map((text) => ({ text, right: true })), "Aligned", { text: "Batch", right: true }, "Watermark"];

export const statusPill = (status) => h("span", { class: `pill ${status.toLowerCase()}` }, status.replace("_", " "));

function notes(checkpoint) {
  const found = [];
  if (checkpoint.is_current) found.push(h("span", { class: "tag current", title: "the next run resumes from here" }, "current"));
  if (checkpoint.name) found.push(h("span", { class: "tag savepoint" }, checkpoint.name));
  if (checkpoint.rewinds_to !== null) found.push(h("span", { class: "tag" }, `rewind to ${checkpoint.rewinds_to}`));
  if (checkpoint.checkpoint_type === "UNALIGNED_CHECKPOINT") found.push(h("span", { class: "tag unaligned", title: "a barrier overtook data, which is stored with it" }, "unaligned"));
  if (checkpoint.commit_point === false) found.push(h("span", { class: "tag", title: "a restart can resume from it; the sinks have not committed at it" }, "recovery point"));
  if (checkpoint.discarded) found.push(h("span", { class: "tag faint", title: "newer checkpoints are kept instead" }, "deleted"));
  if (checkpoint.problem) found.push(h("span", { class: "tag failed" }, checkpoint.problem));
  if (checkpoint.failure_message) found.push(h("span", { class: "why" }, checkpoint.failure_message));
  return found;
}

function line(label, checkpoint, choose) {
  return h("div", { class: "latest" }, h("h3", {}, label), checkpoint
    ? [h("button", { class: "link", onclick: () => choose(checkpoint.id) }, `${checkpoint.name || `checkpoint ${checkpoint.id}`}`),
      h("span", { class: "faint" }, moment(checkpoint.trigger_timestamp || checkpoint.restore_timestamp)),
      checkpoint.end_to_end_duration === undefined || checkpoint.end_to_end_duration === null ? null
        : h("span", {}, `${duration(checkpoint.end_to_end_duration)}, ${bytes(checkpoint.state_size)}`),
      checkpoint.failure_message ? h("span", { class: "why" }, checkpoint.failure_message) : null]
    : h("span", { class: "faint" }, "none"));
}

export function overview(list, choose) {
  const { counts, latest } = list;
  const number = (label, value, kind) => h("div", { class: `number ${kind || ""}` }, h("strong", {}, count(value)), h("span", {}, label));
  return [
    card("Checkpoint Counts", h("div", { class: "numbers" },
      number("Triggered", counts.total), number("In Progress", counts.in_progress, counts.in_progress ? "in_progress" : ""),
      number("Completed", counts.completed, "completed"), number("Failed", counts.failed, counts.failed ? "failed" : ""),
      number("Restored", counts.restored))),
    card("Latest", h("div", { class: "latests" },
      line("Completed", latest.completed, choose), line("Savepoint", latest.savepoint, choose),
      line("Failed", latest.failed, choose), line("Restore", latest.restored, choose))),
  ];
}

export function summary(list) {
  const names = ["min", "avg", "max", "p50", "p90", "p95", "p99", "p999"];
  const rows = SUMMARY.map(([label, field, write]) => h("tr", {}, h("th", { scope: "row" }, label),
    names.map((name) => h("td", { class: "right" }, list.summary[field] ? write(list.summary[field][name]) : "–"))));
  return card(`Summary of ${count(list.counts.completed)} Completed Checkpoints`, table("plain",
    ["", ...["Minimum", "Average", "Maximum", "50%", "90%", "95%", "99%", "99.9%"].map((text) => ({ text, right: true }))], rows, ""));
}

export function configuration(config) {
  const time = (value) => (value === null ? null : duration(value));
  const flag = (value) => (value === null ? null : value ? "enabled" : "disabled");
  const text = config.interval === null ? h("p", { class: "faint" }, "The options are known only to the process that runs the pipeline.") : null;
  return card("Configuration", text, facts([
    ["Checkpointing Mode", "Exactly Once"], ["Checkpoint Storage", config.checkpoint_storage], ["Interval", time(config.interval)],
    ["Timeout", time(config.timeout)], ["Savepoint Timeout", time(config.savepoint_timeout)],
    ["Minimum Pause Between Checkpoints", time(config.min_pause)], ["Maximum Concurrent Checkpoints", config.max_concurrent],
    ["Unaligned Checkpoints", config.forced_unaligned ? "forced" : flag(config.unaligned_checkpoints)],
    ["Aligned Checkpoint Timeout", time(config.aligned_checkpoint_timeout)],
    ["In-flight Data per Step", config.max_inflight_bytes === null ? null : `at most ${bytes(config.max_inflight_bytes)}`],
    ["Tolerable Failed Checkpoints", config.interval === null ? null : config.tolerable_failed_checkpoints ?? "any number"],
    ["Retained Checkpoints", config.retained], ["Incremental", flag(config.incremental)],
    ["Sinks Commit at Unaligned Cuts", config.commit_unaligned === null ? null : config.commit_unaligned ? "yes" : "with one sink only"],
  ]));
}

export class HistoryTable {
  constructor(jobId, rewind, abort) {
    this.jobId = jobId;
    this.rewind = rewind;
    this.abort = abort;
    this.rows = new Map();
    this.open = null;
    this.steps = [];
    this.body = h("tbody", { onclick: (event) => this.clicked(event), onkeydown: (event) => this.pressed(event) });
    this.count = h("span", { class: "faint" });
    this.element = h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "History"), this.count),
      h("div", { class: "scroll" }, h("table", { class: "history" }, h("thead", {}, h("tr", {}, HEADS.map((head) =>
        h("th", { scope: "col", class: head.right ? "right" : null, title: head.title }, head.text || head)))), this.body)));
  }

  show(checkpoints) {
    const began = performance.now();
    const wanted = [];
    const ids = new Set();
    for (const checkpoint of checkpoints) {
      ids.add(checkpoint.id);
      const mark = JSON.stringify(checkpoint);
      let row = this.rows.get(checkpoint.id);
      if (row && row.mark !== mark && row.pending && checkpoint.status === "IN_PROGRESS") {
        // Its row stays, and so does the button in it: a click may have begun.
        this.cells(checkpoint).forEach((cell, at) => row.element.children[at].replaceWith(cell));
        row.mark = mark;
      } else if (!row || row.mark !== mark) {
        const had = row ? row.element : null;
        row = { mark, element: this.row(checkpoint), detail: row ? row.detail : null, pending: checkpoint.status === "IN_PROGRESS" };
        if (had && had === document.activeElement) this.refocus = row.element;
        if (had) had.replaceWith(row.element);
        this.rows.set(checkpoint.id, row);
      }
      wanted.push(row.element);
      if (row.detail) wanted.push(row.detail);
    }
    for (const id of [...this.rows.keys()]) if (!ids.has(id)) this.rows.delete(id);
    const same = this.body.children.length === wanted.length && wanted.every((element, at) => this.body.children[at] === element);
    if (!same) {
      const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
      this.body.replaceChildren(...wanted);
      if (focused && focused.isConnected) focused.focus();
    }
    if (this.refocus) { this.refocus.focus(); this.refocus = null; }
    if (!checkpoints.length) this.body.replaceChildren(h("tr", {}, h("td", { colspan: HEADS.length, class: "none" }, "No checkpoint yet.")));
    this.count.textContent = checkpoints.length ? `${count(checkpoints.length)} shown; Enter opens one` : "";
    performance.measure("cutwater-history", { start: began, end: performance.now() });
  }

  row(checkpoint) {
    const pending = checkpoint.status === "IN_PROGRESS" ? h("button", { class: "link abort", title: "End it without a checkpoint",
      onclick: (event) => { event.stopPropagation(); this.abort(checkpoint.id); } }, "Abort…") : null;
    return h("tr", { tabindex: "0", "data-id": checkpoint.id, "aria-expanded": this.open === checkpoint.id ? "true" : "false",
      class: checkpoint.status.toLowerCase() },
    this.cells(checkpoint), h("td", { class: "notes" }, notes(checkpoint), pending));
  }

  // All but the last one, which has what can be clicked.
  cells(checkpoint) {
    const right = (text) => h("td", { class: "right" }, text);
    return [h("td", { class: "id" }, checkpoint.id), h("td", {}, statusPill(checkpoint.status)),
    h("td", {}, checkpoint.num_subtasks ? `${checkpoint.num_acknowledged_subtasks}/${Math.max(checkpoint.num_subtasks, checkpoint.status === "FAILED" ? this.steps.length : 0)}` : "–"),
    h("td", { title: moment(checkpoint.trigger_timestamp) }, when(checkpoint.trigger_timestamp)), h("td", { title: moment(checkpoint.latest_ack_timestamp) }, when(checkpoint.latest_ack_timestamp)),
    right(duration(checkpoint.end_to_end_duration)), right(bytes(checkpoint.checkpointed_size)), right(bytes(checkpoint.state_size)),
    right(checkpoint.persisted_data ? bytes(checkpoint.persisted_data) : "–")];
  }

  clicked(event) {
    const row = event.target.closest("tr[data-id]");
    if (row) this.toggle(Number(row.dataset.id));
  }

  pressed(event) {
    const row = event.target.closest("tr[data-id]");
    if (!row || event.target !== row) return;
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.toggle(Number(row.dataset.id)); }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const all = [...this.body.querySelectorAll("tr[data-id]")];
      const next = all[all.indexOf(row) + step];
      if (next) next.focus();
    }
  }

  async toggle(id) {
    const before = this.open;
    this.open = null;
    const shown = this.rows.get(before);
    if (shown) { shown.detail?.remove(); shown.detail = null; shown.element.setAttribute("aria-expanded", "false"); }
    if (before === id) return;
    const row = this.rows.get(id);
    if (!row) return;
    this.open = id;
    row.element.setAttribute("aria-expanded", "true");
    const cell = h("td", { colspan: HEADS.length }, "Loading.");
    row.detail = h("tr", { class: "detail" }, cell);
    row.element.after(row.detail);
    await this.load(id, cell);
  }

  async load(id, cell) {
    try {
      cell.replaceChildren(detail(await get(job(this.jobId, `/checkpoints/details/${id}`)), this.steps, this.rewind));
    } catch (error) {
      cell.replaceChildren(h("p", { class: "why" }, error.message));
    }
  }

  // While a checkpoint that is open in the table is under way, its steps go on.
  refresh(checkpoint) {
    const row = this.rows.get(checkpoint.id);
    if (this.open === checkpoint.id && row && row.detail) row.detail.firstChild.replaceChildren(detail(checkpoint, this.steps, this.rewind));
  }
}

// In the order of the pipeline, which is the order in which the barrier comes by.
function inOrder(tasks, steps) {
  const rank = (name) => (steps.includes(name) ? steps.indexOf(name) : steps.length);
  return Object.entries(tasks).sort(([first], [second]) => rank(first) - rank(second));
}

// How far a step's inputs are aligned, while the checkpoint is under way.
function met(task) {
  const held = task.alignment_buffered ? `, ${bytes(task.alignment_buffered)} held` : "";
  const recorded = task.persisted_data ? `, ${bytes(task.persisted_data)} recorded` : "";
  return `${task.aligned_inputs} of ${task.inputs}${held}${recorded}`;
}

export function detail(checkpoint, steps, rewind) {
  const rows = inOrder(checkpoint.tasks, steps).map(([name, task]) => {
    const right = (text) => h("td", { class: "right" }, text);
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, task.num_acknowledged_subtasks ? "✓" : "waiting"),
      right(duration(task.start_delay)), right(duration(task.alignment_duration)), right(duration(task.sync_duration)),
      right(duration(task.async_duration)), right(duration(task.end_to_end_duration)), right(bytes(task.checkpointed_size)),
      right(bytes(task.state_size)), right(task.persisted_data ? bytes(task.persisted_data) : "–"),
      h("td", {}, checkpoint.status === "IN_PROGRESS" && task.inputs ? met(task) : task.unaligned_checkpoint === null ? "–" : task.unaligned_checkpoint ? h("span", { class: "tag unaligned" }, "overtook") : "aligned"),
      right(task.batch === null ? "–" : count(task.batch)), h("td", {}, task.watermark ? when(task.watermark) : "–"));
  });
  const reads = Object.entries(checkpoint.tasks).flatMap(([name, task]) => [
    ...Object.entries(task.offsets).flatMap(([stream, offset]) => (task.partitions[stream]
      ? Object.entries(task.partitions[stream]).map(([partition, at]) => `${name} had read ${partition} of ${stream} to ${count(at)}`)
      : [`${name} had read ${stream} to ${offset}`])),
    ...Object.entries(task.positions).map(([input, position]) => `${name} had read ${input} to Event ${position}`)]);
  const versions = Object.entries(checkpoint.sink_versions || {}).map(([sink, version]) => `${sink} version ${version}`);
  const can = checkpoint.status === "COMPLETED" && !checkpoint.discarded && !checkpoint.is_current;
  return h("div", { class: "detail-box" }, facts([
    ["Type", `${checkpoint.kind === "REWIND" ? "rewind" : TYPES[checkpoint.checkpoint_type] || checkpoint.checkpoint_type}${checkpoint.kind === "FULL" ? ", full" : ""}`],
    ["Generation", checkpoint.generation], ["Path", checkpoint.external_path],
    ["Until sinks had committed", checkpoint.commit_duration === null ? null : duration(checkpoint.commit_duration)],
    ["Sinks showed", versions.join(", ")]].concat(checkpoint.failure_message ? [["Failure", checkpoint.failure_message]] : [])),
  rows.length ? table("plain steps", STEP_HEADS, rows, "") : h("p", { class: "faint" }, "Its steps are no longer recorded."),
  reads.length ? h("details", {}, h("summary", {}, `Positions (${reads.length})`), h("ul", {}, reads.map((text) => h("li", {}, text)))) : null,
  can ? h("p", {}, h("button", { class: "secondary", onclick: (event) => { event.stopPropagation(); rewind(checkpoint.id); } }, "What would a rewind to it do?")) : null);
}
