/**
 * The local round of methods with a linear score, sigma(w . v + b), stepped by SGD: PFedRec, FedMF and FedRecon
 * (`methods/forms.py`, `LinearScore`). Values are kept in 32 bits, sums are taken in 64.
 */

import { draw, order } from "./draw.js";
import { gather, held, sigmoid } from "./rows.js";

/**
 * How a device learns.
 * @typedef {object} LinearPlan
 * @property {number} negatives For each positive.
 * @property {number} batch Samples in a step.
 * @property {number} epochs
 * @property {number} rate Step of w and b.
 * @property {number} itemRate Step of the rows.
 * @property {boolean} bias Whether there is a b; w then has it as its last value.
 * @property {boolean} alternate The rows step after w, with the new w; both step at once otherwise.
 * @property {number} passes Passes over half of the samples that rebuild w from 0, before the rows step; 0: w is kept.
 * @property {boolean} disjoint With passes: the rows only step on the other half.
 */

/**
 * @typedef {object} LinearRound
 * @property {Float32Array} weight The new w, with b as its last value where there is one.
 * @property {Int32Array} ids The items that were touched, ascending.
 * @property {Float32Array} rows Their tuned rows [ids, dim].
 * @property {Float32Array} received The rows as they were.
 * @property {[number, number]} losses Sum of the steps' losses, and how many there were.
 */

/**
 * A device's round: draw, fetch, learn.
 * @param {LinearPlan} plan
 * @param {Float32Array} table The server's item rows [items, dim].
 * @param {number} dim
 * @param {Float32Array} weight [dim], or [dim + 1] with b; it is not changed.
 * @param {ArrayLike<number>} positives
 * @param {Int32Array} closed
 * @param {bigint} key Of the device's stream in the round.
 * @returns {LinearRound}
 */
export function linearRound(plan, table, dim, weight, positives, closed, key) {
  const samples = draw(positives, closed, table.length / dim, key, plan.negatives);
  const { ids, slots } = held(samples.items);
  const received = gather(table, ids, dim);
  const learned = learn(plan, received, dim, weight, slots, samples.labels, key);
  return { ...learned, ids, received };
}

/**
 * Local learning on samples, given as rows and labels.
 * @param {LinearPlan} plan
 * @param {Float32Array} received
 * @param {number} dim
 * @param {Float32Array} start
 * @param {Int32Array} slots
 * @param {Float32Array} labels
 * @param {bigint} key
 */
export function learn(plan, received, dim, start, slots, labels, key) {
  const rows = received.slice();
  const weight = plan.passes ? new Float32Array(start.length) : start.slice();
  const count = slots.length;
  const half = (count + 1) >> 1;
  let places = order(key, 0, count);
  /** @type {[number, number]} */
  const losses = [0, 0];
  for (let turn = 0; turn < plan.passes + plan.epochs; turn++) {
    if (turn > 0 && !plan.passes) places = order(key, turn, count);
    const rebuilds = turn < plan.passes;
    const first = plan.passes && !rebuilds && plan.disjoint ? half : 0;
    const last = rebuilds ? half : count;
    for (let begin = first; begin < last; begin += plan.batch) {
      const batch = places.subarray(begin, Math.min(last, begin + plan.batch));
      const step = (/** @type {number} */ rate, /** @type {number} */ itemRate) => {
        losses[0] += descend(rows, dim, weight, batch, slots, labels, rate, itemRate);
        losses[1] += 1;
      };
      if (rebuilds) step(plan.rate, 0);
      else if (plan.passes) step(0, plan.itemRate);
      else if (plan.alternate) {
        step(plan.rate, 0);
        step(0, plan.itemRate);
      } else step(plan.rate, plan.itemRate);
    }
  }
  return { weight, rows, losses };
}

/**
 * One step of w and b, and of the rows, down the gradient of the mean cross-entropy at their current values. A row that
 * the batch holds twice moves by both errors.
 * @param {Float32Array} rows
 * @param {number} dim
 * @param {Float32Array} weight
 * @param {Int32Array} batch Positions of samples.
 * @param {Int32Array} slots
 * @param {Float32Array} labels
 * @param {number} rate
 * @param {number} itemRate
 * @returns {number} the loss before the step
 */
function descend(rows, dim, weight, batch, slots, labels, rate, itemRate) {
  const errors = new Float64Array(batch.length);
  const gradient = new Float64Array(weight.length);
  let loss = 0;
  for (let i = 0; i < batch.length; i++) {
    const row = slots[batch[i]] * dim;
    const z = score(rows, row, dim, weight);
    loss += Math.max(z, 0) - z * labels[batch[i]] + Math.log1p(Math.exp(-Math.abs(z)));
    const error = (sigmoid(z) - labels[batch[i]]) / batch.length;
    errors[i] = error;
    if (!rate) continue;
    for (let k = 0; k < dim; k++) gradient[k] += error * rows[row + k];
    if (weight.length > dim) gradient[dim] += error;
  }
  if (itemRate) {
    for (let i = 0; i < batch.length; i++) {
      const row = slots[batch[i]] * dim;
      for (let k = 0; k < dim; k++) rows[row + k] -= itemRate * errors[i] * weight[k];
    }
  }
  if (rate) for (let k = 0; k < weight.length; k++) weight[k] -= rate * gradient[k];
  return loss / batch.length;
}

/**
 * w . v + b of the row that begins at `row`.
 * @param {Float32Array} rows
 * @param {number} row
 * @param {number} dim
 * @param {Float32Array} weight
 */
export function score(rows, row, dim, weight) {
  let z = weight.length > dim ? weight[dim] : 0;
  for (let k = 0; k < dim; k++) z += weight[k] * rows[row + k];
  return z;
}
