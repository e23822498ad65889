/**
 * A tab as a device of a federation: what it does with the server's orders (`federec/network/device.py`). What it learned
 * and the reply itself are kept before the reply leaves: a round is never half applied, and where the reply gets lost, the
 * same bytes are sent again.
 */
import { distinct } from "../draw.js";
import { linearRound, score as linearScore } from "../linear.js";
import { change } from "../rows.js";
import { streamKey } from "../streams.js";
import { Refusal, hex } from "./bytes.js";
import { Root } from "./certificates.js";
import { answered, emptyLedger, kept } from "./ledger.js";
import { OtherVersion, catalogueVersion, digest, packReply, parseOrder } from "./messages.js";
import { POLICY, allow, allowWork, planOf } from "./policy.js";
import { candidates, metrics, rankAmong, rankAmongAll } from "./ranking.js";
import { Party } from "./secure_sum.js";
import { holdOut } from "./split.js";
import { startOf } from "./start.js";
import { flat } from "./vector.js";

const LEGS = ["share", "agree", "unmask"]; // of a sum, besides the order that it is about
/** The name of a `State` in a store. */
export const STATE = "device";

/**
 * Who a tab is to others: its key, which never leaves the browser, its certificate, and its public key, a compressed point.
 * @typedef {{key: CryptoKey, certificate: Uint8Array, public: Uint8Array}} Identity
 */

/**
 * What a tab keeps of a federation.
 * @typedef {object} State
 * @property {Identity} identity
 * @property {Uint8Array} root The federation's root certificate, DER.
 * @property {bigint} slot The device's number in the random streams; nobody else knows it.
 * @property {string[]} labels The catalogue: an item's code is its place.
 * @property {import("./policy.js").Policy} policy
 * @property {import("./ledger.js").Ledger} ledger
 * @property {string} run Of the weights.
 * @property {Object<number, Float32Array>} weights Private parameters after each round of it.
 * @property {string[]} learned Labels of the items that they were learned from.
 */

/**
 * @param {{labels: string[], slot: bigint, cohort: number, ledger?: import("./ledger.js").Ledger}} own `ledger` is that of
 *   a tab that was there before: what it has answered, it does not answer again. It may take part in one more run.
 * @returns {State} of a tab that was invited and has learned nothing yet
 */
export function newState(identity, root, { labels, slot, cohort, ledger = emptyLedger() }) {
  const policy = { ...POLICY, cohort, runs: ledger.spent.runs.length + 1 };
  return { identity, root, labels, slot, policy, ledger, run: "", weights: {}, learned: [] };
}

/** A tab at a federation. It keeps a `State` in a store, see `store.js`. */
export class Device {
  /**
   * @param {{get(name: string): Promise<any>, replace(name: string, value: any): Promise<boolean>}} store
   * @param {() => Promise<{label: string, time: number | null}[]>} picks what the user did, in the order it was recorded
   * @param {(text: string) => void} tell what could not be done, in one line; the server only hears that it was not
   */
  constructor(store, picks, tell) {
    Object.assign(this, { store, picks, tell, next: null, now: null });
  }

  /** The reply to an order. */
  async answer(content) {
    let order = { run: "", round: 0 };
    try {
      order = parseOrder(content);
      this.state = await this.store.get(STATE);
      if (!this.state) throw new Refusal("this page has not joined a federation");
      return LEGS.includes(order.kind) ? await this.leg(order) : await this.work(order);
    } catch (error) {
      this.tell(error instanceof Refusal ? error.message : `an error in this page: ${error.message}`);
      if (!(error instanceof Refusal)) console.error(error);
      const failed = error instanceof OtherVersion ? "version" : error instanceof Refusal ? "device" : "error";
      return packReply({ run: order.run, round: order.round, failed });
    }
  }

  /** Take part in a leg of a sum. What is refused changes nothing. */
  async leg(order) {
    let sealed;
    if (order.kind === "share") {
      const party = copied(this.next);
      sealed = await party.share(order.sealed, await Root.of(this.state.root), this.state.policy.cohort);
      [this.now, this.next] = [party, null];
    } else if (order.kind === "agree") {
      const party = copied(this.now);
      sealed = await party.agree(order.sealed);
      this.now = party;
    } else {
      sealed = await copied(this.now).unmask(order.sealed);
      this.now = null;
    }
    const catalogue = await catalogueVersion(this.state.labels);
    return packReply({ run: order.run, round: order.round, catalogue, sealed });
  }

