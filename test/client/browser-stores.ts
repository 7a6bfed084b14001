// What the page of the browser's tests loads: the two key stores of a browser, to compare them.

export { createClient, indexedDbKeys, webStorageKeys } from '../../src/client/client.ts'
