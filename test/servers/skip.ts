// Whether the tests of a store are skipped, and why. Invariant: a store is left out for a reason that can be printed, and a
// selection that names no store is an error, so that a slip of the pen does not skip everything and pass.
import { findStore, isServer, servers, type StoreName, storeNames } from './index.ts'
import type { Server } from './server.ts'

export interface NeedOptions {
  // The test crashes, pauses or configures the server, which one given by URL does not allow.
  ours?: boolean
}

export interface Skip {
  // The store, program or device that is missing.
  store: string
  reason: string
  cure: string | undefined
  // Why it may be missing even if ONCEONLY_REQUIRE=all.
  optional?: string
}

export function skipFor(store: StoreName, options: NeedOptions, env: NodeJS.ProcessEnv): Skip | undefined {
  if (!isSelected(store, env)) return { store, reason: 'not selected by STORES', cure: undefined }
  const found = findStore(store)
  const optional = isServer(store) ? (servers[store] as Pick<Server, 'optional'>).optional : undefined
  if (!found.found) return { store, reason: found.reason, cure: found.cure, ...(optional && { optional }) }
  if (found.ours || !options.ours) return undefined
  const reason = 'the test must crash, pause or configure its server, and this one is given by URL'
  return { store, reason, cure: 'unset the URL' }
}

function isSelected(store: StoreName, env: NodeJS.ProcessEnv): boolean {
  const selected = selectedStores(env)
  return selected === undefined || selected.includes(store)
}

// STORES=sqlite,postgres.
export function selectedStores(env: NodeJS.ProcessEnv): StoreName[] | undefined {
  const given = env['STORES']
  const required = env['ONCEONLY_REQUIRE']
  if (required && required !== 'all')
    throw new Error(`expected ONCEONLY_REQUIRE to be "all" or unset, got "${required}"`)
  if (!given) return undefined
  if (required) throw new Error('STORES leaves tests out and ONCEONLY_REQUIRE=all forbids it; unset one of them')
  return given.split(',').map((part) => {
    const name = storeNames.find((known) => known === part.trim())
    if (!name) throw new Error(`expected STORES to list some of ${storeNames.join(', ')}, got "${part.trim()}"`)
    return name
  })
}

export function textOf({ store, reason, cure, optional }: Skip): string {
  return `${store}: ${reason}${optional ? ` (${optional})` : ''}${cure ? `; cure: ${cure}` : ''}`
}
