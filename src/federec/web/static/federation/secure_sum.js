/**
 * A device's part in a secure sum, byte for byte that of `Party` in `federec/network/secure_sum.py`, where the messages
 * are described.
 */
import { Reader, Refusal, big, block, compared, hex, joined, same, unhex, utf8 } from "./bytes.js";
import { sign } from "./certificates.js";

const VERSION = 1;
const PRIME = 2n ** 256n + 297n;
const SHARE = 33; // bytes
const TAG = 16;
const ENTRY = 2 * TAG + 2 * SHARE + 16;
const NONE = new Uint8Array(SHARE).fill(0xff);
const COMPLETE = 128; // up to so many nodes everybody is everybody's neighbour
const MOST_NODES = 2 ** 16; // a page cannot shuffle more in a moment
const DOUBT = 80; // a set that too few have signed is taken for agreed with probability 2^-80
const ZEROS = new Uint8Array(16);
const NONCE = new Uint8Array(12); // a key is used for one message only
const X25519_PRIVATE = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x6e, 4, 0x22, 4, 0x20]; // PKCS #8, before the key
const BASE = Uint8Array.of(9, ...new Uint8Array(31));
const ANY = new Uint8Array(32); // a private key, where it does not matter which
const { subtle } = crypto;

const random = (count) => crypto.getRandomValues(new Uint8Array(count));
const most = (nodes) => Math.ceil((2 * nodes) / 3);
/** How many neighbours a node has, and how many of these and itself bring back its secrets (the threshold). */
function rule(nodes) {
  if (nodes <= COMPLETE) return [nodes - 1, most(nodes)];
  const degree = 2 * Math.ceil(4 * Math.log2(nodes)) + 24;
  return [degree, Math.ceil(0.44 * degree)];
}

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

/** Root of a hash tree with `count` leaves, of which some are known; the reader has the hashes that are missing. */
async function fold(leaves, count, reader) {
  let known = new Map(await Promise.all([...leaves].map(async ([place, leaf]) => [place, await hash("leaf", leaf)])));
  for (; count > 1; count = Math.ceil(count / 2)) {
    const above = new Map();
    for (const place of [...known.keys()].sort((one, two) => one - two)) {
      const [other, pair] = [place ^ 1, place >> 1];
      if (other >= count) above.set(pair, known.get(place)); // the last of an odd number has no sibling
      else if (!above.has(pair)) {
        const both = [known.get(place), known.get(other) ?? reader.take(32)];
        above.set(pair, await hash("pair", ...(place < other ? both : both.reverse())));
      }
    }
    known = above;
  }
  return known.get(0);
}

/** The numbers below `count` in an order that follows from the seed. */
async function shuffled(seed, count) {
  const keys = new BigUint64Array(await stream(seed, 8 * count));
  const places = Array.from(keys, (_, at) => at);
  return places.sort((one, two) => (keys[one] === keys[two] ? one - two : keys[one] < keys[two] ? -1 : 1));
}

