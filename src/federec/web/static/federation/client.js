/** A tab at a gateway: it joins with an invitation, asks for orders and sends replies, over fetch to its own origin. */
import { Refusal, base64url, joined, same, unbase64, utf8 } from "./bytes.js";
import { Root, fromPem, sign } from "./certificates.js";
import { planOf } from "./policy.js";
import { newState } from "./device.js";

const SOON = 500; // milliseconds until the next attempt, after the first failure
const LATER = 15000; // and after many
const HEAD = 1 + 32 + 32; // of an invitation: version, digest of the root's certificate, private key

/**
 * @typedef {{run: string, config: object, root: string}} Description  what a gateway says of its federation
 *   to everybody: nothing in it is secret
 */

/** @returns {string | null} why this browser cannot take part at all; null where it can */
export async function cannotJoin() {
  if (!globalThis.isSecureContext || !globalThis.crypto?.subtle) return "this page was not loaded over HTTPS";
  try {
    await crypto.subtle.importKey("raw", Uint8Array.of(9, ...new Uint8Array(31)), "X25519", false, []);
  } catch {
    return "this browser does not know X25519, which secure sums need; a newer one does";
  }
  return null;
}

/**
 * @param {string} base where the gateway is, such as "gateway/"
 * @returns {Promise<Description | null>} null where it does not answer
 */
export async function described(base) {
  try {
    const response = await fetch(`${base}description`, QUIET);
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

const QUIET = { credentials: "omit", referrerPolicy: "no-referrer", redirect: "error", cache: "no-store" };

/** @returns {string | null} why this page does not take part in a federation; null where it does */
export function unfit(description) {
  try {
    planOf(description.config, 1);
    return null;
  } catch (error) {
    if (error instanceof Refusal) return error.message;
    throw error;
  }
}

/**
 * What a tab keeps after it was invited. A Refusal where the invitation is not one of this federation.
 * @param {string} code the invitation, as the person got it; the gateway never sees it
 * @param {Description} description
 * @param {Parameters<typeof newState>[2]} own the page's catalogue, the device's number in the random streams, the fewest
 *   nodes to hide among, and what the tab has answered before, if anything
 */
export async function invited(code, description, own) {
  let content;
  try {
    content = unbase64(code.trim());
  } catch {
    content = new Uint8Array(0);
  }
  if (content.length <= HEAD || content[0] !== 1) throw new Refusal("this is not an invitation; copy the whole link");
  const certificate = content.slice(HEAD);
  const rootDer = fromPem(description.root);
  if (!same(new Uint8Array(await crypto.subtle.digest("SHA-256", rootDer)), content.subarray(1, 33))) {
    throw new Refusal("this invitation is for another federation");
  }
  const member = await (await Root.of(rootDer)).member(certificate);
  member.checkDate();
  if (member.users !== 1) throw new Refusal("this invitation is for a device of several users; a page has one");
  const [x, y] = [member.point.subarray(1, 33), member.point.subarray(33)].map(base64url);
  const secret = { kty: "EC", crv: "P-256", d: base64url(content.subarray(33, HEAD)), x, y };
  let key;
  try {
    key = await crypto.subtle.importKey("jwk", secret, { name: "ECDSA", namedCurve: "P-256" }, false, ["sign"]);
  } catch {
    throw new Refusal("this invitation is damaged; ask for a new one");
  }
  if (!(await member.verify(content, await sign(key, content)))) {
    throw new Refusal("this invitation is damaged; ask for a new one");
  }
  const identity = { key, certificate, public: member.public };
  return newState(identity, rootDer, own);
}

/** The gateway refuses: its status, and why. */
class Status extends Refusal {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

/** A tab that takes part until it is stopped. */
export class Client {
  /**
   * @param {string} base
   * @param {import("./device.js").Device} device
   * @param {import("./device.js").Identity} identity
   * @param {(event: {kind: string, text?: string, bytes?: number}) => Promise<void>} tell
   */
  constructor(base, device, identity, tell) {
    Object.assign(this, { base, device, identity, tell, token: "", stopping: new AbortController(), staying: null });
  }

  /** Take part; connect again whenever the connection is lost. */
  begin() {
    this.staying = this.stay();
  }

  async stay() {
    let pause = SOON;
    while (!this.stopping.signal.aborted) {
      try {
        if (!this.token) await this.renew();
        await this.turn();
        pause = SOON;
        continue;
      } catch (error) {
        if (this.stopping.signal.aborted) break;
        const expired = error.status === 401 && this.token;
        this.token = "";
        if (expired) continue;
        const why = error instanceof Refusal ? error.message : "no connection to the federation; trying again";
        await this.tell({ kind: "waiting", text: why });
      }
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pause);
        this.stopping.signal.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
      });
      pause = Math.min(LATER, pause * 2);
    }
  }

  /** Leave: the federation does not wait for this tab any more. What was being done has ended then. */
  async stop() {
    this.stopping.abort();
    await this.staying;
    if (this.token) await fetch(`${this.base}leave`, { ...QUIET, method: "POST", headers: this.bearer() }).catch(() => {});
  }

  bearer() {
    return { authorization: `Bearer ${this.token}` };
  }

  /** A new token, for which the tab signs what the gateway asks. */
  async renew() {
    const { challenge } = await (await this.post("challenge")).json();
    const signed = joined(utf8("federec gateway 1 "), unbase64(challenge));
    const signature = await sign(this.identity.key, signed);
    const body = { key: base64url(this.identity.public), challenge, signature: base64url(signature) };
    const response = await this.post("join", JSON.stringify(body), { "content-type": "application/json" });
    this.token = (await response.json()).token;
    await this.tell({ kind: "connected" });
  }

  /** Ask for an order, which may take a while, and answer it. */
  async turn() {
    const response = await this.post("orders", undefined, this.bearer());
    if (response.status === 204) return;
    const ticket = response.headers.get("federec-ticket");
    const reply = await this.device.answer(new Uint8Array(await response.arrayBuffer()));
    try {
      const headers = { "federec-ticket": ticket, "content-type": "application/octet-stream" };
      await this.post("reply", reply, { ...this.bearer(), ...headers });
      await this.tell({ kind: "sent", bytes: reply.length });
    } catch (error) {
      if (error.status !== 403 && error.status !== 413) throw error; // a reply that nobody waits for any more is dropped
    }
  }

  async post(name, body = undefined, headers = {}) {
    const { signal } = this.stopping;
    const response = await fetch(`${this.base}${name}`, { ...QUIET, method: "POST", body, headers, signal });
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    throw new Status(response.status, String(told.detail ?? `status ${response.status}`).slice(0, 200));
  }
}
