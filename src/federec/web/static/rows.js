/** A device's own copies of the item rows that it touches in a round. */

import { distinct } from "./draw.js";

/**
 * @typedef {object} Held
 * @property {Int32Array} ids The distinct items of the samples, ascending.
 * @property {Int32Array} slots The place of each sample's item in `ids`.
 */

/**
 * Which rows the samples need.
 * @param {Int32Array} items
 * @returns {Held}
 */
export function held(items) {
  const ids = distinct(items);
  const place = new Map(Array.from(ids, (item, at) => [item, at]));
  return { ids, slots: Int32Array.from(items, (item) => /** @type {number} */ (place.get(item))) };
}

/**
 * These rows of a table, one after the other.
 * @param {Float32Array} table [items, dim]
 * @param {Int32Array} ids
 * @param {number} dim
 */
export function gather(table, ids, dim) {
  const rows = new Float32Array(ids.length * dim);
  ids.forEach((item, at) => rows.set(table.subarray(item * dim, (item + 1) * dim), at * dim));
  return rows;
}

/**
 * What a device sends of its rows: new minus received.
 * @param {Float32Array} rows
 * @param {Float32Array} received
 */
export function change(rows, received) {
  return rows.map((value, at) => value - received[at]);
}

/** @param {number} z */
export function sigmoid(z) {
  return z > 0 ? 1 / (1 + Math.exp(-z)) : Math.exp(z) / (1 + Math.exp(z));
}
