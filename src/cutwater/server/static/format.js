// Numbers as people read them. An unknown value is a dash.

const UNITS = ["B", "KB", "MB", "GB", "TB"];
const known = (value) => value !== null && value !== undefined;

export function bytes(value) {
  if (!known(value)) return "–";
  let size = value, unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return unit === 0 ? `${Math.round(size)} B` : `${size.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(ms) {
  if (!known(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
  if (ms < 86400000) return `${Math.floor(ms / 3600000)} h ${Math.floor((ms % 3600000) / 60000)} min`;
  return `${Math.floor(ms / 86400000)} d ${Math.floor((ms % 86400000) / 3600000)} h`;
}

const pad = (value) => String(value).padStart(2, "0");

export function clock(ms) {
  if (!known(ms)) return "–";
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function moment(ms) {
  if (!known(ms)) return "–";
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(ms)}`;
}

// Today's times without the date: it is what most of them are.
export function when(ms) {
  if (!known(ms)) return "–";
  return new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : moment(ms);
}

// The same where there is little room: the date without its year, if it is this one.
export function brief(ms) {
  if (!known(ms)) return "–";
  const at = new Date(ms), now = new Date();
  if (at.getFullYear() !== now.getFullYear()) return moment(ms);
  const day = at.toDateString() === now.toDateString() ? "" : `${at.getDate()} ${at.toLocaleString("en-US", { month: "short" })} `;
  return day + clock(ms);
}

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : "–";
}

export function rate(value) {
  if (!known(value)) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M rows/s`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)}k rows/s`;
  return `${count(value)} rows/s`;
}

export function short(text, length) {
  const whole = String(text);
  return whole.length > length ? `${whole.slice(0, length - 1)}…` : whole;
}

export const TYPES = { CHECKPOINT: "aligned", UNALIGNED_CHECKPOINT: "unaligned", SAVEPOINT: "savepoint" };
