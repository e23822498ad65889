/** Where a tab keeps what it is to a federation: values by name, each replaced whole or not at all. */

const VALUES = "values";

/** A store that lasts as long as the program, for tests. */
export class MemoryStore {
  values = new Map();

  async get(name) {
    return structuredClone(this.values.get(name));
  }

  async put(name, value) {
    this.values.set(name, structuredClone(value));
  }

  /** Put a value in the place of another; false, and nothing, where there is none. */
  async replace(name, value) {
    const there = this.values.get(name) != null;
    if (there) await this.put(name, value);
    return there;
  }

  async clear() {
    this.values.clear();
  }
}

/** A store in the browser's IndexedDB. Keys are kept as the browser keeps them: a page cannot read their bytes. */
export class BrowserStore {
  /** @param {string} name of the database */
  constructor(name) {
    this.name = name;
  }

  async get(name) {
    return this.transact("readonly", (values) => values.get(name));
  }

  async put(name, value) {
    await this.transact("readwrite", (values) => values.put(value, name));
  }

  /** Put a value in the place of another; false, and nothing, where there is none. No other tab comes in between. */
  async replace(name, value) {
    let there = false;
    await this.transact("readwrite", (values) => {
      const request = values.get(name);
      request.onsuccess = () => {
        there = request.result != null;
        if (there) values.put(value, name);
      };
      return request;
    });
    return there;
  }

  /** Forget everything: the database itself goes. */
  clear() {
    return new Promise((resolve, reject) => {
      const request = indexedDB.deleteDatabase(this.name);
      request.onsuccess = () => resolve();
      request.onerror = () => reject(request.error);
    });
  }

  async transact(mode, act) {
    const database = await this.opened();
    try {
      return await new Promise((resolve, reject) => {
        const transaction = database.transaction(VALUES, mode, { durability: "strict" });
        const request = act(transaction.objectStore(VALUES));
        transaction.oncomplete = () => resolve(request.result); // then, and not before, it is on the disk
        transaction.onabort = () => reject(transaction.error);
      });
    } finally {
      database.close(); // an open connection would block erasing
    }
  }

  opened() {
    return new Promise((resolve, reject) => {
      const request = indexedDB.open(this.name, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(VALUES);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  }
}
