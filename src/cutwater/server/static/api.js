// Talks to the server that this page came from. The token is kept for this tab only, sent as a
// header and never put into an address.

const KEY = "cutwater-token";

export class Refused extends Error {
  constructor(status, problem) {
    const reasons = (problem && problem.errors) || [];
    super(reasons.join("; ") || `the server responded with ${status}`);
    this.status = status;
    this.nextStep = (problem && problem.next_step) || "";
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "omit", cache: "no-store", signal: AbortSignal.timeout(30000),
  });
  let value = null;
  try { value = await answer.json(); } catch { value = null; }
  if (!answer.ok) throw new Refused(answer.status, value);
  return value;
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
// Relative, so that the page may live below a path of a proxy.
export const job = (id, rest = "") => `jobs/${encodeURIComponent(id)}${rest}`;
