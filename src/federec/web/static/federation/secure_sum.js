/**
 * A device's part in a secure sum, byte for byte that of `Party` in `federec/network/secure_sum.py`, where the messages
 * are described. A tab takes part in sums of up to 128 nodes, in which everybody is everybody's neighbour.
 */
import { Reader, Refusal, big, block, compared, hex, joined, same, unhex, utf8 } from "./bytes.js";
import { sign } from "./certificates.js";

const VERSION = 1;
const PRIME = 2n ** 256n + 297n;
const SHARE = 33; // bytes
const TAG = 16;
const ENTRY = 2 * TAG + 2 * SHARE + 16;
const NONE = new Uint8Array(SHARE).fill(0xff);
const COMPLETE = 128;
const ZEROS = new Uint8Array(16);
const NONCE = new Uint8Array(12); // a key is used for one message only
const X25519_PRIVATE = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20]; // PKCS #8, before the key
const BASE = Uint8Array.of(9, ...new Uint8Array(31));
const { subtle } = crypto;

const random = (count) => crypto.getRandomValues(new Uint8Array(count));
const most = (nodes) => Math.ceil((2 * nodes) / 3);
const message = (...parts) => joined(big(VERSION, 1), ...parts);

/** SHA-256 of the parts, which cannot be confused with those of another purpose or shifted against each other. */
async function hash(label, ...parts) {
  const content = [utf8(`federec secure sum ${VERSION} ${label}`), ...parts.map((part) => block(8, part))];
  return new Uint8Array(await subtle.digest("SHA-256", joined(...content)));
}

async function derive(secret, salt, info) {
  const key = await subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const given = { name: "HKDF", hash: "SHA-256", salt, info: joined(utf8("federec secure sum "), info) };
  return new Uint8Array(await subtle.deriveBits(given, key, 256));
}

async function seal(key, content) {
  const imported = await subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  return new Uint8Array(await subtle.encrypt({ name: "AES-GCM", iv: NONCE }, imported, content));
}

async function unseal(key, sealed) {
  const imported = await subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
  try {
    return new Uint8Array(await subtle.decrypt({ name: "AES-GCM", iv: NONCE }, imported, sealed));
  } catch {
    return null;
  }
}

/** So many uniform bytes: AES-256 in counter mode. A key is used for one stream only. */
async function stream(key, bytes) {
  const imported = await subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  return subtle.encrypt({ name: "AES-CTR", counter: ZEROS, length: 128 }, imported, new Uint8Array(bytes));
}

/** What two X25519 keys have in common. A Refusal for points of low order, with which everybody gets 0. */
async function exchange(secret, point) {
  try {
    const pkcs8 = Uint8Array.of(...X25519_PRIVATE, ...secret);
    const own = await subtle.importKey("pkcs8", pkcs8, "X25519", false, ["deriveBits"]);
    const theirs = await subtle.importKey("raw", point, "X25519", false, []);
    const found = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: theirs }, own, 256));
    if (found.some((byte) => byte !== 0)) return found;
  } catch {
    // refused below, whatever the reason
  }
  throw new Refusal("the one-time keys are no X25519 keys");
}

// Shamir's secret sharing of 32 bytes

const number = (bytes) => BigInt(`0x${hex(bytes)}`);
const written = (value) => unhex(value.toString(16).padStart(2 * SHARE, "0"));

function randomBelowPrime() {
  for (;;) {
    const bytes = random(SHARE);
    bytes[0] &= 1; // 257 bits
    const found = number(bytes);
    if (found < PRIME) return found;
  }
}

/** A share for each position: any `threshold` of them give the secret, fewer say nothing about it. */
function split(secret, threshold, positions) {
  const coefficients = [number(secret), ...Array.from({ length: threshold - 1 }, randomBelowPrime)];
  const evaluate = (point) => coefficients.reduceRight((value, each) => (value * point + each) % PRIME, 0n);
  return new Map(positions.map((position) => [position, written(evaluate(BigInt(position + 1)))]));
}

