/**
 * What may leave a tab, decided in the tab: only as part of a secure sum, only for methods that this page has, and only so
 * often. Orders that ask for more are refused, whoever gives them (`federec/network/policy.py`).
 */
import { Refusal } from "./bytes.js";

/** Nodes that a secure sum needs at least, unless the person says otherwise. */
export const COHORT = 10;
const MOST_DIM = 1024;
const MOST_STEPS = 64; // passes over the samples of a round
const MOST_WORK = 2 ** 26; // numbers that a round goes through: about three seconds, in which the page stands still
const LEAST_DIM = 64; // to draw a sample takes as long as to go through a row of so many numbers
const COMMON = ["batch", "negatives", "epochs", "dim", "lr", "item_lr_factor"];
const METHODS = {
  pfedrec: { bias: true, alternate: true, own: true, settings: [...COMMON, "hidden"] },
  fedmf: { bias: false, alternate: false, own: false, settings: COMMON },
};

/**
 * @typedef {{cohort: number, rounds: number, runs: number}} Policy  fewest nodes of a sum; most rounds, and most runs
 * @typedef {{rounds: number, runs: string[]}} Spent  what the tab has given so far, in rounds of training and in runs
 */

/** @type {Policy} */
export const POLICY = { cohort: COHORT, rounds: 1000, runs: 1 };

/** Most nodes that a person can ask for: in larger sums a node has about so many neighbours. */
export const LARGEST = 128;

/**
 * How the run of an order learns; a Refusal where this page cannot or will not take part in it.
 * @param {object} config the run's settings, as the server tells them
 * @param {number} items
 */
export function planOf(config, items) {
  const { method, plugins, settings, channel } = config;
  const known = Object.hasOwn(METHODS, method) ? METHODS[method] : null;
  if (known === null || plugins?.length !== 0) {
    const asked = [method, ...(Array.isArray(plugins) ? plugins : [])].join("+");
    throw new Refusal(`the federation trains ${asked}; a page learns pfedrec or fedmf, without plug-ins`);
  }
  const stages = Array.isArray(channel) ? channel.map((stage) => stage?.stage) : [];
  if (!stages.includes("secure-sum")) {
    const why = "the federation's server would read what each device sends, and so what you like";
    throw new Refusal(`${why}; this page only takes part in secure sums`);
  }
  if (stages.length !== 1 || !(typeof channel[0].most === "number" && channel[0].most > 0)) {
    throw new Refusal(`the federation's channel is ${stages.join(", ")}; a page only knows secure-sum`);
  }
  if (config.attack !== null || (config.split !== null && config.split !== "leave-one-out")) {
    throw new Refusal("the federation asks for more than a page can do (attack or split)");
  }
  if (!["clean", "paper"].includes(config.protocol) || !["random", "file", null].includes(config.ties)) {
    throw new Refusal("the federation's protocol is not one that this page knows");
  }
  const given = settings !== null && typeof settings === "object" ? settings : {};
  const whole = (value, least, most) => Number.isInteger(value) && value >= least && value <= most;
  const step = (value) => typeof value === "number" && value >= 0;
  const names = Object.keys(given).sort().join();
  const fits =
    names === [...known.settings].sort().join() &&
    whole(given.dim, 1, MOST_DIM) &&
    whole(given.batch, 1, 2 ** 31) &&
    whole(given.negatives, 0, 1000) &&
    whole(given.epochs, 1, MOST_STEPS) &&
    step(given.lr) &&
    step(given.item_lr_factor) &&
    (known.settings === COMMON || given.hidden?.length === 0);
  if (!fits) throw new Refusal(`the federation's settings of ${method} are not ones that this page knows`);
  const { negatives, batch, epochs, dim, lr } = given;
  const rates = { rate: lr, itemRate: lr * items * given.item_lr_factor };
  const learning = { negatives, batch, epochs, ...rates, passes: 0, disjoint: true };
  return {
    method,
    dim,
    own: known.own,
    most: channel[0].most,
    closeHeldOut: config.protocol === "paper",
    ties: config.ties ?? (config.protocol === "paper" ? "file" : "random"),
    learning: { ...learning, bias: known.bias, alternate: known.alternate },
  };
}

/**
 * A Refusal where a round would take so long that the page stands still, or has more samples than `order` can shuffle.
 * @param {ReturnType<typeof planOf>} plan
 * @param {number} picks that the round learns from
 */
export function allowWork({ dim, learning }, picks) {
  const visits = picks * (1 + learning.negatives) * learning.epochs; // so at most 2^20 samples
  if (visits * Math.max(dim, LEAST_DIM) > MOST_WORK) {
    throw new Refusal(`a round would go through ${visits} samples of ${dim} numbers, too many for a page`);
  }
}

/**
 * A Refusal where an order would have the tab give more than its policy allows.
 * @param {Policy} policy
 * @param {import("./messages.js").Order} order
 * @param {Spent} spent with the round that this will be
 */
export function allow(policy, order, spent) {
  if (order.round > policy.rounds || spent.rounds > policy.rounds) {
    throw new Refusal(`this page takes part in ${policy.rounds} rounds`);
  }
  if (!spent.runs.includes(order.run) && spent.runs.length >= policy.runs) {
    throw new Refusal(`this page takes part in one run at a time; to take part in another one, leave and join anew`);
  }
}
