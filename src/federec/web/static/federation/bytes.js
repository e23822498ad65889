/** Bytes: joining, comparing, hexadecimal, and a reader that takes a message apart. */

/** What a person or a server can mend: the message is one line. */
export class Refusal extends Error {}

const encoder = new TextEncoder();

/** @param {string} text @returns {Uint8Array} */
export const utf8 = (text) => encoder.encode(text);

/** @param {...Uint8Array} parts @returns {Uint8Array} one after the other */
export function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @returns {boolean} whether both have the same bytes */
export function same(one, two) {
  return one.length === two.length && one.every((byte, at) => byte === two[at]);
}

/** @returns {number} below 0 where `one` comes first, as Python orders bytes */
export function compared(one, two) {
  const most = Math.min(one.length, two.length);
  for (let at = 0; at < most; at++) if (one[at] !== two[at]) return one[at] - two[at];
  return one.length - two.length;
}

/** @returns {string} */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {string} text @returns {Uint8Array} */
export const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

/** @returns {Uint8Array} of a text in base64, also with - and _ */
export function unbase64(text) {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
}

/** @returns {string} with - and _, without = */
export function base64url(bytes) {
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @returns {Uint8Array} a number in so many bytes, the highest first */
export function big(number, bytes) {
  const found = new Uint8Array(bytes);
  for (let at = bytes - 1, rest = number; at >= 0; at--, rest = Math.floor(rest / 256)) found[at] = rest % 256;
  return found;
}

/** @returns {Uint8Array} bytes after their length, which is written in `width` bytes */
export const block = (width, content) => joined(big(content.length, width), content);

/** Takes a message apart; a Refusal where it is too short or too long. */
export class Reader {
  constructor(content) {
    this.content = content;
    this.at = 0;
  }

  take(count) {
    if (this.at + count > this.content.length) throw new Refusal("the message is cut short");
    this.at += count;
    return this.content.subarray(this.at - count, this.at);
  }

  number(bytes) {
    return this.take(bytes).reduce((sum, byte) => sum * 256 + byte, 0);
  }

  /** Bytes after their length, which is written in `width` bytes. */
  block(width) {
    return this.take(this.number(width));
  }

  end() {
    if (this.at !== this.content.length) throw new Refusal("the message is too long");
  }
}
