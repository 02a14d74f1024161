// The buttons: checkpoint, savepoint, stop, abort. Each asks, sends, and follows what becomes of it.

import { get, job, post, token } from "./api.js";
import { byId, h } from "./dom.js";

const POLL_MS = 500;

export function toast(text, kind = "") {
  const element = h("div", { class: `toast ${kind}` }, h("span", {}, text),
    h("button", { class: "link", "aria-label": "Dismiss", onclick: () => element.remove() }, "✕"));
  byId("toasts").append(element);
  if (kind !== "failed") setTimeout(() => element.remove(), 8000);
  return element;
}

function dialog(title, body, confirm, danger) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" }, h("h2", {}, title), body,
      h("div", { class: "row end" }, h("button", { type: "button", class: "secondary", onclick: () => made.close("") }, "Cancel"),
        h("button", { type: "submit", value: "yes", class: danger ? "danger" : null }, confirm)));
    const made = h("dialog", { "aria-label": title, onclose: () => { resolve(made.returnValue === "yes"); made.remove(); } }, form);
    document.body.append(made);
    made.showModal();
  });
}

export async function askToken(hint, problem) {
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true, value: "" });
  const yes = await dialog("Token", [
    problem ? h("p", { class: "why" }, problem) : null,
    h("p", {}, `To change a pipeline, enter the token of the process that serves this page: ${hint}. The token is kept for this tab only.`),
    h("label", { for: "token" }, "Token"), input], "Use it");
  if (yes) token.set(input.value.trim());
  return yes;
}

const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Actions {
  constructor(changed) {
    this.changed = changed;
    this.job = null;
    const button = (text, action, className) => h("button", { class: className, disabled: true, onclick: () => action.call(this) }, text);
    this.buttons = [button("Checkpoint", this.checkpoint, "secondary"), button("Savepoint…", this.savepoint, "secondary"), button("Stop…", this.stop, "danger")];
    byId("actions").replaceChildren(...this.buttons);
  }

  show(found) {
    this.job = found;
    for (const button of this.buttons) {
      button.disabled = !found.can_change;
      button.title = found.can_change ? "" : "This pipeline does not run.";
    }
  }

  checkpoint() {
    return this.send("checkpoint", "/checkpoints", { checkpointType: "CONFIGURED" }, "/checkpoints");
  }

  async savepoint() {
    const input = h("input", { id: "savepoint-name", autocomplete: "off", maxlength: "100", placeholder: "savepoint- and the time" });
    const yes = await dialog("Take a savepoint", [
      h("p", {}, "A savepoint has a name, is self-contained, and is kept until you drop it."), h("label", { for: "savepoint-name" }, "Name"), input], "Take it");
    if (yes) await this.send("savepoint", "/savepoints", input.value.trim() ? { name: input.value.trim() } : {}, "/savepoints");
  }

  async stop() {
    const name = h("input", { id: "stop-name", autocomplete: "off", maxlength: "100", placeholder: "none: take a checkpoint" });
    const drain = h("input", { id: "stop-drain", type: "checkbox" });
    const yes = await dialog(`Stop ${this.job.name}?`, [
      h("p", {}, "The pipeline takes a last checkpoint and ends. The next run resumes from that checkpoint. With a savepoint or a drain, the pipeline keeps running if the checkpoint fails."),
      h("label", { for: "stop-name" }, "Savepoint"), name,
      h("label", { class: "check", for: "stop-drain" }, drain, "Drain: stop the sources first, and process everything that they have read")], "Stop it", true);
    const body = { drain: drain.checked };
    if (name.value.trim()) body.savepoint = name.value.trim();
    if (yes) await this.send("stop", "/stop", body, "/savepoints");
  }

  async abort(id) {
    const reason = h("input", { id: "abort-reason", autocomplete: "off", maxlength: "500", required: true });
    const yes = await dialog(`Abort checkpoint ${id}?`, [
      h("p", {}, "The pipeline keeps running and takes its next checkpoint when that is due. The reason is stored with the attempt, and reported to every command that waits for it."),
      h("label", { for: "abort-reason" }, "Reason"), reason], "Abort it", true);
    if (yes) await this.send("abort", "/checkpoints/abort", { checkpointId: id, reason: reason.value }, "/checkpoints");
  }

  async send(what, path, body, answers) {
    const { jid, token_hint: hint } = this.job;
    if (!token.get() && !(await askToken(hint))) return;
    try {
      const request = await post(job(jid, path), body);
      const note = toast(`The ${what} has started.`);
      this.changed();
      await this.follow(what, job(jid, `${answers}/${request["request-id"]}`));
      note.remove();
    } catch (error) {
      if (error.status !== 401) { toast(`The ${what} was refused: ${error.message}`, "failed"); return; }
      token.set("");
      toast("The token was refused.", "failed");
      if (await askToken(hint, "That was not the token.")) await this.send(what, path, body, answers);
    }
  }

  async follow(what, path) {
    for (;;) {
      await later(POLL_MS);
      let state;
      try { state = await get(path); } catch (error) {
        // A stopped process does not respond: the stop has succeeded.
        if (what === "stop" && error.status === undefined) { toast("The pipeline has stopped.", "completed"); return; }
        toast(`The outcome of the ${what} is unknown: ${error.message}`, "failed");
        return;
      }
      if (state.status.id === "IN_PROGRESS") continue;
      const done = state.operation;
      const failure = done && done["failure-cause"];
      const which = done && done.checkpointId ? ` as checkpoint ${done.checkpointId}` : "";
      if (failure) toast(`The ${what} failed: ${failure.message}`, "failed");
      else if (what === "abort") toast(`Checkpoint ${done.checkpointId} was aborted.`, "completed");
      else toast(what === "stop" ? `The pipeline has stopped${which}.` : `The ${what}${done.name ? ` ${done.name}` : ""} is complete${which}.`, "completed");
      this.changed();
      return;
    }
  }
}
