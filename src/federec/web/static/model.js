/** The page's model: what `federec/web/folder.py` wrote, read and put into plain arrays. */

import { load } from "./federation/safetensors.js";

/**
 * @typedef {object} Model
 * @property {object} page The content of page.json.
 * @property {string[]} labels The item of each code.
 * @property {string[]} titles What to call each item.
 * @property {number} bytes How large the model's files are.
 * @property {Map<string, Float32Array>} tables Item tables [items, dim], by their role.
 * @property {Float32Array} [start] The private parameters that a new device begins with.
 * @property {Int16Array | Int32Array} [ids] The neighbours of each item [items, width].
 */

/**
 * @param {(name: string) => Promise<Uint8Array>} read Gives the bytes of one of the page's files.
 * @returns {Promise<Model>}
 */
export async function readModel(read) {
  const names = ["page.json", "catalogue.json", "model.safetensors"];
  const [page, catalogue, tensors] = await Promise.all(names.map(read));
  const text = (/** @type {Uint8Array} */ bytes) => JSON.parse(new TextDecoder().decode(bytes));
  const { items: labels, titles } = text(catalogue);
  const found = load(tensors);
  return {
    page: text(page),
    labels,
    titles: labels.map((/** @type {string} */ label) => (Object.hasOwn(titles, label) ? titles[label] : label)),
    bytes: catalogue.length + tensors.length,
    tables: tablesOf(found),
    start: /** @type {Float32Array} */ (found.get("start")?.values),
    ids: /** @type {Int32Array} */ (found.get("ids")?.values),
  };
}

/**
 * Each ROLE.values as 32-bit numbers; those of 8 bits times the scale of their row, ROLE.scales.
 * @param {Map<string, import("./federation/safetensors.js").Tensor>} tensors
 */
function tablesOf(tensors) {
  const tables = new Map();
  for (const [name, { values, shape }] of tensors) {
    const [role, part] = name.split(".");
    if (part !== "values") continue;
    const scales = tensors.get(`${role}.scales`)?.values;
    const width = shape[1];
    tables.set(role, scales ? Float32Array.from(values, (code, at) => code * scales[Math.floor(at / width)]) : values);
  }
  return tables;
}
