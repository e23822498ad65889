/**
 * A console for tests: reads a line {body, given} and runs the body, a function body in JavaScript that sees the modules
 * by their names, `kept` (what earlier bodies left there) and the values given; writes what it returns, or what it
 * refuses, as a line. Bytes travel as {"bytes": base64}.
 */
import { readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const modules = {};
for (const folder of process.argv.slice(2)) {
  const names = readdirSync(folder).map((file) => file.replace(/\.js$/, ""));
  for (const name of names.filter((each) => process.env.MODULES.split(",").includes(each))) {
    modules[name] = await import(pathToFileURL(`${folder}/${name}.js`));
  }
}
const kept = {};

const isBytes = (value) => value !== null && typeof value === "object" && "bytes" in value;
const reviver = (key, value) => (isBytes(value) ? new Uint8Array(Buffer.from(value.bytes, "base64")) : value);
function replaced(value) {
  if (value instanceof Uint8Array) return { bytes: Buffer.from(value).toString("base64") };
  if (ArrayBuffer.isView(value)) return Array.from(value, Number);
  if (typeof value === "bigint") return value.toString();
  if (value instanceof Map) return replaced(Object.fromEntries(value));
  if (Array.isArray(value)) return value.map(replaced);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, replaced(inner)]));
}

const AsyncFunction = (async () => {}).constructor;
for await (const line of createInterface({ input: process.stdin })) {
  const { body, given } = JSON.parse(line, reviver);
  let answer;
  try {
    const names = { ...modules, ...given, kept };
    const found = await new AsyncFunction(...Object.keys(names), body)(...Object.values(names));
    answer = { found: replaced(found ?? null) };
  } catch (error) {
    answer = { refused: error.message, refusal: error instanceof modules.bytes.Refusal, stack: error.stack };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
