/** The page itself: what a person sees and does. Learning is in `worker.js`, keeping in `store.js`. */

import { fetchFile } from "./files.js";
import { hexDump } from "./hex.js";
import { exported, imported } from "./portable.js";
import { searcher } from "./search.js";
import { erase, load, newDevice, save } from "./store.js";

const SHOWN = 12; // search results, or titles to start with
const DUMPED = 1024; // bytes of a message that are shown; all of them can be saved
const ROWS = 100; // decoded rows that are shown

/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);

/**
 * An element with these properties and children; a child may be text.
 * @param {string} name
 * @param {Record<string, any>} properties
 * @param {...(Node | string)} children
 */
function element(name, properties = {}, ...children) {
  const { aria = {}, ...rest } = properties;
  const made = Object.assign(document.createElement(name), rest);
  for (const [key, value] of Object.entries(aria)) made.setAttribute(`aria-${key}`, value);
  made.append(...children);
  return made;
}

const ERASE = "erase";
const tabs = new BroadcastChannel(`federec ${new URL("./", import.meta.url).pathname}`); // the same page in other tabs
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const [page, catalogue, found] = await Promise.all([
  fetchFile("page.json").then(parsed),
  fetchFile("catalogue.json").then(parsed),
  load(),
]);
const device = found ?? newDevice();
/** @type {string[]} */
const labels = catalogue.items;
const titles = labels.map((label) => (Object.hasOwn(catalogue.titles, label) ? catalogue.titles[label] : label));
const codes = new Map(labels.map((label, code) => [label, code]));
const search = searcher(titles);
const number = new Intl.NumberFormat("en");
let offered = someTitles();
let request = 0;
/** @type {boolean} Whether the worker is at work, and whether there is more for it. */
let busy = false;
let waiting = false;

/** @param {Uint8Array} bytes */
function parsed(bytes) {
  return JSON.parse(new TextDecoder().decode(bytes));
}

/** Codes of a few titles, at random: which are popular is not known here. */
function someTitles() {
  const some = new Set();
  while (some.size < Math.min(SHOWN, labels.length)) some.add(Math.floor(Math.random() * labels.length));
  return [...some];
}

/** Codes of the picks that this catalogue has. */
function picks() {
  return device.picks.flatMap((label) => codes.get(label) ?? []);
}

/**
 * Pick an item, or take a pick back.
 * @param {number} code
 */
async function toggle(code) {
  const label = labels[code];
  const at = device.picks.indexOf(label);
  if (at < 0) device.picks.push(label);
  else device.picks.splice(at, 1);
  showPicks();
  showResults();
  ask();
  await keep();
}

async function keep() {
  try {
    await save(device);
  } catch {
    $("data-status").textContent = "This browser does not let the page keep your picks; they are gone when you close it.";
  }
}

function showPicks() {
  const chosen = picks();
  $("no-picks").hidden = chosen.length > 0;
  $("count").textContent = chosen.length ? `(${chosen.length})` : "";
  $("picks").replaceChildren(...chosen.map(pickChip));
}

/** @param {number} code */
function pickChip(code) {
  const label = `Remove ${titles[code]}`;
  const remove = () => {
    toggle(code);
    ($("picks").querySelector("button") ?? $("picks-title")).focus(); // the button that had the focus is gone
  };
  return element("li", {}, element("button", { type: "button", onclick: remove, aria: { label } }, `${titles[code]} ×`));
}

function showResults() {
  const query = $("query").value.trim();
  const fits = query ? search(query) : offered;
  const chosen = new Set(picks());
  const count = `${number.format(fits.length)} ${fits.length === 1 ? "title" : "titles"} found`;
  const said = fits.length > SHOWN ? `${count}, the first ${SHOWN} are:` : count;
  $("found").textContent = query ? (fits.length ? said : "No title has these words.") : "Some to start with:";
  $("others").hidden = query !== "" || labels.length <= SHOWN;
  const chips = fits.slice(0, SHOWN).map((code) => {
    const pressed = String(chosen.has(code));
    const button = element("button", { type: "button", onclick: () => toggle(code), aria: { pressed } }, titles[code]);
    button.dataset.code = String(code);
    return element("li", {}, button);
  });
  const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.code;
  $("results").replaceChildren(...chips);
  if (focused) $("results").querySelector(`[data-code="${focused}"]`)?.focus();
}

