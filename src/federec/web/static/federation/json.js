/**
 * JSON as Python reads and writes it. Numbers keep the text that they were written with: a digest is taken over the
 * text that Python would write again, in which 1.0 and 1e-05 are not what JavaScript makes of them.
 */
import { Refusal } from "./bytes.js";

const DEPTH = 32; // of lists and objects in each other
const NUMBER = /-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORDS = [["true", true], ["false", false], ["null", null]];

/** A number with the text that stands for it. */
export class Numeral {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.value = Number(text);
    this.whole = /^-?\d+$/.test(text);
    const long = this.whole && text.length > 19;
    if (long || !Number.isFinite(this.value)) throw new Refusal("a message with a number that is too large");
  }
}

/** @param {string} text @returns what it says: lists, Maps, text, Numerals, true, false, null */
export function parse(text) {
  let at = 0;

  function match(pattern) {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found === null) return null;
    at += found[0].length;
    return found[0];
  }

  function next(letter) {
    match(SPACE);
    if (text[at] !== letter) return false;
    at += 1;
    return true;
  }

  function fail() {
    throw new Refusal("a message whose metadata cannot be read");
  }

  function several(end, each) {
    if (next(end)) return;
    do each();
    while (next(","));
    if (!next(end)) fail();
  }

  function value(depth) {
    if (depth > DEPTH) fail();
    if (next("[")) {
      const found = [];
      several("]", () => found.push(value(depth + 1)));
      return found;
    }
    if (next("{")) {
      const found = new Map();
      several("}", () => {
        match(SPACE);
        const key = match(TEXT);
        if (key === null || !next(":")) fail();
        found.set(JSON.parse(key), value(depth + 1));
      });
      return found;
    }
    const quoted = match(TEXT);
    if (quoted !== null) return JSON.parse(quoted);
    for (const [word, meaning] of WORDS) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return meaning;
      }
    }
    const number = match(NUMBER);
    return number === null ? fail() : new Numeral(number);
  }

  const found = value(0);
  match(SPACE);
  if (at !== text.length) fail();
  return found;
}

/** @returns {string} what Python's `json.dumps` writes; keys in order where that is asked for. Numbers must be whole. */
export function dumps(value, sorted = false) {
  if (value instanceof Numeral) return value.text;
  if (typeof value === "string") return quoted(value);
  if (Array.isArray(value)) return `[${value.map((each) => dumps(each, sorted)).join(", ")}]`;
  if (value instanceof Map) {
    const keys = [...value.keys()];
    if (sorted) keys.sort();
    return `{${keys.map((key) => `${quoted(key)}: ${dumps(value.get(key), sorted)}`).join(", ")}}`;
  }
  return String(value);
}

/** Text in ASCII, as Python writes it. */
function quoted(text) {
  const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, escaped);
}

/** @returns a value without Numerals and Maps, to read from */
export function plain(value) {
  if (value instanceof Numeral) return value.value;
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Map) return Object.fromEntries([...value].map(([key, each]) => [key, plain(each)]));
  return value;
}