  /** Do what was ordered, once. Everything about it is checked before anything is kept. */
  async work(order) {
    const labels = grown(order, this.state.labels);
    const plan = planOf(order.config, labels.length);
    const table = order.kind === "query" ? null : sharedTable(order, plan, labels.length);
    const kind = order.full ? "full" : order.kind;
    const sealed = new Uint8Array(await crypto.subtle.digest("SHA-256", order.sealed));
    const asked = await digest(order);
    const named = hex(sealed) + hex(asked);
    const { ledger, policy } = this.state;
    const before = kind === "query" ? null : answered(ledger, kind, order.run, order.round, named);
    if (before !== null) return before;
    allow(policy, order, { ...ledger.spent, rounds: ledger.spent.rounds + (kind === "train" ? 1 : 0) });
    const history = await this.history(labels);
    const catalogue = await catalogueVersion(labels);
    const reply = { run: order.run, round: order.round, catalogue, devices: history.length ? 1 : 0 };
    if (kind === "query") return packReply({ ...reply, advert: await this.advert(order) });
    if (!history.length) throw new Refusal("there is nothing to learn from yet; pick something first");
    const run = new Round(order, plan, table, labels.length, history, this.state.slot);
    const held = this.state.run === order.run ? this.held(labels, history) : {};
    const learned = kind === "train" ? run.train(run.weight(held, order.round - 1)) : null;
    const told = learned ?? run.evaluate(run.weight(held, order.keep));
    const party = copied(this.now);
    const values = flat(told.sums, told.tables, labels.length, plan.most);
    const masked = await party.mask(values, order.sealed, asked);
    const content = packReply({ ...reply, advert: await this.advert(order), sealed: masked });
    const answer = { run: order.run, round: order.round, digest: named, content };
    const state = { ...this.state, labels, ledger: kept(ledger, kind, answer) };
    if (learned !== null) {
      state.weights = { ...held, [order.round]: learned.weight };
      state.run = order.run;
      state.learned = history.map(({ item }) => labels[item]);
    }
    if (!(await this.store.replace(STATE, state))) throw new Refusal("this page has left the federation meanwhile");
    this.now = party;
    return content;
  }

  /** Keys for the sum that may follow an order. They are bound to its name: for another sum nobody accepts them. */
  async advert(order) {
    if (!order.next) return new Uint8Array(0);
    const name = `${order.run}, ${order.next}`;
    if (this.next === null || this.next.run !== name) this.next = await Party.begin(this.state.identity, name);
    return this.next.advert;
  }

  /** What the user did, by item code; what the federation's catalogue does not have is left out. */
  async history(labels) {
    const codes = new Map(labels.map((label, code) => [label, code]));
    const picked = await this.picks();
    return picked.filter(({ label }) => codes.has(label)).map(({ label, time }) => ({ item: codes.get(label), time }));
  }

  /** The weights of this run, unless the user has since erased something that they were learned from. */
  held(labels, history) {
    const now = new Set(history.map(({ item }) => labels[item]));
    return this.state.learned.every((label) => now.has(label)) ? this.state.weights : {};
  }
}

/** A round, or its evaluation, on one user's history. */
class Round {
  constructor(order, plan, table, items, history, slot) {
    const seed = BigInt(order.asked.get("config").get("seed").text);
    Object.assign(this, { order, plan, table, items, history, seed, slot });
    this.split = holdOut(history, seed, slot, plan.ties);
  }

  /**
   * Private parameters after a round, or after the last one before it in which the tab took part; before the first one,
   * those with which all devices begin.
   * @param {Object<number, Float32Array>} held after each round
   * @param {number} round
   */
  weight(held, round) {
    const { order, plan, seed } = this;
    const { bias } = plan.learning;
    const newest = Math.max(...Object.keys(held).map(Number).filter((each) => each <= round), 0);
    if (!newest) return startOf(seed, order.sizes[0], plan.dim, bias);
    if (held[newest].length === plan.dim + (bias ? 1 : 0)) return held[newest];
    throw new Refusal("the run's method or its settings have changed under the same name; leave and join anew");
  }