/** Have the worker learn from the picks as they are now; while it is busy the newest wish waits, and only that one. */
function ask() {
  const chosen = picks();
  $("explain").disabled = chosen.length === 0;
  if (chosen.length === 0) {
    request += 1; // an answer that is on its way comes too late
    $("recommendations").replaceChildren();
    $("status").textContent = "Pick something, and your recommendations appear here.";
    explaining(false);
    return;
  }
  if (busy) {
    waiting = true;
    return;
  }
  busy = true;
  request += 1;
  worker.postMessage({ request, picks: chosen, number: device.number, explain: !$("told").hidden });
}

worker.onmessage = ({ data }) => {
  busy = false;
  if (waiting) {
    waiting = false;
    ask();
    return;
  }
  if (data.request !== request) return;
  if (data.failed) {
    $("status").textContent = `Learning failed: ${data.failed}. Reload the page.`;
    return;
  }
  showRecommendations(data);
  if (data.steps) showSteps(data.steps);
};
worker.onerror = () => ($("status").textContent = "This browser cannot run the page's worker; a newer one can.");

/** @param {{ items: number[], milliseconds: number, rounds: number }} answer */
function showRecommendations({ items, milliseconds, rounds }) {
  const count = picks().length;
  const learned = rounds ? `${rounds} rounds of learning` : "One sum over your picks";
  const time = `${learned} from ${count} ${count === 1 ? "pick" : "picks"}, ${Math.max(1, Math.round(milliseconds))} ms on this device.`;
  $("status").textContent = items.length ? `${items.length} recommendations. ${time}` : "You know everything in this catalogue.";
  $("status").dataset.milliseconds = String(milliseconds);
  $("status").dataset.rounds = String(rounds);
  $("recommendations").replaceChildren(...items.map(recommendation));
}

/**
 * @param {number} code
 * @param {number} at
 */
function recommendation(code, at) {
  const place = element("span", { className: "place", aria: { hidden: "true" } }, `${at + 1}`);
  const title = element("span", { className: "title" }, titles[code]);
  const like = () => {
    toggle(code);
    $("for-you-title").focus(); // the button that had the focus goes away with its title
  };
  const button = element("button", { type: "button", onclick: like, aria: { label: `I like ${titles[code]}` } }, "I like it");
  const line = element("li", {}, place, title, button);
  line.dataset.code = String(code);
  return line;
}

/** @param {boolean} open */
function explaining(open) {
  $("told").hidden = !open;
  $("explain").setAttribute("aria-expanded", String(open));
  $("explain").textContent = open ? "Hide the message" : "Show the message";
}

/** @param {import("./told.js").Step[]} steps */
function showSteps(steps) {
  if (steps.length === 0) {
    const why = page.channel
      ? "Nothing. This method's devices send no update."
      : `Everything you pick. '${page.method}' is trained in one place, so its server needs whole histories; it is here for comparison. In this page your picks stay with you all the same. A run of 'fedease' needs only sums.`;
    $("told").replaceChildren(element("p", {}, why));
    return;
  }
  const shown = steps.map((step, at) => stepShown(step, at === steps.length - 1 && step.name.endsWith("leaves")));
  const missing = page.channel.map((stage) => stage.stage).filter((name) => !["clip", "secure-sum"].includes(name));
  const left = steps.at(-1)?.name.endsWith("leaves");
  if (page.channel.length === 0) shown.push(element("p", {}, "This run has no stages: the server would get these bytes as they are."));
  else if (!left && missing.length === 0) shown.push(element("p", {}, "Masks need an address that begins with https, or localhost."));
  if (missing.length) shown.push(element("p", {}, `This page does not show what the stage '${missing[0]}' does, nor those behind it.`));
  $("told").replaceChildren(...shown);
}

/**
 * @param {import("./told.js").Step} step
 * @param {boolean} leaves
 */
function stepShown(step, leaves) {
  const size = `${number.format(step.size)} bytes${step.size > DUMPED ? `, the first ${number.format(DUMPED)} of them` : ""}:`;
  const dump = element("pre", { tabIndex: 0, aria: { label: `Bytes: ${step.name}` } }, hexDump(step.bytes.subarray(0, DUMPED)));
  dump.setAttribute("role", "region");
  const box = element("div", { className: leaves ? "step leaves" : "step" });
  box.append(element("h3", {}, step.name), element("p", {}, step.text), element("p", { className: "quiet" }, size), dump);
  if (step.bytes.length === step.size) {
    const name = `${step.name.toLowerCase().replace(/\W+/g, "-")}.bin`;
    const onclick = () => download(new Blob([step.bytes], { type: "application/octet-stream" }), name);
    box.append(element("button", { type: "button", className: "plain", onclick, aria: { label: `Save all bytes: ${step.name}` } }, "Save all bytes"));
  }
  if (step.rows) box.append(rowsShown(step.rows));
  return box;
}

