// Asks the server once a second, more often while a checkpoint is under way, and shows the answer
// in the view that the address names. The list of checkpoints is fetched when it has changed.

import { Actions, askToken } from "./actions.js";
import { get, job } from "./api.js";
import { configuration, HistoryTable, overview, summary } from "./checkpoints.js";
import { Graph, strip } from "./dag.js";
import { byId, card, h } from "./dom.js";
import { clock, duration } from "./format.js";
import { recoveries, RewindView, tables } from "./views.js";

const VIEWS = [["pipeline", "Pipeline"], ["overview", "Overview"], ["history", "History"], ["summary", "Summary"],
  ["configuration", "Configuration"], ["recoveries", "Recoveries"], ["tables", "Tables"], ["rewind", "Rewind"]];
const SLOW_MS = 1000, FAST_MS = 300, LOST_MS = 3000;

const page = { jobId: "", view: "", now: null, list: null, version: -1, parts: {}, timer: 0, turn: 0 };
const actions = new Actions(() => tick());

// Merges what the run tells of its newest attempts into what the store tells of all.
function merged() {
  const list = page.list;
  const recent = page.now ? page.now.recent : [];
  if (!list || !recent.length) return list;
  const known = new Map(list.history.map((checkpoint) => [checkpoint.id, checkpoint]));
  for (const checkpoint of recent) {
    const stored = known.get(checkpoint.id);
    if (!stored || checkpoint.status === "IN_PROGRESS" || stored.status !== checkpoint.status || stored.end_to_end_duration === null) known.set(checkpoint.id, { ...checkpoint, is_current: stored ? stored.is_current : false });
  }
  const history = [...known.values()].sort((a, b) => b.id - a.id);
  const counted = (status) => history.filter((checkpoint) => checkpoint.status === status).length;
  const counts = { ...list.counts, total: history.length, in_progress: counted("IN_PROGRESS"), completed: counted("COMPLETED"), failed: counted("FAILED") };
  const newest = (status, stored) => history.find((checkpoint) => checkpoint.status === status) || stored;
  const latest = { ...list.latest, completed: newest("COMPLETED", list.latest.completed), failed: newest("FAILED", list.latest.failed) };
  return { ...list, history, counts, latest };
}

function wanted() {
  const [view, ...rest] = location.hash.slice(1).split("/");
  return { view: VIEWS.some(([name]) => name === view) ? view : "pipeline", jobId: decodeURIComponent(rest.join("/") || "") };
}

const address = (view) => `#${view}/${encodeURIComponent(page.jobId)}`;

function drawTabs() {
  const tabs = VIEWS.map(([name, text]) => h("a", { href: address(name), role: "tab", id: `tab-${name}`, "data-view": name,
    "aria-selected": name === page.view ? "true" : "false", tabindex: name === page.view ? "0" : "-1" }, text));
  const focused = byId("tabs").contains(document.activeElement);
  byId("tabs").replaceChildren(...tabs);
  if (focused) byId(`tab-${page.view}`).focus();
}

byId("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = VIEWS.findIndex(([name]) => name === page.view);
  location.hash = address(VIEWS[(at + step + VIEWS.length) % VIEWS.length][0]);
});

function showHead(now) {
  const { job: found } = now;
  byId("name").textContent = found.name;
  document.title = `${found.name} · ${found.state.toLowerCase().replace("_", " ")} · Cutwater`;
  const pill = byId("state");
  pill.textContent = found.state.replace("_", " ");
  pill.className = `pill state-${found.state.toLowerCase()}`;
  showRestarts(found.restarts);
  const since = found["start-time"] && found.state !== "NOT_RUNNING" ? ` · for ${duration(now.at - found["start-time"])}` : "";
  byId("facts").textContent = `generation ${found.generation}${since}`;
  byId("facts").title = `${found.jid}\n${found.store}\n${found.holder || ""}`;
  const bad = { FAILED: "The pipeline has failed.", COMMIT_BLOCKED: "A sink cannot commit. The commit is retried automatically. Nothing is lost, and nothing new becomes visible until it succeeds:", RESTARTING: "The pipeline restarts." }[found.state];
  if (bad) banner(`${bad} ${found.detail}`, found.state === "RESTARTING" ? "warn" : "failed");
  else if (found.state === "NOT_RUNNING") banner(`The pipeline does not run. This page shows what its store contains. To resume: cutwater run FILE --store ${found.store}`, "info");
  else if (found.url) banner(`${found.holder} runs it; live numbers are at ${found.url}`, "info", found.url);
  else banner("");
  actions.show(found);
}

// Between two restarts a pipeline looks well: where the reasons are is said for as long as it runs.
function showRestarts(restarts) {
  const link = byId("restarts");
  link.hidden = !restarts;
  link.href = address("recoveries");
  link.textContent = `${restarts} restart${restarts === 1 ? "" : "s"}: why?`;
}

function banner(text, kind = "", link = "") {
  const element = byId("banner");
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.hidden = !text;
  element.className = `banner ${kind}`;
  element.replaceChildren(...(link ? [h("span", {}, text.replace(link, "")), h("a", { href: link, rel: "noreferrer" }, link)] : [text]));
}

const rewindTo = (id) => { location.hash = address("rewind"); route(); page.parts.rewind.choose(id); };
const choose = (id) => { location.hash = address("history"); route(); page.parts.history.toggle(id); };

