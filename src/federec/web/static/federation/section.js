/** The part of the page in which a person joins a federation, sees what is sent, and leaves. */
import { Refusal } from "./bytes.js";
import { Client, cannotJoin, described, invited, unfit } from "./client.js";
import { Device, STATE } from "./device.js";
import { COHORT, LARGEST } from "./policy.js";
import { BrowserStore } from "./store.js";

const NAME = `federec ${new URL("../", import.meta.url).pathname} federation`; // one host may have several pages
const SENT = "sent";
const LEFT = "left"; // what a tab that has left remembers: what it has answered
const PATIENCE = 5000; // milliseconds that erasing waits for another tab; one that sleeps finds nothing when it wakes

/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");

/**
 * Show the section, and take part if this browser has joined before.
 * @param {string} base where the gateway is
 * @param {string[]} labels the page's catalogue
 * @param {import("../store.js").Kept} kept the picks and the number of the device
 * @returns {{stop: () => Promise<void>, forget: () => Promise<void>}} to take no part in this tab any more; to erase
 *   everything that is kept for the federation
 */
export function section(base, labels, kept) {
  const store = new BrowserStore(NAME);
  /** @type {Client | null} */
  let client = null;
  /** @type {(() => void) | null} Gives back the lock, where this tab has it. */
  let release = null;

  const say = (text) => ($("federation-status").textContent = text);

  /** @returns {boolean} whether the address had an invitation. It is secret: it is taken out of there into the form. */
  function linked() {
    const found = /^#join=([\w-]+)$/.exec(location.hash);
    if (!found) return false;
    history.replaceState(null, "", location.pathname + location.search);
    $("invitation").value = found[1];
    return true;
  }

  async function begin() {
    const invitation = linked();
    $("federation").hidden = false;
    $("sends").textContent =
      "Until you join the federation, this page sends nothing. A device that takes part sends the message below, once a " +
      "round, after all the stages that it names.";
    const why = await cannotJoin();
    if (why) return about(`This page cannot join its federation: ${why}.`);
    if (await store.get(STATE)) {
      $("invitation").value = "";
      return take();
    }
    const federation = await described(base);
    if (federation === null) return about("The federation does not answer now. Recommendations work without it.");
    const refusal = unfit(federation);
    if (refusal) return about(`This page does not join its federation: ${refusal}.`);
    about(
      "People's devices learn one model together. What this page learned would leave only as part of a sum over many " +
        "devices, masked: the server can read the sum, and nothing of yours. You need an invitation.",
    );
    $("cohort").value = String(COHORT);
    $("joining").hidden = false;
    if (invitation) $("federation-title").focus();
  }

  function about(text) {
    $("federation-about").textContent = text;
  }

  async function join() {
    $("join").disabled = true;
    try {
      const cohort = Number($("cohort").value);
      if (!Number.isInteger(cohort) || cohort < 2 || cohort > LARGEST) {
        throw new Refusal(`hide among 2 to ${LARGEST} devices`);
      }
      // With the lock nobody else joins, and what another tab has joined and answered is not overwritten.
      if ((await locked()) && !(await store.get(STATE))) await store.put(STATE, await admitted(cohort));
      $("invitation").value = "";
      $("joining").hidden = true;
      await take();
      $("federation-title").focus();
    } catch (error) {
      unlock();
      if (!(error instanceof Refusal)) throw error;
      say(`Not joined: ${error.message}.`);
    } finally {
      $("join").disabled = false;
    }
  }

  async function admitted(cohort) {
    const federation = await described(base);
    if (federation === null) throw new Refusal("the federation does not answer now");
    const code = $("invitation").value.replace(/^.*#join=/, "");
    return invited(code, federation, { labels, slot: BigInt(kept.number), cohort, ledger: await store.get(LEFT) });
  }

  /** @returns {Promise<boolean>} whether this tab has the lock, which one tab of this browser has at a time */
  function locked() {
    if (release) return Promise.resolve(true);
    return new Promise((resolve) => {
      navigator.locks.request(NAME, { ifAvailable: true }, (lock) => {
        const held = lock && new Promise((done) => (release = () => done(undefined)));
        resolve(lock !== null);
        return held;
      });
    });
  }

  function unlock() {
    release?.();
    release = null;
  }

  /** Take part, in one tab of this browser at a time: two would take each other's orders. */
  async function take() {
    const free = await locked();
    $("leave").hidden = !free;
    $("part").hidden = false;
    await count();
    if (!free) return say("Another tab of this browser takes part.");
    const state = await store.get(STATE);
    const { cohort } = state.policy;
    about(`This page takes part. What it learned leaves only as part of a sum over at least ${cohort} admitted devices.`);
    say("Connecting…");
    const picks = async () => kept.picks.map((label, at) => ({ label, time: at }));
    const device = new Device(store, picks, (text) => say(`Not done: ${text}.`));
    client = new Client(base, device, state.identity, tell);
    client.begin();
  }

  /** @param {{kind: string, text?: string, bytes?: number}} event */
  async function tell({ kind, text, bytes }) {
    if (kind === "connected") say("Connected. The federation asks when a round begins.");
    else if (kind === "waiting") say(`Not connected: ${text}.`);
    else {
      await store.put(SENT, ((await store.get(SENT)) ?? 0) + bytes);
      await count();
    }
  }

  async function count() {
    const state = await store.get(STATE);
    $("rounds").textContent = number.format(state?.ledger.spent.rounds ?? 0);
    $("bytes").textContent = number.format((await store.get(SENT)) ?? 0);
  }

  async function stop() {
    await client?.stop();
    client = null;
    unlock();
    for (const id of ["part", "leave", "joining"]) $(id).hidden = true;
  }

  async function leave() {
    await client?.stop(); // what was being answered is in the ledger then
    client = null;
    const state = await store.get(STATE);
    if (state) await store.put(LEFT, state.ledger);
    await store.put(STATE, null);
    await stop();
    about("This page has left the federation. The key of the invitation is erased; the link can be used again.");
    say("");
    $("joining").hidden = false;
    $("federation-title").focus();
  }

  $("join").addEventListener("click", join);
  $("leave").addEventListener("click", leave);
  addEventListener("hashchange", linked); // a link that is opened where the page is open already
  begin();
  return {
    stop,
    async forget() {
      await stop();
      const waiting = { signal: AbortSignal.timeout(PATIENCE) };
      await navigator.locks.request(NAME, waiting, () => {}).catch(() => {}); // until another tab has stopped
      await store.clear();
      say("");
    },
  };
}
