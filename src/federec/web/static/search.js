/** Searching titles: all words of the query must be in a title, whatever their case and accents. */

/** @param {string} text */
export function folded(text) {
  return text.normalize("NFD").replace(/\p{Mark}/gu, "").toLowerCase();
}

/**
 * A function that gives the codes of titles that fit a query: those that begin with it first, then in catalogue order.
 * @param {string[]} titles
 * @returns {(query: string) => number[]}
 */
export function searcher(titles) {
  const known = titles.map(folded);
  return (query) => {
    const words = folded(query).split(/\s+/).filter(Boolean);
    if (words.length === 0) return [];
    const fits = known.flatMap((title, code) => (words.every((word) => title.includes(word)) ? [code] : []));
    const begins = (/** @type {number} */ code) => Number(!known[code].startsWith(words[0]));
    return fits.sort((one, two) => begins(one) - begins(two) || one - two);
  };
}
