/** Ranks of a device's held-out items, among sampled ones and among all, and their metrics (`evaluation/`). */
import { distinct } from "../draw.js";
import { CANDIDATES, ONCE, below, bits, streamKey } from "../streams.js";

const SAMPLED = 99;
const CUTS = [5, 10, 20];
const METRICS = {
  hr: (rank) => 1,
  ndcg: (rank) => 1 / Math.log2(rank + 2),
  mrr: (rank) => 1 / (rank + 1),
  recall: (rank) => 1,
  precision: (rank, cut) => 1 / cut,
  map: (rank) => 1 / (rank + 1),
};

/** Names of all metrics, in the order in which they travel. */
export const NAMES = CUTS.flatMap((cut) => Object.keys(METRICS).map((name) => `${name}@${cut}`));

/** @param {number} rank counted from 0 @returns {Map<string, number>} the metrics of one held-out item */
export function metrics(rank) {
  const found = CUTS.flatMap((cut) =>
    Object.entries(METRICS).map(([name, value]) => [`${name}@${cut}`, rank < cut ? value(rank, cut) : 0]),
  );
  return new Map(found);
}

/**
 * The items that held-out items are ranked against: 99 that the user never touched for validation, 99 others for test.
 * @param {import("./split.js").Split} split
 * @param {number} items
 * @param {bigint} seed
 * @param {bigint} slot
 * @returns {{valid: number[], test: number[]}}
 */
export function candidates(split, items, seed, slot) {
  const key = streamKey(seed, ONCE, slot);
  const closed = distinct([...split.train, split.valid, split.test]);
  const untouched = items - closed.length;
  const count = 2 * SAMPLED;
  const seen = new Set();
  for (let at = 0; at < count; at++) {
    const last = Math.max(untouched - count, 0) + at;
    const drawn = below(bits(key, CANDIDATES + BigInt(at)), last + 1);
    seen.add(seen.has(drawn) ? last : drawn);
  }
  const have = Math.min(untouched, count);
  const shuffled = [...seen].slice(0, have).map((rank, at) => ({
    rank,
    order: BigInt.asIntN(64, bits(key, CANDIDATES + BigInt(count + at))),
  }));
  shuffled.sort((one, two) => (one.order < two.order ? -1 : 1));
  const found = shuffled.map(({ rank }) => open(closed, rank));
  return { valid: found.slice(0, SAMPLED), test: found.reverse().slice(0, SAMPLED) };
}

/** The rank-th item that is not closed. */
function open(closed, rank) {
  let item = rank;
  for (const each of closed) if (each <= item) item += 1;
  return item;
}

/** @returns {number} how many of the others do not score below an item; a score that is not a number counts against it */
export function rankAmong(score, item, others) {
  const own = score(item);
  return others.filter((other) => !(score(other) < own)).length;
}

/** @returns {number} the same among all items but some */
export function rankAmongAll(score, item, items, without) {
  const left = new Set(without);
  left.delete(item);
  const own = score(item);
  let rank = 0;
  for (let other = 0; other < items; other++) if (other !== item && !left.has(other) && !(score(other) < own)) rank += 1;
  return rank;
}
