/** The service worker: keeps the page's own files, so that it works offline after the first load. Nothing else is kept. */

const { version, files } = /* FILES */;
const PREFIX = `federec ${self.registration.scope} `;
const CACHE = PREFIX + version;

self.addEventListener("install", (event) => {
  // `reload` asks the host, not the browser's own cache: all files must be of one version.
  const requests = files.map((file) => new Request(file, { cache: "reload" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(requests)));
});

self.addEventListener("activate", (event) => {
  const clean = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
    await Promise.all(old.map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(clean());
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== self.location.origin) return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    return (await cache.match(event.request, { ignoreSearch: true })) ?? fetch(event.request);
  };
  event.respondWith(answer());
});
