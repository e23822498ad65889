/** Bytes for people to look at. */

/**
 * Bytes as people read them: the place of the first of a line, sixteen in hexadecimal, and letters.
 * @param {Uint8Array} bytes
 */
export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = Array.from(bytes.subarray(at, at + 16));
    const pairs = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${pairs.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}
