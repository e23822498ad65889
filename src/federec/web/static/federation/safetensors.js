/** Tensors as bytes, in the form of safetensors: those kinds of numbers that a federation's messages have. */
import { Refusal, joined, utf8 } from "./bytes.js";

const KINDS = { F32: Float32Array, I32: Int32Array, I16: Int16Array, I8: Int8Array, U8: Uint8Array };
const ORDER = Object.keys(KINDS); // tensors are written in this order, and by name
const MOST_HEADER = 1 << 20;

/**
 * @typedef {{kind: string, shape: number[], values: Float32Array|Int32Array|Int16Array|Int8Array|Uint8Array}} Tensor
 */

/** @returns {Tensor} */
export const tensor = (kind, shape, values) => ({ kind, shape, values });

/** @returns {Uint8Array} the bytes of a tensor's values */
export const raw = ({ values }) => new Uint8Array(values.buffer, values.byteOffset, values.byteLength);

/** @param {Uint8Array} content @returns {Map<string, Tensor>} by name; a Refusal where it is malformed */
export function load(content) {
  const fail = () => {
    throw new Refusal("a message whose tensors cannot be read");
  };
  if (content.length < 8) fail();
  const size = Number(new DataView(content.buffer, content.byteOffset).getBigUint64(0, true));
  if (size > MOST_HEADER || 8 + size > content.length) fail();
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content.subarray(8, 8 + size)));
  } catch {
    fail();
  }
  if (header === null || typeof header !== "object" || Array.isArray(header)) fail();
  const data = content.subarray(8 + size);
  const found = new Map();
  const parts = Object.entries(header).filter(([name]) => name !== "__metadata__");
  let at = 0;
  const offset = (part, side) => part?.data_offsets?.[side] ?? 0;
  parts.sort(([, one], [, two]) => offset(one, 0) - offset(two, 0) || offset(one, 1) - offset(two, 1));
  for (const [name, part] of parts) {
    const kind = KINDS[part?.dtype];
    const { shape, data_offsets: offsets } = part ?? {};
    const count = (value) => Number.isSafeInteger(value) && value >= 0;
    if (kind === undefined || !Array.isArray(shape) || !shape.every(count)) fail();
    if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(count) || offsets[0] !== at) fail();
    const bytes = shape.reduce((product, side) => product * side, kind.BYTES_PER_ELEMENT);
    if (!(bytes <= data.length) || offsets[1] !== at + bytes || offsets[1] > data.length) fail();
    at = offsets[1];
    found.set(name, tensor(part.dtype, shape, new kind(data.slice(offsets[0], offsets[1]).buffer)));
  }
  if (at !== data.length) fail(); // nothing may hide between or after the tensors
  return found;
}

/** @param {Map<string, Tensor>} tensors @returns {Uint8Array} */
export function save(tensors) {
  const names = [...tensors.keys()].sort((one, two) => {
    const [first, second] = [one, two].map((name) => ORDER.indexOf(tensors.get(name).kind));
    return first - second || (one < two ? -1 : 1);
  });
  let at = 0;
  const parts = names.map((name) => {
    const { kind, shape, values } = tensors.get(name);
    const begin = at;
    at += values.byteLength;
    return `${JSON.stringify(name)}:{"dtype":"${kind}","shape":[${shape}],"data_offsets":[${begin},${at}]}`;
  });
  const text = `{${parts.join(",")}}`;
  const header = utf8(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(header.length), true);
  return joined(length, header, ...names.map((name) => raw(tensors.get(name))));
}
