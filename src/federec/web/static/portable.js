/** A person's data as a file: JSON that she can read, take to another browser, or keep. */

import { newDevice } from "./store.js";

const FORMAT = "federec-picks";
const MOST_BYTES = 4 << 20;
const NUMBER = /^(0|[1-9]\d{0,18})$/;

/**
 * @param {import("./store.js").Kept} kept
 * @param {Map<string, string>} titles Label -> title, for people who read the file.
 */
export function exported(kept, titles) {
  const picks = kept.picks.map((item) => ({ item, title: titles.get(item) ?? item }));
  return JSON.stringify({ format: FORMAT, version: 1, number: kept.number, picks }, null, 2);
}

/**
 * What a file holds. Its mistakes are one line that a person can read.
 * @param {string} text
 * @param {(label: string) => boolean} known Whether the catalogue has an item.
 * @returns {{ kept: import("./store.js").Kept, unknown: number }} `unknown`: how many items the catalogue does not have.
 */
export function imported(text, known) {
  if (text.length > MOST_BYTES) throw new Error("The file is too large to be a list of picks.");
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON. Choose a file that this page exported.");
  }
  if (read?.format !== FORMAT || !Array.isArray(read.picks)) {
    throw new Error("The file holds no picks. Choose a file that this page exported.");
  }
  if (read.version !== 1) throw new Error("The file comes from another version of this page.");
  const items = read.picks.map((/** @type {any} */ pick) => pick?.item);
  if (!items.every((/** @type {any} */ item) => typeof item === "string" && item.length > 0 && item.length <= 1000)) {
    throw new Error("The file has a pick without an item. It was changed or damaged.");
  }
  const picks = [...new Set(/** @type {string[]} */ (items))];
  const here = picks.filter(known);
  const sound = typeof read.number === "string" && NUMBER.test(read.number) && BigInt(read.number) < 1n << 62n;
  return { kept: { number: sound ? read.number : newDevice().number, picks: here }, unknown: picks.length - here.length };
}
