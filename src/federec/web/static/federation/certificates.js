/**
 * Certificates of a federation, as `federec/network/certificates.py` makes them: whether one is a device's that the root
 * has admitted. Only what the root writes is understood; anything else is refused.
 */
import { Reader, Refusal, big, compared, hex, joined, same, unbase64, unhex } from "./bytes.js";

const MOST_CERTIFICATE = 4096; // bytes
const SEQUENCE = 0x30;
const [INTEGER, BITS, OCTETS, OBJECT] = [0x02, 0x03, 0x04, 0x06];
const [UTC_TIME, LONG_TIME] = [0x17, 0x18];
const ECDSA_SHA256 = unhex("300a06082a8648ce3d040302");
const P256_KEY = unhex("301306072a8648ce3d020106082a8648ce3d030107");
const USAGE = "551d25"; // extended key usage
const CLIENT = "06082b06010505070302"; // of a node, not of a server
const USERS = "6981cc92b38aa1b4a12a"; // how many users the node hosts
const ECDSA = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };

function refuse(why = "malformed") {
  throw new Refusal(`is not a certificate of this federation (${why})`);
}

/** Takes DER apart: lengths must be definite and as short as they can be. */
class Der {
  constructor(content) {
    this.reader = new Reader(content);
  }

  get empty() {
    return this.reader.at === this.reader.content.length;
  }

  /** The next value: its tag, its content, and all its bytes. */
  next() {
    const begin = this.reader.at;
    const tag = this.reader.number(1);
    let length = this.reader.number(1);
    if (length > 0x7f) {
      const width = length - 0x80;
      if (width < 1 || width > 2) refuse();
      length = this.reader.number(width);
      if (length < (width === 1 ? 0x80 : 0x100)) refuse();
    }
    const content = this.reader.take(length);
    return { tag, content, whole: this.reader.content.subarray(begin, this.reader.at) };
  }

  /** The content of the next value, which must have this tag. */
  take(tag) {
    const found = this.next();
    if (found.tag !== tag) refuse();
    return found.content;
  }

  /** The only value, which must have this tag, taken apart. */
  static within(content, tag) {
    const outer = new Der(content);
    const found = outer.take(tag);
    if (!outer.empty) refuse();
    return new Der(found);
  }
}