// Makes the elements of a view once; `fill` brings them up to date.
function build() {
  const view = byId("view");
  page.parts = {};
  if (page.view === "pipeline") {
    page.parts = { graph: new Graph(), strip: h("div", {}), recent: new HistoryTable(page.jobId, rewindTo, (id) => actions.abort(id)) };
    view.replaceChildren(page.parts.graph.element, h("section", { class: "card" }, h("h2", {}, "Checkpoint durations"), page.parts.strip), page.parts.recent.element);
  } else if (page.view === "history") {
    page.parts.history = new HistoryTable(page.jobId, rewindTo, (id) => actions.abort(id));
    view.replaceChildren(page.parts.history.element);
  } else if (page.view === "rewind") {
    page.parts.rewind = new RewindView(page.jobId);
    view.replaceChildren(page.parts.rewind.element);
  } else view.replaceChildren(h("p", { class: "empty" }, "Loading."));
}

function keep(name, mark, make) {
  // A view that has not changed is not made again: selections and focus stay.
  if (page.parts[name] === mark) return;
  page.parts[name] = mark;
  byId("view").replaceChildren(...[make()].flat());
}

async function fill() {
  const list = merged();
  const view = page.view;
  const open = page.now.recent.find((checkpoint) => checkpoint.status === "IN_PROGRESS");
  if (view === "pipeline" && list) {
    page.parts.graph.show(page.now.dag, open);
    page.parts.recent.steps = page.now.dag.steps.map((step) => step.id);
    page.parts.recent.show(list.history.slice(0, 10));
    if (open) page.parts.recent.refresh(open);
    const mark = JSON.stringify(list.history.slice(0, 80).map((checkpoint) => [checkpoint.id, checkpoint.status, checkpoint.status === "IN_PROGRESS" ? Math.floor(checkpoint.end_to_end_duration / 1000) : checkpoint.end_to_end_duration]));
    if (page.parts.mark !== mark) { page.parts.mark = mark; page.parts.strip.replaceChildren(strip(list.history, choose)); page.parts.strip.querySelector(".strip").scrollLeft = 1e6; }
  } else if (view === "history" && list) {
    page.parts.history.steps = page.now.dag.steps.map((step) => step.id);
    page.parts.history.show(list.history);
    if (open) page.parts.history.refresh(open);
  } else if ((view === "overview" || view === "summary") && list) {
    keep("mark", JSON.stringify([list.version, list.counts, list.latest]), () => (view === "overview" ? overview(list, choose) : summary(list)));
  } else if (view === "configuration" || view === "recoveries" || view === "tables") {
    const turn = page.turn;
    const path = { configuration: "/checkpoints/config", recoveries: "/recoveries", tables: "/tables" }[view];
    if (page.parts.version === page.version) return;
    const found = await get(job(page.jobId, path));
    if (turn !== page.turn) return;
    page.parts.version = page.version;
    const make = { configuration, recoveries, tables }[view];
    keep("mark", JSON.stringify(found), () => make(found));
  }
}

async function look() {
  const jobId = page.jobId;
  const now = await get(job(jobId, "/now"));
  if (jobId !== page.jobId) return;
  page.now = now;
  showHead(now);
  if (now.version !== page.version || !page.list) {
    const list = await get(job(jobId, "/checkpoints?limit=500"));
    if (jobId !== page.jobId) return;
    page.list = list;
    page.version = list.version;
  }
  await fill();
}

async function tick() {
  clearTimeout(page.timer);
  const turn = (page.turn += 1);
  let pause = SLOW_MS;
  try {
    await look();
    if (page.now && page.now.dag.checkpoint !== null) pause = FAST_MS;
  } catch (error) {
    pause = LOST_MS;
    if (error.status === 401) {
      if (await askToken("the user who started the server has it", "")) pause = 0;
    } else if (error.status === undefined) {
      banner(`No response since ${clock(Date.now())}: the process may have ended. To see its store: cutwater ui STORE`, "failed");
      byId("state").className = "pill state-not_running";
      byId("state").textContent = "NO RESPONSE";
    } else banner(error.message, "failed");
  }
  if (turn === page.turn) page.timer = setTimeout(tick, document.hidden ? LOST_MS : pause);
}

function route() {
  const { view, jobId } = wanted();
  const other = jobId && jobId !== page.jobId;
  if (other) Object.assign(page, { jobId, now: null, list: null, version: -1 });
  if (view === page.view && !other) return;
  page.view = view;
  page.turn += 1;
  drawTabs();
  build();
  if (page.now) fill().catch(() => {});
}

async function begin() {
  let found;
  try { found = (await get("jobs/overview")).jobs; } catch (error) {
    if (error.status === 401 && (await askToken("the user who started the server has it", ""))) { begin(); return; }
    banner(error.message, "failed");
    setTimeout(begin, LOST_MS);
    return;
  }
  if (!found.length) { byId("view").replaceChildren(card("Nothing here yet", h("p", {}, "This store holds no pipeline."))); return; }
  const select = byId("jobs");
  select.hidden = found.length < 2;
  byId("name").hidden = found.length > 1;
  select.replaceChildren(...found.map((listed) => h("option", { value: listed.jid }, `${listed.name} (${listed.state.toLowerCase().replace("_", " ")})`)));
  select.addEventListener("change", () => { page.jobId = ""; location.hash = `#${page.view}/${encodeURIComponent(select.value)}`; });
  if (!wanted().jobId) {
    page.jobId = (found.find((listed) => listed.state !== "UNREADABLE") || found[0]).jid;
    history.replaceState(null, "", address(wanted().view));
    page.jobId = "";
  }
  route();
  select.value = page.jobId;
  addEventListener("hashchange", () => { route(); tick(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
  await tick();
}

begin();
