/** What a device trains on, and what it holds out: its newest item for test, the one before it for validation. */
import { HOLDOUT, ONCE, TIES, bits, streamKey } from "../streams.js";

const NEEDED = 3; // items, below which nothing is held out

/**
 * @typedef {{item: number, time: number | null}} Interaction  an item's code; each item is there once
 * @typedef {{train: number[], valid: number | null, test: number | null}} Split  the training items are the oldest first
 */

/**
 * @param {Interaction[]} history in the order in which it was recorded
 * @param {bigint} seed of the run
 * @param {bigint} slot the user's number in the random streams
 * @param {"random" | "file"} ties the order of equal times
 * @returns {Split}
 */
export function holdOut(history, seed, slot, ties) {
  const key = streamKey(seed, ONCE, slot);
  const timed = history.some(({ time }) => time !== null);
  const drawn = (purpose, item) => BigInt.asIntN(64, bits(key, purpose + BigInt(item)));
  const rows = history.map(({ item, time }, at) => ({
    item,
    time: timed ? (time ?? -Infinity) : 0, // what has no time is older than the rest
    last: !timed ? drawn(HOLDOUT, item) : ties === "random" ? drawn(TIES, item) : BigInt(-at),
  }));
  rows.sort((one, two) => (one.time === two.time ? (one.last < two.last ? -1 : 1) : one.time - two.time));
  const items = rows.map(({ item }) => item);
  if (items.length < NEEDED) return { train: items, valid: null, test: null };
  return { train: items.slice(0, -2), valid: items.at(-2), test: items.at(-1) };
}
