/**
 * What a tab has given: the answers that left it (`federec/network/ledger.py`). A device answers once. Whoever asks the same
 * again gets the same bytes; whoever asks for the same round with other parameters, or in another group, gets nothing: two
 * sums that differ by one device would tell what that device sent.
 */
import { Refusal } from "./bytes.js";

/**
 * @typedef {{run: string, round: number, digest: string, content: Uint8Array}} Answer
 * @typedef {{answers: Object<string, Answer>, spent: import("./policy.js").Spent}} Ledger
 */

/** @returns {Ledger} */
export const emptyLedger = () => ({ answers: {}, spent: { rounds: 0, runs: [] } });

/**
 * @returns {Uint8Array | null} the message with which an order was answered already; a Refusal where another answer would
 *   have to be given than before
 */
export function answered(ledger, kind, run, round, digest) {
  if (ledger.spent.runs.slice(0, -1).includes(run)) {
    throw new Refusal(`run '${run}' has ended here; a device does not go back to it`);
  }
  const old = ledger.answers[kind];
  if (old === undefined || old.run !== run || (old.round < round && kind !== "full")) return null; // full: once in a run
  if (old.round === round && old.digest === digest) return old.content;
  throw new Refusal(`round ${round} of run '${run}' was answered already (${kind}); a device answers once`);
}

/** @returns {Ledger} with what is about to leave */
export function kept(ledger, kind, answer) {
  const { rounds, runs } = ledger.spent;
  const known = runs.includes(answer.run);
  const spent = { rounds: rounds + (kind === "train" ? 1 : 0), runs: known ? runs : [...runs, answer.run] };
  return { answers: { ...(known ? ledger.answers : {}), [kind]: answer }, spent };
}
