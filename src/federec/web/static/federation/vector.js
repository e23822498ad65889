/**
 * A device's reply as a vector of whole numbers, which is what a secure sum adds up (`federec/network/vector.py`): how
 * many users it speaks for; 1 for each table that it sends; sums and counts of losses and metrics; then the tables whole.
 */
import { NAMES } from "./ranking.js";

const STEPS = 2 ** 24; // into which the range of a value is cut
const LONG = 64; // losses are summed over all steps
const KINDS = ["valid sampled", "valid full", "test sampled", "test full"];
const FIGURES = ["loss", "interactions", ...KINDS.flatMap((kind) => NAMES.map((name) => `${kind} ${name}`))];

/**
 * @param {Map<string, [number, number]>} sums losses and metrics by name: their sum, and over how many
 * @param {Float32Array[]} tables the changes of whole item tables
 * @param {number} items
 * @param {number} most the largest value; what is beyond is cut off
 * @returns {Float64Array} whole numbers, of one user
 */
export function flat(sums, tables, items, most) {
  const step = (2 * most) / STEPS;
  const rounded = (value) => nearest(Math.min(most, Math.max(-most, value)) / step);
  const figures = FIGURES.flatMap((name) => {
    const scale = name === "loss" ? LONG : name === "interactions" ? items : 1;
    return (sums.get(name) ?? [0, 0]).map((value) => rounded(value / scale));
  });
  const head = [1, ...tables.map(() => 1), ...figures];
  const found = new Float64Array(head.length + tables.reduce((sum, table) => sum + table.length, 0));
  found.set(head);
  let at = head.length;
  for (const table of tables) for (const value of table) found[at++] = rounded(value);
  return found;
}

/** To the nearest whole number, of two equally near the even one, as Python does. */
function nearest(value) {
  const whole = Math.floor(value);
  const rest = value - whole;
  return rest > 0.5 || (rest === 0.5 && whole % 2 !== 0) ? whole + 1 : whole;
}
