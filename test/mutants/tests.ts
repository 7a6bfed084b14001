// The tests that judge mutants: those that need no server and no process, on memory, SQLite and a manual clock, and a few simulated
// schedules. The files of one store on a server are judged on that server.

/** Brings a choice to vitest.config.ts, as JSON. */
export const testsVariable = 'ONCEONLY_MUTANT_TESTS'

/** Brings the files that are mutated to load.ts, as JSON. */
export const mutatedVariable = 'ONCEONLY_MUTATED_FILES'

export const usualTests: string[] = [
  'src/core/**/*.test.ts',
  'src/http/**/*.test.ts',
  'src/stores/memory/*.test.ts',
  'test/http/adapters.test.ts',
  'test/codecs.test.ts',
  'test/operations/transactions.test.ts',
  'test/mutants/schedules.ts',
]

/**
 * What of HTTP knows no framework is judged by its own tests, without one and without a server: hundreds of mutants in minutes. Those that
 * start servers (sessions.test.ts, test/http, the conformance cases) could only kill more.
 */
const exchangeTests: string[] = ['src/http/exchange{.test.ts,/!(sessions).test.ts}', 'test/http/refusals.test.ts']

/** What all adapters of one kind share is judged by its own tests, on Node's own servers or the web's own requests. */
const onNodeTests: string[] = ['src/http/on-node{.test.ts,/*.test.ts}']
const onWebTests: string[] = ['src/http/on-web.test.ts']

/** The adapters are judged on their frameworks. */
const adapterTests: string[] = ['test/http/{adapters,frameworks}.test.ts', ...onWebTests]

const redisWithoutServer: string[] = [
  'src/stores/redis/data-loss/memory.test.ts',
  'test/simulation/world/redis.test.ts',
  'test/mutants/schedules.ts',
]

/** Several stores at once are judged by their own tests that need no server. */
const storeTests: string[] = [
  'src/stores/*.test.ts',
  'src/stores/memory/*.test.ts',
  'src/stores/sqlite/{contract,database,errors,faults,fitness,sweep,time,transactions}.test.ts',
  'src/stores/{mongodb,mysql,postgres,redis-postgres,redis}/{breaker,errors,literals,names,sealed}.test.ts',
  ...redisWithoutServer,
]

const onServers = new Set(['dynamodb', 'mongodb', 'mysql', 'postgres', 'redis', 'redis-postgres'])
/** Of a store on a server: those that need no other program beside it, and no other process. */
const serverTests = '!(bouncer|prisma|processes).test.ts'

/** The one store that all files belong to, if it is on a server. */
function serverStoreOf(files: readonly string[]): string | undefined {
  const [store, ...others] = new Set(files.map((file) => /^src\/stores\/([\w-]+)/.exec(file)?.[1]))
  return store !== undefined && others.length === 0 && onServers.has(store) ? store : undefined
}

export function testsFor(files: readonly string[]): string[] {
  const allIn = (...folders: string[]): boolean =>
    files.every((file) => folders.some((folder) => file.startsWith(folder)))
  if (allIn('src/http/exchange')) return exchangeTests
  if (allIn('src/http/on-node', 'src/http/node.ts')) return onNodeTests
  if (allIn('src/http/on-web.ts', 'src/http/fetch.ts')) return onWebTests
  if (allIn('src/http/')) return adapterTests
  const store = serverStoreOf(files)
  if (store) return [`src/stores/${store}/**/${serverTests}`, ...(store === 'redis' ? redisWithoutServer : [])]
  return allIn('src/stores/') ? storeTests : usualTests
}