/** @returns {Uint8Array} of a certificate in PEM */
export function fromPem(text) {
  const found = /^-----BEGIN CERTIFICATE-----\s([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----\s*$/.exec(text);
  if (found === null) refuse();
  try {
    return unbase64(found[1].replace(/\s/g, ""));
  } catch {
    return refuse();
  }
}

/** What a certificate says, whoever has signed it. */
function read(certificate) {
  if (certificate.length > MOST_CERTIFICATE) refuse("too long");
  const outer = Der.within(certificate, SEQUENCE);
  const body = outer.next();
  if (body.tag !== SEQUENCE || !same(outer.next().whole, ECDSA_SHA256)) refuse();
  const signature = bits(outer.take(BITS));
  if (!outer.empty) refuse();
  const inner = new Der(body.content);
  if (hex(inner.take(0xa0)) !== "020102") refuse(); // version 3
  inner.take(INTEGER); // the serial number
  if (!same(inner.next().whole, ECDSA_SHA256)) refuse();
  const issuer = inner.next().whole;
  const dates = new Der(inner.take(SEQUENCE));
  dates.next(); // devices' clocks may be behind: only the end counts
  const ends = moment(dates.next());
  const subject = inner.next().whole;
  const key = new Der(inner.take(SEQUENCE));
  if (!same(key.next().whole, P256_KEY)) refuse("its key is of another kind");
  const point = bits(key.take(BITS));
  if (point.length !== 65 || point[0] !== 4) refuse("its key is of another kind");
  const extensions = new Map();
  const listed = Der.within(inner.take(0xa3), SEQUENCE);
  while (!listed.empty) {
    const each = new Der(listed.take(SEQUENCE));
    const name = hex(each.take(OBJECT));
    let value = each.next();
    if (value.tag === 0x01) value = each.next(); // whether it is critical
    if (value.tag !== OCTETS || !each.empty || extensions.has(name)) refuse();
    extensions.set(name, value.content);
  }
  if (!inner.empty || !key.empty || !dates.empty) refuse();
  return { body: body.whole, signature, issuer, subject, ends, point, extensions };
}

function bits(content) {
  if (content[0] !== 0) refuse();
  return content.subarray(1);
}

function moment({ tag, content }) {
  const text = new TextDecoder("latin1").decode(content);
  const year4 = tag === LONG_TIME;
  const found = (year4 ? /^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/ : /^(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/).exec(text);
  if (found === null || (!year4 && tag !== UTC_TIME)) refuse();
  const [year, month, ...rest] = found.slice(1).map(Number);
  return Date.UTC(year4 ? year : year + (year < 50 ? 2000 : 1900), month - 1, ...rest);
}

/** @returns {Promise<CryptoKey>} */
async function imported(point) {
  try {
    return await crypto.subtle.importKey("raw", point, ECDSA, true, ["verify"]);
  } catch {
    return refuse("its key is of another kind");
  }
}

/** @returns {Uint8Array} a DER signature as WebCrypto takes it, or null where it is none */
function flat(signature) {
  try {
    const both = Der.within(signature, SEQUENCE);
    const numbers = [both.take(INTEGER), both.take(INTEGER)].map((number) => {
      const spare = number[0] === 0;
      if (!number.length || number.length > 33 || number[0] > 0x7f || (spare && !(number[1] > 0x7f))) refuse();
      const value = spare ? number.subarray(1) : number;
      if (value.length > 32) refuse();
      return joined(new Uint8Array(32 - value.length), value);
    });
    return both.empty ? joined(...numbers) : null;
  } catch {
    return null;
  }
}

/** @returns {Promise<boolean>} whether the holder of a key has signed a message, in DER */
export async function verified(key, message, signature) {
  const both = flat(signature);
  return both !== null && crypto.subtle.verify(ECDSA, key, both, message);
}

/** @param {CryptoKey} key @returns {Promise<Uint8Array>} a signature in DER */
export async function sign(key, message) {
  const both = new Uint8Array(await crypto.subtle.sign(ECDSA, key, message));
  const numbers = [both.subarray(0, 32), both.subarray(32)].map((number) => {
    const begin = number.findIndex((byte) => byte !== 0);
    const value = joined(number[begin] > 0x7f ? big(0, 1) : big(0, 0), number.subarray(begin));
    return joined(big(INTEGER, 1), big(value.length, 1), value);
  });
  const content = joined(...numbers);
  return joined(big(SEQUENCE, 1), big(content.length, 1), content);
}

/** The root of a federation: what signs the certificates of its members. */
export class Root {
  /** @param {Uint8Array} certificate DER, which must be one that the device trusts. */
  static async of(certificate) {
    const root = new Root();
    const found = read(certificate);
    root.subject = found.subject;
    root.key = await imported(found.point);
    return root;
  }

  /**
   * @param {Uint8Array} certificate DER
   * @returns {Promise<Member>} a Refusal where it is not a node's, or not signed by this root. Whether it has expired is for
   *   the caller to say.
   */
  async member(certificate) {
    const found = read(certificate);
    if (!same(found.issuer, this.subject)) refuse("signed by another");
    if (!(await verified(this.key, found.body, found.signature))) refuse("signed by another");
    const usage = found.extensions.get(USAGE);
    const users = found.extensions.get(USERS);
    if (usage === undefined || users === undefined) throw new Refusal("is not the certificate of a node");
    const listed = Der.within(usage, SEQUENCE);
    let client = false;
    while (!listed.empty) client = hex(listed.next().whole) === CLIENT || client;
    if (!client) throw new Refusal("is not the certificate of a node");
    const count = users.reduce((sum, byte) => sum * 256 + byte, 0);
    return new Member(found.point, count, found.ends, await imported(found.point));
  }
}

/** A node that the root has admitted. */
export class Member {
  constructor(point, users, ends, key) {
    /** Its public key: a compressed point. */
    this.public = joined(big(2 + (point[64] & 1), 1), point.subarray(1, 33));
    this.point = point;
    this.users = users;
    this.ends = ends;
    this.key = key;
  }

  verify(message, signature) {
    return verified(this.key, message, signature);
  }

  /** A Refusal where the certificate has expired. */
  checkDate() {
    if (this.ends < Date.now()) throw new Refusal("the certificate has expired; the device needs a new one");
  }

  /** Below 0 where this one comes first among all members. */
  compare(other) {
    return compared(this.public, other.public);
  }
}
