// What a page loads that numbers its requests.

export { createSessionClient, indexedDbKeys } from '../../src/client/client.ts'