/** The positions of a node's neighbours, which follow from the session: all others, or a random subset of them. */
async function neighbours(session, nodes, position) {
  if (nodes <= COMPLETE) return Array.from({ length: nodes }, (_, at) => at).filter((at) => at !== position);
  const around = await shuffled(await hash("order", session), nodes); // a table
  const distances = await shuffled(await hash("distances", session), (nodes - 1) >> 1);
  const near = distances.slice(0, rule(nodes)[0] / 2).map((distance) => distance + 1);
  const seat = around.indexOf(position);
  const found = near.flatMap((distance) => [seat + distance, seat - distance]);
  return found.map((at) => around[(at + nodes) % nodes]).sort((one, two) => one - two);
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
  await Promise.all([share, mask].map((point) => exchange(ANY, point))); // refuses points of low order
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
    return Object.assign(party, { identity, run, keys, advert, step: "share" });
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
    if (this.nodes > MOST_NODES) throw new Refusal(`a page takes part in sums of up to ${MOST_NODES} nodes, not ${this.nodes}`);
    if (this.nodes < 2 || this.position >= this.nodes || ![32, 64].includes(this.width)) {
      throw new Refusal("the server's list of nodes is malformed");
    }
    const [degree, threshold] = rule(this.nodes);
    if (degree + 1 < smallest) {
      throw new Refusal(`${degree + 1} nodes are too few to hide in; this device asks for ${smallest}`);
    }
    const [nodes, , width, length] = sizes;
    this.session = await hash("session", head, joined(big(nodes, 4), big(width, 1), big(length, 4)), tree);
    this.others = await neighbours(this.session, this.nodes, this.position);
    const contents = new Map();
    for (const other of this.others) contents.set(other, reader.block(2));
    contents.set(this.position, this.advert);
    await this.checkTree(contents, tree, reader);
    reader.end();
    const adverts = await this.checked(contents, root);
    Object.assign(this, { root, tree, smallest, threshold });
    this.seed = random(32);
    this.pairs = new Map();
    for (const other of this.others) {
      const [sealing, masking] = await Promise.all([
        exchange(this.keys[0], adverts.get(other).share),
        exchange(this.keys[1], adverts.get(other).mask),
      ]);
      this.pairs.set(other, { sealing, masking });
    }
    const places = [...contents.keys()];
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
    this.step = this.sparse ? "agree" : "unmask";
    return message(hashed, new Uint8Array(masked.buffer));
  }

  /** Signs which nodes' inputs have arrived; it signs one such set only. */
  async agree(arrived) {
    this.enter("agree");
    const reader = opened(arrived);
    const members = bitmap(reader, this.nodes);
    reader.end();
    this.checkSet(members);
    this.agreed = await hash("agree", this.view, pack(members));
    this.step = "unmask";
    return message(block(1, await sign(this.identity.key, this.agreed)));
  }

  /** For each neighbour one share: of its self-mask if its input has arrived, of its mask key if it has not. */
  async unmask(arrived) {
    this.enter("unmask");
    const reader = opened(arrived);
    const members = bitmap(reader, this.nodes);
    this.checkSet(members);
    if (this.sparse) await this.checkAgreed(members, reader);
    reader.end();
    const shares = new Map([[this.position, this.own]]);
    for (const other of this.others.filter((each) => this.shared[each])) {
      const begin = members[other] ? SHARE : 0;
      shares.set(other, this.held.get(other)?.slice(begin, begin + SHARE) ?? NONE);
    }
    const places = [...shares.keys()].sort((one, two) => one - two);
    const answer = message(...places.map((place) => shares.get(place)));
    return this.sparse ? answer : this.lock(members, answer);
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

  get sparse() {
    return this.nodes > COMPLETE;
  }

  /** Adverts by position: of admitted nodes, all different, in the order of their public keys. */
  async checked(contents, root) {
    const places = [...contents.keys()].sort((one, two) => one - two);
    const found = await Promise.all(places.map((place) => readAdvert(contents.get(place), this.run, root)));
    const ordered = found.every((each, at) => at === 0 || compared(found[at - 1].member.public, each.member.public) < 0);
    const keys = new Set(found.flatMap(({ share, mask }) => [hex(share), hex(mask)]));
    if (!ordered || keys.size < 2 * found.length) {
      throw new Refusal("the server counts a node twice; this device does not take part");
    }
    return new Map(places.map((place, at) => [place, found[at]]));
  }

  async checkTree(leaves, tree, reader) {
    if (!same(await fold(leaves, this.nodes, reader), tree)) {
      throw new Refusal("the server's hashes do not fit what it has sent");
    }
  }

  /**
   * That a set that the server names has this node, enough of its neighbours, two thirds of all nodes, and only nodes that
   * have shared their secrets.
   */
  checkSet(members) {
    if (this.shared && members.some((member, at) => member && !this.shared[at])) {
      throw new Refusal("the server names nodes that did not share their secrets");
    }
    if (!members[this.position]) throw new Refusal("the server leaves this device out, although it has taken part");
    const near = 1 + this.others.filter((other) => members[other]).length;
    const least = Math.max(this.smallest, this.threshold);
    if (near < least || members.filter(Boolean).length < most(this.nodes)) {
      throw new Refusal(`${near} nodes are too few to hide in; this device asks for ${least}`);
    }
  }

  /** That two thirds of all nodes have signed this set, of which a sample is looked at. */
  async checkAgreed(members, reader) {
    const signers = bitmap(reader, this.nodes);
    const tree = reader.take(32);
    if (!same(await hash("agree", this.view, pack(members)), this.agreed)) {
      throw new Refusal("this device has agreed to another set of nodes");
    }
    const places = signers.flatMap((signer, at) => (signer ? [at] : []));
    if (places.length < most(this.nodes)) throw new Refusal("too few nodes have agreed to the set of nodes");
    const chosen = await shuffled(await hash("sample", this.session, pack(signers), tree), places.length);
    const size = Math.min(places.length, Math.ceil(DOUBT / Math.log2(places.length / (0.55 * this.nodes))));
    const sample = chosen.slice(0, size).map((at) => places[at]).sort((one, two) => one - two);
    const [adverts, signatures] = [new Map(), new Map()];
    for (const place of sample) {
      adverts.set(place, reader.block(2));
      signatures.set(place, reader.block(1));
    }
    await this.checkTree(adverts, this.tree, reader);
    await this.checkTree(signatures, tree, reader);
    for (const [place, { member }] of await this.checked(adverts, this.root)) {
      if (!(await member.verify(this.agreed, signatures.get(place)))) {
        throw new Refusal("a node has not agreed to the set of nodes, although the server says so");
      }
    }
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
