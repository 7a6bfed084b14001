// What the page of the browser's tests loads: the two key stores of a browser, to compare them, and keys from business parts.

export { createClient, indexedDbKeys, keyOf, webStorageKeys } from '../../src/client/client.ts'
