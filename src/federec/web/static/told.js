/**
 * What would the server learn? The update that this device's newest round would send, step by step through the stages
 * of the run's channel, as the bytes that they are.
 */

import { joined } from "./federation/bytes.js";
import { catalogueVersion, packReply } from "./federation/messages.js";
import { save, tensor } from "./federation/safetensors.js";
import { flat } from "./federation/vector.js";
import { change } from "./rows.js";

const WORD = 4; // bytes of a masked number
const MOST_WHOLE = 16 << 20; // bytes; of what is longer only the beginning is made
const VERSION = Uint8Array.of(1); // of the secure sum's own messages

/**
 * @typedef {object} Step
 * @property {string} name What happens here, in a few words.
 * @property {string} text What it means for a person.
 * @property {number} size Bytes in all.
 * @property {Uint8Array} bytes They themselves, or the beginning where they are many.
 * @property {{ items: number[], size: number, picked: boolean }[]} [rows] What the bytes say of items, most first.
 */

/**
 * @param {import("./model.js").Model} model
 * @param {number[]} picks
 * @param {import("./recommend.js").Learned} learned
 * @returns {Promise<Step[]>} Empty where the method sends nothing, or was trained in one place.
 */
export async function messageSteps(model, picks, learned) {
  const { channel, sends } = model.page;
  if (!channel || !sends) return [];
  const update = model.page.kind === "neighbours" ? pairsOf(model, picks) : rowsOf(model, learned.last);
  const steps = [inTheClear(model, picks, update)];
  for (const stage of channel) {
    const found = await stageStep(model, picks, update, stage);
    steps.push(...found);
    if (found.length === 0) break;
  }
  return steps;
}

/**
 * An update: changed values of items, or of pairs of items.
 * @typedef {{ ids: Int32Array, width: number, values: Float32Array }} Update
 */

/** @returns {Update} The change of the rows that were touched in the newest round. */
function rowsOf(model, last) {
  return { ids: last.ids, width: model.page.dim, values: change(last.rows ?? last.common, last.received) };
}

/**
 * For each picked item a value for every picked item: the device's part of the sum that FedEASE needs. It is 1, or less
 * for picks that are far from each other, where the run has a window.
 * @returns {Update}
 */
function pairsOf({ page }, picks) {
  const ids = Int32Array.from(picks).sort();
  const place = new Map(picks.map((item, at) => [item, at]));
  const value = (one, two) => (page.window ? Math.exp(-Math.abs(place.get(one) - place.get(two)) / page.window) : 1);
  const values = Float32Array.from(Array.from(ids).flatMap((one) => Array.from(ids, (two) => value(one, two))));
  return { ids, width: ids.length, values };
}

/** The update as it would travel without any stage: codes of items, and their values. */
function inTheClear(model, picks, update) {
  const pairs = model.page.kind === "neighbours";
  const text = pairs
    ? "This is what the method needs from you: every pair of your picks, counted once. In the clear a server would read your picks off it."
    : "This is the change of every item that was touched: your picks, and others drawn at random beside them. In the clear a server would see these items, and your picks move the other way than the rest.";
  return { name: "Before any stage", text, ...written(model, update), rows: decoded(pairs, picks, update) };
}

/** The tensors of the message, as safetensors. */
function written(model, update) {
  const rows = tensor("F32", [update.ids.length, update.width], update.values);
  const bytes = save(new Map([["ids", tensor("I32", [update.ids.length], update.ids)], [`rows:${model.page.sends}`, rows]]));
  return { bytes, size: bytes.length };
}

/** What the bytes say of each item, the largest change first; or each pair. */
function decoded(pairs, picks, { ids, width, values }) {
  if (pairs) {
    const items = Array.from(ids);
    return items.flatMap((one, at) =>
      items.slice(at).map((two, after) => ({ items: [one, two], size: values[at * width + at + after], picked: true })),
    );
  }
  const rows = Array.from(ids, (item, at) => ({
    items: [item],
    size: Math.hypot(...values.subarray(at * width, (at + 1) * width)),
    picked: picks.includes(item),
  }));
  return rows.sort((one, two) => two.size - one.size);
}

