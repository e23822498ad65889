/** What the page keeps on this device: the picks, and the device's number in the random streams. In IndexedDB. */

const NAME = `federec ${new URL("./", import.meta.url).pathname}`; // one host may have several pages
const TABLE = "device";
const KEY = "state";

/**
 * @typedef {object} Kept
 * @property {string} number A random whole number below 2^62, in decimal.
 * @property {string[]} picks Labels of items, oldest first.
 */

/** @returns {Kept} A new device. */
export function newDevice() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return { number: ((BigInt(high >>> 2) << 32n) | BigInt(low)).toString(), picks: [] };
}

/**
 * What a request to the database gives.
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function outcome(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function withTable(mode, use) {
  const opening = indexedDB.open(NAME, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE);
  const database = await outcome(opening);
  try {
    return await outcome(use(database.transaction(TABLE, mode).objectStore(TABLE)));
  } finally {
    database.close(); // an open connection would block `erase`, also in another tab
  }
}

/** @returns {Promise<Kept | undefined>} What was kept; undefined on a new device. */
export function load() {
  return withTable("readonly", (table) => table.get(KEY));
}

/** @param {Kept} kept */
export async function save(kept) {
  await withTable("readwrite", (table) => table.put({ number: kept.number, picks: [...kept.picks] }, KEY));
}

/** Delete everything that the page keeps: the database, the copies of its files, and the service worker. */
export async function erase() {
  await outcome(indexedDB.deleteDatabase(NAME));
  if ("caches" in globalThis) {
    const scope = new URL("./", import.meta.url).href;
    const names = await caches.keys();
    await Promise.all(names.filter((name) => name.startsWith(`federec ${scope} `)).map((name) => caches.delete(name)));
  }
  const registration = await navigator.serviceWorker?.getRegistration(new URL("./", import.meta.url));
  await registration?.unregister();
}