// Sets of nodes, and hash trees

function pack(members) {
  const found = new Uint8Array(Math.ceil(members.length / 8));
  members.forEach((member, at) => (found[at >> 3] |= member ? 0x80 >> (at & 7) : 0));
  return found;
}

/** The set that a message names. */
function bitmap(reader, nodes) {
  const bytes = reader.take(Math.ceil(nodes / 8));
  const found = Array.from({ length: bytes.length * 8 }, (_, at) => (bytes[at >> 3] & (0x80 >> (at & 7))) !== 0);
  if (found.slice(nodes).some(Boolean)) throw new Refusal("the message names nodes that do not exist");
  return found.slice(0, nodes);
}

/** Root of a hash tree over all these leaves. */
async function treeOf(leaves) {
  let level = await Promise.all(leaves.map((leaf) => hash("leaf", leaf)));
  while (level.length > 1) {
    const pairs = [];
    for (let at = 0; at + 1 < level.length; at += 2) pairs.push(hash("pair", level[at], level[at + 1]));
    level = [...(await Promise.all(pairs)), ...level.slice(2 * pairs.length)]; // the last of an odd number stays
  }
  return level[0];
}

function opened(content) {
  const reader = new Reader(content);
  if (reader.number(1) !== VERSION) {
    throw new Refusal("the message is of another version of secure aggregation; reload this page");
  }
  return reader;
}

/** What a node offers, if it is a node that the root has admitted and signed its keys for this run. */
async function readAdvert(content, run, root) {
  const reader = opened(content);
  const [certificate, share, mask, signature] = [reader.block(2), reader.take(32), reader.take(32), reader.block(1)];
  reader.end();
  const member = await root.member(certificate);
  if (!(await member.verify(await hash("advert", utf8(run), share, mask), signature))) {
    throw new Refusal("the one-time keys are not signed by the node for this run");
  }
  member.checkDate();
  return { member, share, mask };
}

const tag = async (session, owner, holder, kind, share) =>
  (await hash(`share of ${kind}`, session, joined(big(owner, 4), big(holder, 4)), share)).slice(0, TAG);

/** A device's part in one session. Each step works once; a step that is refused ends the session for this device. */
export class Party {
  /**
   * With new one-time keys.
   * @param {{key: CryptoKey, certificate: Uint8Array}} identity
   * @param {string} run names run and round: adverts for another one are refused, so that keys cannot be used twice
   */
  static async begin(identity, run) {
    const party = new Party();
    const keys = [random(32), random(32)];
    const [share, mask] = await Promise.all(keys.map((secret) => exchange(secret, BASE)));
    const signature = await sign(identity.key, await hash("advert", utf8(run), share, mask));
    const advert = message(block(2, identity.certificate), share, mask, block(1, signature));
    return Object.assign(party, { run, keys, advert, step: "share" });
  }

  /** Another one at the same step: what is refused changes nothing in the original. */
  copy() {
    return Object.assign(new Party(), this);
  }

