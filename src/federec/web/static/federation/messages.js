/**
 * Messages between server and device, byte for byte those of `federec/network/messages.py`: a header, metadata as JSON,
 * tensors as safetensors. A tab reads orders and writes replies.
 */
import { Refusal, hex, joined, utf8 } from "./bytes.js";
import { Numeral, dumps, parse, plain } from "./json.js";
import { load, raw, save, tensor } from "./safetensors.js";

export const PROTOCOL = 3;
/** Longer messages are not read. */
export const MOST_BYTES = 512 * 2 ** 20;

const MAGIC = utf8("federec\0");
const HEADER = 14;
const KINDS = ["query", "train", "evaluate", "share", "agree", "unmask"];
const LONGEST_LABEL = 1000;
const TYPES = { I32: "torch.int32", F32: "torch.float32", I16: "torch.int16", I8: "torch.int8", U8: "torch.uint8" };
const whole = (value) => value instanceof Numeral && value.whole;
const text = (value) => typeof value === "string";
const ORDER = {
  kind: text,
  run: text,
  round: whole,
  config: (value) => value instanceof Map,
  sizes: Array.isArray,
  labels: Array.isArray,
  keep: whole,
  full: (value) => typeof value === "boolean",
  next: text,
};
const CONTROL = /[\u0000-\u001f\u007f-\u009f]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

/** The other side speaks another version of the protocol. */
export class OtherVersion extends Refusal {
  constructor(version) {
    const older = version < PROTOCOL ? "ask the federation's operator to update the server" : "reload this page";
    super(`the server speaks protocol ${version}, this page ${PROTOCOL}: ${older}`);
  }
}

/** @returns {[Uint8Array, Uint8Array]} the JSON and the safetensors of a message of this version, unread */
function parts(content) {
  if (content.length > MOST_BYTES) throw new Refusal("a message that is too long");
  if (content.length < HEADER) throw new Refusal("not a message of a federation: it is shorter than a header");
  if (!MAGIC.every((byte, at) => byte === content[at])) {
    throw new Refusal("not a message of a federation: it begins otherwise");
  }
  const view = new DataView(content.buffer, content.byteOffset);
  const version = view.getUint16(8, true);
  if (version !== PROTOCOL) throw new OtherVersion(version);
  const begin = HEADER + view.getUint32(10, true);
  if (begin > content.length) throw new Refusal("a message that is cut off");
  return [content.subarray(HEADER, begin), content.subarray(begin)];
}

/**
 * What a device is asked to do.
 * @typedef {{kind: string, run: string, round: number, config: object, sizes: number[], labels: string[], keep: number,
 *   full: boolean, next: string, shared: Map<string, import("./safetensors.js").Tensor>, sealed: Uint8Array,
 *   asked: Map<string, any>}} Order  `shared` holds `ids`, `rows:NAME` and `layers:NAME`; `asked` is the JSON as it came
 */

/** @param {Uint8Array} content @returns {Order} a Refusal for everything that is not an order */
export function parseOrder(content) {
  const [json, rest] = parts(content);
  let decoded;
  try {
    decoded = new TextDecoder("utf-8", { fatal: true }).decode(json);
  } catch {
    throw new Refusal("a message whose metadata cannot be read");
  }
  const asked = parse(decoded);
  if (!(asked instanceof Map) || asked.size !== Object.keys(ORDER).length) throw new Refusal("a message with other fields");
  for (const [name, fits] of Object.entries(ORDER)) {
    if (!asked.has(name) || !fits(asked.get(name))) throw new Refusal(`a message whose '${name}' is of another kind`);
  }
  const shared = load(rest);
  const sealed = shared.get("sealed");
  const ids = shared.get("ids");
  if (sealed?.kind !== "U8" || sealed.shape.length !== 1) throw new Refusal("a message without 'sealed'");
  if (ids?.kind !== "I32" || ids.shape.length !== 1) throw new Refusal("a message without row codes");
  shared.delete("sealed");
  for (const name of shared.keys()) {
    if (name !== "ids" && !/^(rows|layers):/.test(name)) throw new Refusal("a message with tensors of another kind");
  }
  const order = { ...plain(asked), shared, sealed: sealed.values, asked };
  const sizes = asked.get("sizes");
  if (!KINDS.includes(order.kind) || order.round < 0 || order.keep < 0) throw new Refusal("not an order (kind or round)");
  if (!sizes.length || !sizes.every((size) => whole(size) && size.value >= 0 && size.value < 2 ** 31)) {
    throw new Refusal("not an order (sizes)");
  }
  if (!order.labels.every(isLabel)) throw new Refusal("not an order (labels)");
  return order;
}

function isLabel(label) {
  return text(label) && label.length > 0 && [...label].length <= LONGEST_LABEL && !CONTROL.test(label);
}

/** @param {Order} order @returns {Promise<Uint8Array>} of all that is asked for: equal for devices that are asked the same */
export async function digest(order) {
  const asked = ["kind", "run", "round", "config", "sizes", "keep", "full"].map((name) => order.asked.get(name));
  const hashed = [utf8(dumps(asked, true))];
  for (const name of [...order.shared.keys()].sort()) {
    const each = order.shared.get(name);
    const shape = each.shape.length === 1 ? `(${each.shape},)` : `(${each.shape.join(", ")})`;
    hashed.push(utf8(`${name} ${shape} ${TYPES[each.kind]}`), raw(each));
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", joined(...hashed)));
}

const NOTHING = new Uint8Array(0);

/**
 * @param {{run: string, round: number, catalogue?: string, devices?: number, failed?: string, advert?: Uint8Array,
 *   sealed?: Uint8Array}} reply  a tab's reply: it never holds an update or sums that are not sealed
 * @returns {Uint8Array} as it leaves
 */
export function packReply({ run, round, catalogue = "", devices = 0, failed = "", advert = NOTHING, sealed = NOTHING }) {
  const metadata = new Map(Object.entries({ run, round, catalogue, devices, sums: new Map(), failed }));
  const json = utf8(dumps(metadata));
  const empty = tensor("I32", [0], new Int32Array(0));
  const tensors = new Map([["ids", empty], ["wanted", empty]]);
  tensors.set("advert", tensor("U8", [advert.length], advert)).set("sealed", tensor("U8", [sealed.length], sealed));
  const header = new Uint8Array(HEADER);
  header.set(MAGIC);
  const view = new DataView(header.buffer);
  view.setUint16(8, PROTOCOL, true);
  view.setUint32(10, json.length, true);
  return joined(header, json, save(tensors));
}

/** @param {string[]} labels @returns {Promise<string>} the version of a catalogue: its size, and a digest of its labels */
export async function catalogueVersion(labels) {
  const hashed = await crypto.subtle.digest("SHA-256", utf8(dumps(labels)));
  return `${labels.length}-${hex(new Uint8Array(hashed)).slice(0, 12)}`;
}
