/** Learns beside the page, so that typing and scrolling never wait for it. */

import { fetchFile } from "./files.js";
import { readModel } from "./model.js";
import { best, learn } from "./recommend.js";
import { messageSteps } from "./told.js";

const COUNT = 10;
const loaded = readModel(fetchFile);

self.onmessage = async ({ data: { request, picks, number, explain } }) => {
  try {
    const model = await loaded;
    const begun = performance.now();
    const learned = learn(model, picks, BigInt(number));
    const milliseconds = performance.now() - begun;
    const answer = { request, items: best(learned.scores, picks, COUNT), milliseconds, rounds: learned.rounds };
    const steps = explain ? await messageSteps(model, picks, learned) : undefined;
    self.postMessage({ ...answer, steps });
  } catch (error) {
    self.postMessage({ request, failed: String(error instanceof Error ? error.message : error) });
  }
};
