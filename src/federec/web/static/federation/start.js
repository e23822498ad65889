/**
 * What every device's private parameters begin with, number for number as torch draws them (`federec/light/start.py`).
 * A tab computes it from the order, which all devices of a sum have in common, and takes it from nobody: whoever could
 * give each tab another start could have all but one send nothing, and the sum would be that one's update.
 */

const SIZE = 624; // words of the Mersenne Twister's state
const SHIFT = 397;
const FEW = 16; // normal numbers, below which torch draws them in 64 bits

/** `torch.Generator().manual_seed(seed)`, as far as uniform numbers need it. */
class Generator {
  /** @param {bigint} seed */
  constructor(seed) {
    this.state = new Uint32Array(SIZE);
    this.state[0] = Number(BigInt.asUintN(32, seed)); // torch takes no more of the seed
    for (let at = 1; at < SIZE; at++) {
      const before = this.state[at - 1];
      this.state[at] = Math.imul(1812433253, before ^ (before >>> 30)) + at;
    }
    this.at = SIZE;
  }

  /** The next numbers are drawn, and forgotten. */
  skip(count) {
    this.at += count;
    for (; this.at > SIZE; this.at -= SIZE) this.twist();
  }

  /** A number in [0, 1) with 24 random bits. */
  uniform() {
    if (this.at === SIZE) {
      this.twist();
      this.at = 0;
    }
    let word = this.state[this.at++];
    word ^= word >>> 11;
    word ^= (word << 7) & 0x9d2c5680;
    word ^= (word << 15) & 0xefc60000;
    word ^= word >>> 18;
    return (word & 0xff_ffff) / 2 ** 24;
  }

  /** The next state, all words of it. */
  twist() {
    const { state } = this;
    for (let at = 0; at < SIZE; at++) {
      const mixed = (state[at] & 0x80000000) | (state[(at + 1) % SIZE] & 0x7fffffff);
      state[at] = state[(at + SHIFT) % SIZE] ^ (mixed >>> 1) ^ (mixed & 1 ? 0x9908b0df : 0);
    }
  }
}

/** How many outputs of the generator torch takes for so many normal numbers: those of the shared table, drawn first. */
function normals(count) {
  if (count < FEW) return 4 * Math.ceil(count / 2); // two at a time, of 64 bits each
  return count % FEW ? count + FEW : count; // the last sixteen are drawn again
}

/**
 * @param {bigint} seed of the run
 * @param {number} items that the catalogue had when the run began
 * @param {number} dim
 * @param {boolean} bias
 * @returns {Float32Array} [dim], or [dim + 1] with b: uniform in +-1/sqrt(dim)
 */
export function startOf(seed, items, dim, bias) {
  const generator = new Generator(seed);
  generator.skip(normals(items * dim));
  const scale = Math.fround(1 / Math.sqrt(dim));
  return Float32Array.from({ length: dim + (bias ? 1 : 0) }, () => (generator.uniform() * 2 - 1) * scale);
}