  /**
   * Shares of its secrets for its neighbours, if all are admitted nodes, and `smallest` with itself or more.
   * @param {Uint8Array} roster
   * @param {import("./certificates.js").Root} root
   * @param {number} smallest
   */
  async share(roster, root, smallest) {
    this.enter("share");
    const reader = opened(roster);
    const head = reader.take(16);
    const sizes = [4, 4, 1, 4].map((bytes) => reader.number(bytes));
    const tree = reader.take(32);
    [this.nodes, this.position, this.width, this.length] = sizes;
    if (this.nodes < 2 || this.position >= this.nodes || ![32, 64].includes(this.width)) {
      throw new Refusal("the server's list of nodes is malformed");
    }
    if (this.nodes > COMPLETE) {
      const remedy = `the federation needs target=${COMPLETE}`;
      throw new Refusal(`a tab hides among up to ${COMPLETE} nodes, not ${this.nodes}; ${remedy}`);
    }
    if (this.nodes < smallest) {
      throw new Refusal(`${this.nodes} nodes are too few to hide in; this device asks for ${smallest}`);
    }
    this.threshold = most(this.nodes);
    const [nodes, , width, length] = sizes;
    this.session = await hash("session", head, joined(big(nodes, 4), big(width, 1), big(length, 4)), tree);
    this.others = Array.from({ length: this.nodes }, (_, at) => at).filter((at) => at !== this.position);
    const contents = [];
    for (const other of this.others) contents[other] = reader.block(2);
    contents[this.position] = this.advert;
    reader.end(); // in a complete graph no hash is missing
    if (!same(await treeOf(contents), tree)) throw new Refusal("the server's hashes do not fit what it has sent");
    const adverts = await this.checked(contents, root);
    this.smallest = smallest;
    this.seed = random(32);
    this.pairs = new Map();
    for (const other of this.others) {
      const [sealing, masking] = await Promise.all([
        exchange(this.keys[0], adverts[other].share),
        exchange(this.keys[1], adverts[other].mask),
      ]);
      this.pairs.set(other, { sealing, masking });
    }
    const places = contents.map((_, at) => at);
    const ofKey = split(this.keys[1], this.threshold, places);
    const ofSeed = split(this.seed, this.threshold, places);
    this.own = ofSeed.get(this.position);
    const entries = await Promise.all(
      this.others.map((other) => this.entry(other, joined(ofKey.get(other), ofSeed.get(other)))),
    );
    this.step = "mask";
    const ownTag = await tag(this.session, this.position, this.position, "seed", this.own);
    return message(await hash("seed", this.session, this.seed), ownTag, ...entries);
  }

  /**
   * The masked values.
   * @param {Float64Array} values whole numbers
   * @param {Uint8Array} delivered
   * @param {Uint8Array} context what the server ordered: masks only cancel between nodes with the same
   */
  async mask(values, delivered, context) {
    this.enter("mask");
    const reader = opened(delivered);
    const shared = bitmap(reader, this.nodes);
    this.checkSet(shared);
    if (values.length !== this.length) {
      throw new Refusal(`the server asks for ${this.length} values; this device has ${values.length}`);
    }
    const bound = Math.min(2 ** (this.width - 1), Number.MAX_SAFE_INTEGER);
    if (values.some((value) => !Number.isInteger(value) || value < -bound || value >= bound)) {
      throw new Refusal(`a value does not fit into the ${this.width} bits of this session`);
    }
    const others = this.others.filter((other) => shared[other]);
    const held = new Map();
    for (const other of others) held.set(other, await this.open(other, reader.take(ENTRY)));
    reader.end();
    const good = [...held.values()].filter((shares) => shares !== null).length;
    if (good + 1 < Math.max(this.threshold, this.smallest)) {
      throw new Refusal("too few neighbours have shared their secrets with this device");
    }
    this.held = held;
    this.shared = shared;
    const hashed = new Uint8Array(await subtle.digest("SHA-256", context));
    this.view = await hash("view", this.session, pack(shared), hashed);
    const ring = this.width === 32 ? Uint32Array : BigUint64Array;
    const masked = ring.from(values, this.width === 32 ? (value) => value : (value) => BigInt(value));
    const keys = [[await derive(this.seed, this.view, utf8("self")), true]];
    for (const other of others) {
      keys.push([await derive(this.pairs.get(other).masking, this.view, utf8("pair")), this.position < other]);
    }
    for (const [key, plus] of keys) {
      const noise = new ring(await stream(key, masked.byteLength));
      if (plus) for (let at = 0; at < masked.length; at++) masked[at] += noise[at];
      else for (let at = 0; at < masked.length; at++) masked[at] -= noise[at];
    }
    this.step = "unmask";
    return message(hashed, new Uint8Array(masked.buffer));
  }

