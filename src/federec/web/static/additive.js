/**
 * The local round of FedRAP (`methods/forms.py`, `AdditiveScore`): sigma(w . (c + d) + b) with shared rows c and the
 * device's own rows d. All step at once by SGD with weight decay, and a device stops when its mean loss has settled.
 */

import { draw, order } from "./draw.js";
import { gather, held, sigmoid } from "./rows.js";

/**
 * How a device learns in a round.
 * @typedef {object} AdditivePlan
 * @property {number} negatives
 * @property {number} batch
 * @property {number} epochs At most.
 * @property {number} rate Step of w and b in the first batch of the round.
 * @property {number} commonRate Step of c; 0 where there is no c.
 * @property {number} ownRate Step of d; 0 where there is no d.
 * @property {number} away Weight of the term that pushes c and d apart.
 * @property {number} small Weight of the norm of c.
 * @property {boolean} squared The norm is the mean of squares; of absolute values otherwise.
 * @property {number} weightDecay
 * @property {number} stepDecay Steps shrink by this after each batch.
 * @property {number} tolerance Change of the mean loss, as a fraction of it, below which a device stops after a pass.
 */

/**
 * @typedef {object} AdditiveRound
 * @property {Float32Array} weight The new w, with b as its last value.
 * @property {Int32Array} ids
 * @property {Float32Array} common Tuned rows c of these items.
 * @property {Float32Array} own Tuned rows d of these items, which the device keeps.
 * @property {Float32Array} received The rows c as they were.
 */

/**
 * A device's round: draw, fetch, learn.
 * @param {AdditivePlan} plan
 * @param {Float32Array} common The server's rows [items, dim]; zeros where there are none.
 * @param {(ids: Int32Array) => Float32Array} ownRows The device's own rows of these items, or what they start with.
 * @param {number} dim
 * @param {Float32Array} start [dim + 1]: w and b.
 * @param {ArrayLike<number>} positives
 * @param {Int32Array} closed
 * @param {bigint} key
 * @returns {AdditiveRound}
 */
export function additiveRound(plan, common, ownRows, dim, start, positives, closed, key) {
  const samples = draw(positives, closed, common.length / dim, key, plan.negatives);
  const { ids, slots } = held(samples.items);
  const received = gather(common, ids, dim);
  const device = { common: received.slice(), own: ownRows(ids).slice(), weight: start.slice() };
  const count = slots.length;
  let pace = 1;
  let total = 0;
  let last = 0;
  for (let epoch = 0; epoch < plan.epochs; epoch++) {
    const places = order(key, epoch, count);
    for (let begin = 0; begin < count; begin += plan.batch) {
      const batch = places.subarray(begin, Math.min(count, begin + plan.batch));
      total += batch.length * descend(plan, pace, device, dim, batch, slots, samples.labels);
      pace *= plan.stepDecay;
    }
    const mean = total / ((epoch + 1) * count);
    if (epoch > 0 && Math.abs(mean - last) < plan.tolerance * Math.abs(last)) break;
    last = mean;
  }
  return { ...device, ids, received };
}

/**
 * One step of everything down the gradient at the current values; returns the loss before it.
 *     L = sum_j q (BCE_j - away mean (d_j - c_j)^2 + small mean N(c_j)),   N(c) = |c|, or c^2 if `squared`
 * Weight decay acts on all rows that the device holds in the round.
 * @param {AdditivePlan} plan
 * @param {number} pace
 * @param {{ common: Float32Array, own: Float32Array, weight: Float32Array }} device
 * @param {number} dim
 * @param {Int32Array} batch
 * @param {Int32Array} slots
 * @param {Float32Array} labels
 */
function descend(plan, pace, device, dim, batch, slots, labels) {
  const { common, own, weight } = device;
  const ofWeight = new Float64Array(dim + 1);
  const ofCommon = new Float64Array(common.length);
  const ofOwn = new Float64Array(own.length);
  const share = 1 / batch.length;
  let loss = 0;
  for (const place of batch) {
    const row = slots[place] * dim;
    let z = weight[dim];
    for (let k = 0; k < dim; k++) z += weight[k] * (common[row + k] + own[row + k]);
    const error = share * (sigmoid(z) - labels[place]);
    let terms = 0;
    for (let k = 0; k < dim; k++) {
      const c = common[row + k];
      const apart = own[row + k] - c;
      terms += plan.small * (plan.squared ? c * c : Math.abs(c)) - plan.away * apart * apart;
      const pushed = (2 * plan.away * share * apart) / dim;
      const sparse = (plan.small * share * (plan.squared ? 2 * c : Math.sign(c))) / dim;
      ofCommon[row + k] += error * weight[k] + pushed + sparse;
      ofOwn[row + k] += error * weight[k] - pushed;
      ofWeight[k] += error * (c + own[row + k]);
    }
    ofWeight[dim] += error;
    loss += share * (Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z))) - labels[place] * z + terms / dim);
  }
  move(common, ofCommon, pace * plan.commonRate, plan.weightDecay);
  move(own, ofOwn, pace * plan.ownRate, plan.weightDecay);
  move(weight, ofWeight, pace * plan.rate, plan.weightDecay);
  return loss;
}

/**
 * A step of SGD with weight decay, in place.
 * @param {Float32Array} values
 * @param {Float64Array} gradient
 * @param {number} rate
 * @param {number} decay
 */
function move(values, gradient, rate, decay) {
  if (!rate) return;
  for (let k = 0; k < values.length; k++) values[k] = (1 - rate * decay) * values[k] - rate * gradient[k];
}