/** @param {NonNullable<import("./told.js").Step["rows"]>} rows */
function rowsShown(rows) {
  const pairs = page.kind === "neighbours";
  const heads = pairs ? ["Items", "Count"] : ["Item", "Length of its change", "Why it is there"];
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const lines = rows.slice(0, ROWS).map(({ items, size, picked }) => {
    const names = [...new Set(items)].map((code) => titles[code]).join(" and ");
    const cells = [element("th", { scope: "row" }, names), element("td", {}, size.toPrecision(3))];
    if (!pairs) cells.push(element("td", {}, picked ? "your pick" : "drawn at random"));
    return element("tr", { className: picked ? "picked" : "" }, ...cells);
  });
  const more = rows.length > ROWS ? `, the first ${ROWS}` : "";
  const caption = element("caption", {}, `What these bytes say: ${number.format(rows.length)} ${pairs ? "pairs" : "items"}${more}`);
  const table = element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...lines));
  const scroll = element("div", { className: "scroll", tabIndex: 0, aria: { label: "Decoded rows" } }, table);
  scroll.setAttribute("role", "region");
  return scroll;
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
function download(blob, name) {
  const href = URL.createObjectURL(blob);
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** @type {{ stop: () => Promise<void>, forget: () => Promise<void> } | null} What the page is to a federation, if it has a gateway. */
let federation = null;

$("query").addEventListener("input", showResults);
$("others").addEventListener("click", () => {
  offered = someTitles();
  showResults();
});
$("explain").addEventListener("click", () => {
  explaining($("told").hidden);
  if (!$("told").hidden) ask();
});
$("export").addEventListener("click", () => {
  const known = new Map(labels.map((label, code) => [label, titles[code]]));
  download(new Blob([exported(device, known)], { type: "application/json" }), "my-picks.json");
  $("data-status").textContent = "Your picks were saved as my-picks.json.";
});
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (!file) return;
  try {
    const { kept, unknown } = imported(await file.text(), (label) => codes.has(label));
    Object.assign(device, kept);
    await keep();
    const left = unknown ? ` ${unknown} are not in this catalogue and were left out.` : "";
    $("data-status").textContent = `Your picks are now the ${kept.picks.length} of the file.${left}`;
    showPicks();
    showResults();
    ask();
  } catch (error) {
    $("data-status").textContent = error instanceof Error ? error.message : String(error);
  }
  $("file").value = "";
});
$("erase").addEventListener("click", () => $("sure").showModal());
$("no").addEventListener("click", () => $("sure").close());
/** What this tab has in memory; another tab would write it again after everything was erased. */
function forgetPicks() {
  Object.assign(device, newDevice());
  $("query").value = "";
  showPicks();
  showResults();
  ask();
}

tabs.addEventListener("message", async ({ data }) => {
  if (data !== ERASE) return;
  forgetPicks();
  await federation?.stop();
  $("data-status").textContent = "Erased in another tab of this browser.";
});
$("yes").addEventListener("click", async () => {
  $("sure").close();
  tabs.postMessage(ERASE);
  forgetPicks();
  await federation?.forget();
  await erase();
  $("data-status").textContent = "Erased: your picks, what was learned from them, and the copy of this page for offline use.";
  $("offline").textContent = "";
});

async function keepOffline() {
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("sw.js");
    await navigator.serviceWorker.ready;
    $("offline").textContent = "This page now works offline.";
  } catch {
    $("offline").textContent = "This page needs a connection: the browser or its address does not allow an offline copy.";
  }
}

$("query").disabled = false;
$("about").textContent = `${page.name}: ${number.format(page.items)} items, a model of '${page.method}', made with federec ${page.federec}.`;
showPicks();
showResults();
ask();
document.documentElement.dataset.ready = "true";
if (page.gateway) {
  const { section } = await import("./federation/section.js"); // not before the page can be used
  federation = section(page.gateway, labels, device);
}
await keepOffline();
