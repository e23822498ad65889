/** What a device learns from in a round: its positives and fresh negatives, shuffled; number for number as `cohort/draw.py`. */

import { NEGATIVES, SHUFFLE, below, bits } from "./streams.js";

const MOST = 2 ** 22; // samples

/**
 * @typedef {object} Samples
 * @property {Int32Array} items Each positive followed by its negatives.
 * @property {Float32Array} labels 1 for a positive, 0 for a negative.
 */

/**
 * The distinct numbers of a list, ascending.
 * @param {Iterable<number>} numbers
 */
export function distinct(numbers) {
  return Int32Array.from(new Set(numbers)).sort();
}

/**
 * The rank-th item that is not closed: rank + #{k : closed[k] - k <= rank}, by bisection.
 * @param {Int32Array} closed Sorted distinct items.
 * @param {number} rank
 */
function openItem(closed, rank) {
  let low = 0;
  let high = closed.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (closed[middle] - middle <= rank) low = middle + 1;
    else high = middle;
  }
  return rank + low;
}

/**
 * The samples of a round, before shuffling. A device that has every item draws no negatives.
 * @param {ArrayLike<number>} positives Oldest first; an item may be there several times.
 * @param {Int32Array} closed Sorted distinct items that are never drawn as negatives.
 * @param {number} items How many items the catalogue has.
 * @param {bigint} key Of the device's stream in the round.
 * @param {number} negatives For each positive.
 * @returns {Samples}
 */
export function draw(positives, closed, items, key, negatives) {
  const open = items - closed.length;
  const each = open > 0 ? negatives : 0;
  const drawn = new Int32Array(positives.length * (1 + each));
  const labels = new Float32Array(drawn.length);
  let slot = 0n;
  for (let at = 0; at < drawn.length; at++) {
    const place = at % (1 + each);
    if (place === 0) {
      drawn[at] = positives[at / (1 + each)];
      labels[at] = 1;
    } else {
      drawn[at] = openItem(closed, below(bits(key, NEGATIVES + slot), open));
      slot += 1n;
    }
  }
  return { items: drawn, labels };
}

/**
 * Positions 0..count-1 in the order of an epoch: by random key, ties by position.
 * @param {bigint} key
 * @param {number} epoch
 * @param {number} count At most `MOST`.
 */
export function order(key, epoch, count) {
  if (count > MOST) throw new RangeError(`${count} samples are more than can be shuffled`);
  const base = SHUFFLE + (BigInt(epoch) << 32n);
  // A key of 31 bits above a position of 22 bits: a double holds both, and sorting doubles needs no callback.
  const keys = new Float64Array(count);
  for (let at = 0; at < count; at++) keys[at] = Number(bits(key, base + BigInt(at)) >> 33n) * MOST + at;
  keys.sort();
  return Int32Array.from(keys, (value) => value % MOST);
}