  learn(start) {
    const { train, valid, test } = this.split;
    const { plan, table } = this;
    allowWork(plan, train.length);
    const closed = distinct(plan.closeHeldOut && valid !== null ? [...train, valid, test] : train);
    const key = streamKey(this.seed, this.order.round, this.slot);
    return linearRound(plan.learning, table, plan.dim, start, train, closed, key);
  }

  /** What is told of a round, and the new private parameters. */
  train(start) {
    const { plan } = this;
    const learned = this.learn(start);
    const changes = change(learned.rows, learned.received);
    const whole = new Float32Array(this.table.length);
    learned.ids.forEach((item, at) => whole.set(changes.subarray(at * plan.dim, (at + 1) * plan.dim), item * plan.dim));
    const sums = new Map([["loss", learned.losses]]);
    if (plan.own) this.rank(this.own(learned), sums);
    return { sums, tables: [whole], weight: learned.weight };
  }

  /** What is told of the ranking after a round. Where devices rank with rows that they tune, the round is played again. */
  evaluate(weight) {
    const { plan, order, split } = this;
    const global = (item) => linearScore(this.table, item * plan.dim, plan.dim, weight);
    const score = plan.own ? this.own(this.learn(weight)) : global;
    const sums = new Map();
    if (!order.full) this.rank(score, sums);
    else {
      sums.set("interactions", [this.history.length, 1]);
      if (split.test !== null) {
        add(sums, "test full", rankAmongAll(score, split.test, this.items, [...split.train, split.valid]));
      }
    }
    return { sums, tables: [] };
  }

  /** Scores with the rows that were tuned, and with the server's for all other items. */
  own({ ids, rows, weight }) {
    const { dim } = this.plan;
    const places = new Map(Array.from(ids, (item, at) => [item, at * dim]));
    return (item) =>
      places.has(item) ? linearScore(rows, places.get(item), dim, weight) : linearScore(this.table, item * dim, dim, weight);
  }

  rank(score, sums) {
    const { split } = this;
    if (split.valid === null) return;
    const drawn = candidates(split, this.items, this.seed, this.slot);
    add(sums, "valid sampled", rankAmong(score, split.valid, drawn.valid));
    add(sums, "test sampled", rankAmong(score, split.test, drawn.test));
    add(sums, "valid full", rankAmongAll(score, split.valid, this.items, split.train));
  }
}

function add(sums, kind, rank) {
  for (const [name, value] of metrics(rank)) sums.set(`${kind} ${name}`, [value, 1]);
}

function copied(party) {
  if (party === null) throw new Refusal("the server asks for a leg of a secure sum that this page has no part in");
  return party.copy();
}

/** The catalogue that an order is about: the tab's own with the new items, and no other. */
function grown(order, known) {
  const there = new Set(known);
  const labels = [...known, ...order.labels];
  if (order.labels.some((label) => there.has(label)) || new Set(order.labels).size < order.labels.length) {
    throw new Refusal("the server names items as new that are not");
  }
  const { sizes } = order;
  const last = sizes.at(-1);
  const rising = sizes.every((size, at) => at === 0 || sizes[at - 1] < size);
  if (!rising || last < known.length || (order.kind !== "query" && last !== labels.length)) {
    throw new Refusal(`the server says that its catalogue has ${last} items; here are ${labels.length}`);
  }
  return labels;
}

/** The shared item table; a Refusal where it is not the method's, or not numbers. */
function sharedTable(order, plan, items) {
  const ids = order.shared.get("ids");
  const rows = order.shared.get("rows:items");
  if (order.shared.size !== 2 || rows?.kind !== "F32" || rows.shape.join() !== `${items},${plan.dim}`) {
    throw new Refusal("the server sends other parameters than the method has");
  }
  if (ids.values.length !== items || !ids.values.every((code, at) => code === at)) {
    throw new Refusal("the server does not send the rows of all items");
  }
  if (!rows.values.every(Number.isFinite)) throw new Refusal("the server sends parameters that are not numbers");
  return rows.values;
}