/** What a stage of the channel makes of the update, which changes in place; nothing for a stage that is not shown here. */
async function stageStep(model, picks, update, stage) {
  if (stage.stage === "clip" && stage.quantile === undefined) return [clipped(model, picks, update, stage)];
  if (stage.stage === "secure-sum") return masked(model, update, stage.most);
  return [];
}

/** The update scaled down to a largest norm. */
function clipped(model, picks, update, { norm, power }) {
  const sizes = update.values.map((value) => (power === 1 ? Math.abs(value) : value * value));
  const total = sizes.reduce((sum, value) => sum + value, 0);
  const size = power === 1 ? total : Math.sqrt(total);
  const factor = Number.isFinite(size) ? Math.min(1, norm / size) : 0;
  update.values = update.values.map((value) => value * factor);
  const text = `The update is ${size.toPrecision(3)} long and may be ${norm} long: all values are multiplied by ${factor.toPrecision(3)}. No person can change the model by more.`;
  const pairs = model.page.kind === "neighbours";
  return { name: "After clip", text, ...written(model, update), rows: decoded(pairs, picks, update) };
}

/**
 * The vector of whole numbers that a secure sum adds up, and the message that leaves: the vector under masks.
 * In the vector a table has all items in their order, so that the place of a number says nothing about who sent it.
 */
async function masked(model, update, most) {
  const { items, kind } = model.page;
  const width = kind === "neighbours" ? items : update.width;
  const figures = flat(new Map(), [new Float32Array(0)], items, most).length; // metrics stay 0 in this page
  const table = new Float32Array(Math.min(items * width, MOST_WHOLE / WORD - figures));
  update.ids.forEach((item, at) => {
    for (let k = 0; k < update.width; k++) {
      const column = kind === "neighbours" ? update.ids[k] : k;
      table[item * width + column] = update.values[at * update.width + k]; // beyond the end it is left out
    }
  });
  const vector = Int32Array.from(flat(new Map(), [table], items, most));
  const count = figures + items * width;
  const plain = new Uint8Array(vector.buffer);
  const first = {
    name: "Secure sum: whole numbers",
    text: `All ${items.toLocaleString("en")} items are in it, in the order of the catalogue, with zeros where nothing changed. This still stays on your device.`,
    bytes: plain,
    size: count * WORD,
  };
  if (!crypto.subtle) return [first]; // browsers encrypt only where the address is secure
  const noise = new Uint32Array(await keyStream(plain.length));
  const sum = vector.map((number, at) => number + noise[at]);
  const context = new Uint8Array(32); // in a federation a digest of the server's order
  const message = packReply({
    run: "example",
    round: model.page.rounds,
    catalogue: await catalogueVersion(model.labels),
    sealed: joined(VERSION, context, new Uint8Array(sum.buffer)),
  });
  return [
    first,
    {
      name: "Secure sum: what leaves",
      text: "Every number has a random one added to it. The result is as likely for any picks, so it tells the server nothing. Only the sum over all devices of a round has meaning: there the random numbers cancel. Here one random key makes the mask; in a federation the keys are agreed with the other devices.",
      bytes: message,
      size: message.length + (count - vector.length) * WORD,
    },
  ];
}

/** So many uniform bytes: AES-256 in counter mode under a new random key, as the masks of a secure sum are made. */
async function keyStream(bytes) {
  const key = await crypto.subtle.generateKey({ name: "AES-CTR", length: 256 }, false, ["encrypt"]);
  return crypto.subtle.encrypt({ name: "AES-CTR", counter: new Uint8Array(16), length: 128 }, key, new Uint8Array(bytes));
}