  /** For each neighbour one share: of its self-mask if its input has arrived, of its mask key if it has not. */
  async unmask(arrived) {
    this.enter("unmask");
    const reader = opened(arrived);
    const members = bitmap(reader, this.nodes);
    reader.end();
    this.checkSet(members);
    const shares = [];
    for (let place = 0; place < this.nodes; place++) {
      if (place === this.position) shares.push(this.own);
      else if (this.shared[place]) {
        const begin = members[place] ? SHARE : 0;
        shares.push(this.held.get(place)?.slice(begin, begin + SHARE) ?? NONE);
      }
    }
    return this.lock(members, message(...shares));
  }

  /**
   * An answer that opens only together with those of other nodes, as many as the threshold, that were told the same set:
   * its lock is shared among them, sealed with keys that they give away with answers for this set only.
   */
  async lock(members, answer) {
    const told = await hash("agree", this.view, pack(members));
    const lock = random(32);
    const places = members.flatMap((member, at) => (member ? [at] : []));
    const parts = split(lock, this.threshold, places);
    const entries = [];
    for (const other of this.others.filter((each) => members[each])) {
      entries.push(await seal(await this.key(other, told, "lock", this.position, other), parts.get(other)));
      entries.push(await this.key(other, told, "lock", other, this.position));
    }
    return message(parts.get(this.position), ...entries, await seal(lock, answer));
  }

  enter(step) {
    if (this.step !== step) throw new Refusal(`this device is not asked to ${step} now; start a new session`);
    this.step = "over";
  }

  /** Adverts by position: of admitted nodes, all different, in the order of their public keys. */
  async checked(contents, root) {
    const found = await Promise.all(contents.map((content) => readAdvert(content, this.run, root)));
    const ordered = found.every((each, at) => at === 0 || compared(found[at - 1].member.public, each.member.public) < 0);
    const keys = new Set(found.flatMap(({ share, mask }) => [hex(share), hex(mask)]));
    if (!ordered || keys.size < 2 * found.length) {
      throw new Refusal("the server counts a node twice; this device does not take part");
    }
    return found;
  }

  /** That a set that the server names has this node, two thirds of all nodes, and only nodes that have shared. */
  checkSet(members) {
    if (this.shared && members.some((member, at) => member && !this.shared[at])) {
      throw new Refusal("the server names nodes that did not share their secrets");
    }
    if (!members[this.position]) throw new Refusal("the server leaves this device out, although it has taken part");
    const count = members.filter(Boolean).length;
    const least = Math.max(this.smallest, this.threshold);
    if (count < least) throw new Refusal(`${count} nodes are too few to hide in; this device asks for ${least}`);
  }

  /** Of what goes from the one to the other; it is used for one message. */
  key(other, salt, label, owner, holder) {
    return derive(this.pairs.get(other).sealing, salt, joined(utf8(label), big(owner, 4), big(holder, 4)));
  }

  async tags(owner, holder, shares) {
    const [key, seed] = [shares.subarray(0, SHARE), shares.subarray(SHARE)];
    return joined(await tag(this.session, owner, holder, "key", key), await tag(this.session, owner, holder, "seed", seed));
  }

  async entry(other, shares) {
    const key = await this.key(other, this.session, "share", this.position, other);
    return joined(await this.tags(this.position, other, shares), await seal(key, shares));
  }

  /** A neighbour's two shares; null where it has sent something else, for which this device does not answer. */
  async open(other, entry) {
    const shares = await unseal(await this.key(other, this.session, "share", other, this.position), entry.subarray(2 * TAG));
    if (shares === null || shares.length !== 2 * SHARE) return null;
    return same(await this.tags(other, this.position, shares), entry.subarray(0, 2 * TAG)) ? shares : null;
  }
}
