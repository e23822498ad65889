/** The page's own files. */

/**
 * Reads the page's own files over the network, or from the service worker.
 * @param {string} name
 */
export async function fetchFile(name) {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name} cannot be loaded (${answer.status})`);
  return new Uint8Array(await answer.arrayBuffer());
}
