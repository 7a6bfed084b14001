// What a page loads.

export { createClient, indexedDbKeys } from '../../src/client/client.ts'
