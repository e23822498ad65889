/**
 * A device from its picks: local rounds of the run's method, then a score for every item. A pure function of the model,
 * the picks and the device's number in the random streams, so what is forgotten leaves no trace in what was learned.
 */

import { additiveRound } from "./additive.js";
import { distinct } from "./draw.js";
import { linearRound, score } from "./linear.js";
import { gather } from "./rows.js";
import { streamKey } from "./streams.js";

/**
 * What a device has learned.
 * @typedef {object} Learned
 * @property {Float32Array} scores Of all items.
 * @property {import("./linear.js").LinearRound | import("./additive.js").AdditiveRound} [last] The newest round.
 * @property {number} rounds How many were played.
 */

/**
 * @param {import("./model.js").Model} model
 * @param {number[]} picks Item codes, oldest first, each once; at least one.
 * @param {bigint} number The device's own number in the random streams.
 * @returns {Learned}
 */
export function learn(model, picks, number) {
  if (model.page.kind === "neighbours") return { scores: neighbourScores(model, picks), rounds: 0 };
  return model.page.kind === "linear" ? learnLinear(model, picks, number) : learnAdditive(model, picks, number);
}

/** The plan of a round; a single plan serves all of them. */
function planOf(page, round) {
  return page.plans[Math.min(round, page.plans.length) - 1];
}

/** @returns {Learned} */
function learnLinear(model, picks, number) {
  const { page } = model;
  const table = model.tables.get("items");
  const closed = distinct(picks);
  let weight = model.start;
  let last;
  for (let round = 1; round <= page.rounds; round++) {
    const key = streamKey(page.seed, round, number);
    last = linearRound(planOf(page, round), table, page.dim, weight, picks, closed, key);
    weight = last.weight;
  }
  const scores = new Float32Array(page.items);
  for (let item = 0; item < page.items; item++) scores[item] = score(table, item * page.dim, page.dim, weight);
  if (page.view === "own") {
    last.ids.forEach((item, at) => (scores[item] = score(last.rows, at * page.dim, page.dim, weight)));
  }
  return { scores, last, rounds: page.rounds };
}

/** @returns {Learned} */
function learnAdditive(model, picks, number) {
  const { page } = model;
  const nothing = () => new Float32Array(page.items * page.dim);
  const common = model.tables.get("common") ?? nothing();
  const own = (model.tables.get("own") ?? nothing()).slice(); // the device's own rows, as they are learned
  const closed = distinct(picks);
  let weight = model.start;
  let last;
  for (let round = 1; round <= page.rounds; round++) {
    const key = streamKey(page.seed, round, number);
    const held = (/** @type {Int32Array} */ ids) => gather(own, ids, page.dim);
    last = additiveRound(planOf(page, round), common, held, page.dim, weight, picks, closed, key);
    last.ids.forEach((item, at) => own.set(last.own.subarray(at * page.dim, (at + 1) * page.dim), item * page.dim));
    weight = last.weight;
  }
  for (let at = 0; at < own.length; at++) own[at] += common[at];
  const scores = new Float32Array(page.items);
  for (let item = 0; item < page.items; item++) scores[item] = score(own, item * page.dim, page.dim, weight);
  return { scores, last, rounds: page.rounds };
}

/**
 * Scores of an item-item model: the sum of the picks' weights for each item, newer picks first where the run says so.
 * @param {import("./model.js").Model} model
 * @param {number[]} picks
 */
function neighbourScores(model, picks) {
  const { recency, floor, items } = model.page;
  const weights = model.tables.get("weights");
  const width = weights.length / items;
  const scores = new Float32Array(items);
  picks.forEach((pick, place) => {
    const age = picks.length - 1 - place;
    const emphasis = recency ? 0.5 ** (age / recency) + floor : 1;
    for (let at = pick * width; at < (pick + 1) * width; at++) scores[model.ids[at]] += emphasis * weights[at];
  });
  return scores;
}

/**
 * The codes of the best items, best first; among equals the one that comes first. Picks are left out.
 * @param {Float32Array} scores
 * @param {number[]} picks
 * @param {number} count
 */
export function best(scores, picks, count) {
  const out = new Set(picks);
  const open = Array.from(scores.keys()).filter((item) => !out.has(item) && Number.isFinite(scores[item]));
  return open.sort((one, two) => scores[two] - scores[one] || one - two).slice(0, count);
}
