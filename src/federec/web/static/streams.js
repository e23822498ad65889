/**
 * Randomness as a pure function of (seed, round, user, draw): SplitMix64 read at a chosen position, bit for bit as
 * `streams.py`. All 64-bit numbers are unsigned BigInts.
 */

const GOLDEN = 0x9e3779b97f4a7c15n;
const FIRST = 0xbf58476d1ce4e5b9n;
const SECOND = 0x94d049bb133111ebn;

/** The draws of one device in one round are numbered. Each purpose has its own base, so purposes never overlap. */
export const NEGATIVES = 0n << 40n;
export const SHUFFLE = 1n << 40n;
export const CANDIDATES = 3n << 40n;
export const HOLDOUT = 4n << 40n;
export const LAPLACE = 8n << 40n;
export const GAUSSIAN = 10n << 40n;
export const ROUNDING = 11n << 40n;
export const VALIDATION = 12n << 40n;
export const TIES = 13n << 40n;

/** Rounds count from 1. Draws that are made once per run use round 0. */
export const ONCE = 0;

/**
 * SplitMix64's output function: a bijection of 64-bit numbers.
 * @param {bigint} z
 */
export function mix(z) {
  z = BigInt.asUintN(64, z);
  z = BigInt.asUintN(64, (z ^ (z >> 30n)) * FIRST);
  z = BigInt.asUintN(64, (z ^ (z >> 27n)) * SECOND);
  return z ^ (z >> 31n);
}

/**
 * The key of a user's stream in a round.
 * @param {bigint | number} seed
 * @param {bigint | number} round
 * @param {bigint | number} user
 */
export function streamKey(seed, round, user) {
  const base = mix(mix(BigInt(seed)) + BigInt(round) * GOLDEN);
  return mix(BigInt(user) * GOLDEN + base);
}

/**
 * 64 random bits for a draw of a stream.
 * @param {bigint} key
 * @param {bigint} draw
 */
export function bits(key, draw) {
  return mix(draw * GOLDEN + key);
}

/**
 * A whole number in [0, bound) from 64 random bits; bound < 2^31.
 * @param {bigint} random
 * @param {number} bound
 */
export function below(random, bound) {
  return Number(((random >> 32n) * BigInt(bound)) >> 32n);
}

/**
 * A number in [0, 1) with 24 random bits.
 * @param {bigint} random
 */
export function unit(random) {
  return Number(random >> 40n) / 2 ** 24;
}
