// onceonly gateway: starts the gateway and its admin server from the command line and a file, and ends it in order. The first
// SIGTERM or SIGINT drains, the second ends it at once. Its log is JSON lines on standard output.

import { readFileSync } from 'node:fs'
import { systemClock } from '../core/clock.ts'
import { invalidArgument } from '../core/errors.ts'
import { operationsSection, startAdmin } from '../gateway/admin.ts'
import { commandOptions, readConfig } from './gateway/config.ts'
import type { GatewayConfig } from './gateway/config.ts'
import { helpOf, members } from './gateway/members.ts'
import { gatewaySessions, startGateway } from '../gateway/proxy.ts'
import type { Gateway } from '../gateway/proxy.ts'
import { createMetrics } from '../gateway/metrics.ts'
import { watchReadiness } from '../gateway/readiness.ts'
import { createLog } from '../gateway/request-log.ts'
import type { Log } from '../gateway/request-log.ts'
import { parseCommand, text } from './arguments.ts'
import { openStore } from './open-store.ts'
import type { OpenedStore } from './open-store.ts'
import { storeWords, withMigrateCommand } from './with-store.ts'

export { commandOptions } from './gateway/config.ts'
export { kebab, members } from './gateway/members.ts'
export type { Member } from './gateway/members.ts'

const help = `onceonly gateway: a reverse proxy that makes any HTTP service idempotent

Usage: onceonly gateway --upstream http://127.0.0.1:3000 --tenant shared
       onceonly gateway --upstream http://127.0.0.1:3000 --tenant-header X-Account --store postgres://… --admin 127.0.0.1:8081
       onceonly gateway --config gateway.json

${helpOf(members)}  --admin-token-file FILE            Allows changes on the dashboard (or ONCEONLY_ADMIN_TOKEN).

  --config FILE                      The same in JSON, with rules per route: see docs/gateway.md.
`

export async function gateway(args: readonly string[]): Promise<number> {
  const options = { ...commandOptions, 'admin-token-file': text }
  const parsed = parseCommand({ command: 'gateway', help, options, args })
  if (!parsed) return 0
  const flags = parsed.values as Readonly<Record<string, unknown>>
  const config = readConfig(flags, process.env['ONCEONLY_STORE'] || undefined)
  const token = adminToken(flags['admin-token-file'] as string | undefined)
  keepServingUnheard()
  const log = createLog({
    level: config.logLevel,
    clock: systemClock,
    write: (line) => void process.stdout.write(`${line}\n`),
  })
  const opened = await openStore(config.store, config.cache === undefined ? {} : { cache: config.cache })
  let forSessions: OpenedStore | undefined
  try {
    forSessions = config.sessions && (await openForSessions(config, opened))
    const sessions = forSessions && sessionsOn(config, forSessions, log)
    if (config.migrate) await opened.store.migrate?.()
    if (config.migrate) await sessions?.migrate()
    return await serve({ ...config, gateway: { ...config.gateway, ...(sessions && { sessions }) } }, opened, log, token)
  } catch (error) {
    const named = storeWords(config.store, opened.describe)
    throw withMigrateCommand(error, named, ', or start the gateway with --migrate')
  } finally {
    if (forSessions !== opened) await forSessions?.close()
    await opened.close()
  }
}

/**
 * A request of a session holds a connection of a SQL database until the service has answered. From the pool of keys they would take all of
 * it. The default of PostgreSQL is 100 for all its clients.
 */
const sessionConnectionsMax = 50

async function openForSessions({ store, cache }: GatewayConfig, opened: OpenedStore): Promise<OpenedStore> {
  const { kind } = opened.ground
  if (kind !== 'postgres' && kind !== 'mysql') return opened
  return openStore(store, { connectionsMax: sessionConnectionsMax, ...(cache !== undefined && { cache }) })
}

function sessionsOn(
  { gateway: options, sessions }: GatewayConfig,
  { store, ground }: OpenedStore,
  log: Log,
): ReturnType<typeof gatewaySessions> {
  const { service, waitMs, leaseMs: attemptLeaseMs, attemptMs } = options
  if (ground.kind === 'sqlite') {
    const why =
      'SQLite has one writer, and a request of a session holds it until the service has answered: requests of sessions take turns, and ' +
      'keys wait for them. Use postgres://…, mysql://… or redis://… for more than a trial.'
    log.say('warn', 'sessions-take-turns', { why })
  }
  return gatewaySessions({
    store,
    ...sessions,
    ...(service !== undefined && { service }),
    ...(waitMs !== undefined && { waitMs }),
    ...(attemptLeaseMs !== undefined && { attemptLeaseMs }),
    ...(attemptMs !== undefined && { attemptMs }),
  })
}

async function serve(config: GatewayConfig, opened: OpenedStore, log: Log, token: string | undefined): Promise<number> {
  const { store, describe } = opened
  const metrics = config.admin && createMetrics()
  const started = await startGateway({
    ...config.gateway,
    store,
    log(record) {
      log.request(record)
      metrics?.request(record)
    },
  })
  metrics?.gauge('onceonly_gateway_in_flight', 'Requests under way.', () => started.inFlight)
  const stopEvents = log.followEvents()
  let closeAdmin = async (): Promise<void> => {}
  try {
    // A store that is not there, or has no schema yet, is reported now and not to every client.
    if ('show' in store) await started.once.get('start')
    let admin: string | undefined
    if (config.admin && metrics) {
      const readiness = watchReadiness({
        once: started.once,
        clock: systemClock,
        onChange: (why) => sayReadiness(log, config, why),
      })
      // With onStoreDown: 'run' a keyed request is served without the store, unprotected.
      const failsOpen = config.gateway.onStoreDown === 'run'
      const storeMissing = (): string | undefined => (failsOpen ? undefined : readiness.notReady())
      const notReady = (): string | undefined => (started.ready ? storeMissing() : 'it drains')
      const degraded = (): string | undefined => (failsOpen ? readiness.notReady() : undefined)
      metrics.gauge('onceonly_gateway_ready', 'Whether a keyed request could be served.', () =>
        notReady() === undefined ? 1 : 0,
      )
      metrics.gauge('onceonly_gateway_unprotected', 'Whether keyed requests run without the store.', () =>
        degraded() === undefined ? 0 : 1,
      )
      const running = await startAdmin({
        once: started.once,
        store,
        metrics,
        listen: config.admin,
        notReady,
        degraded,
        sections: [operationsSection(started.once, store)],
        ...(token !== undefined && { token }),
      })
      admin = running.url
      closeAdmin = async () => {
        await readiness.close()
        await running.close()
      }
    }
    // Before it says that it listens: who hears that may stop it at once.
    const signalled = firstSignal()
    log.say('info', 'listening', { url: started.url, upstream: config.gateway.upstream, store: describe, admin })
    return await drainWhen(signalled, config, started, log)
  } finally {
    await started.close()
    await closeAdmin()
    metrics?.close()
    stopEvents()
  }
}

function sayReadiness(log: Log, { gateway: { onStoreDown } }: GatewayConfig, why: string | undefined): void {
  if (why === undefined) log.say('info', 'ready', {})
  else log.say('error', onStoreDown === 'run' ? 'unprotected' : 'not-ready', { why })
}

/** How long the work after the drain may take (writing outcomes to a slow store). */
const afterDrainMs = 5_000

function firstSignal(): Promise<NodeJS.Signals> {
  const { promise, resolve } = Promise.withResolvers<NodeJS.Signals>()
  let asked = 0
  const onSignal = (signal: NodeJS.Signals): void => {
    // A second signal ends the gateway at once.
    if (++asked > 1) process.exit(1)
    resolve(signal)
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, onSignal)
  return promise
}

async function drainWhen(
  signalled: Promise<NodeJS.Signals>,
  config: GatewayConfig,
  started: Gateway,
  log: Log,
): Promise<number> {
  const signal = await signalled
  log.say('info', 'draining', { signal, inFlight: started.inFlight })
  systemClock.schedule(() => process.exit(1), (config.gateway.drainMs ?? 25_000) + afterDrainMs, 'background')
  await started.drain()
  const left = started.inFlight
  log.say(left === 0 ? 'info' : 'error', 'drained', { left })
  return left === 0 ? 0 : 1
}

/** Other commands end when their output has no reader. A gateway has clients, and the reader of its log is not one of them. */
function keepServingUnheard(): void {
  process.stdout.removeAllListeners('error')
  process.stdout.once('error', ({ message }) => {
    console.error(
      `onceonly gateway: standard output cannot be written any more (${message}). Requests are still served.`,
    )
    process.stdout.on('error', () => {})
  })
}

/** Not as an option: every user of the machine can read the arguments of a process. */
function adminToken(file: string | undefined): string | undefined {
  // An empty variable counts as not set. A file was meant to hold a token, so an empty file is refused.
  if (file === undefined) return process.env['ONCEONLY_ADMIN_TOKEN'] || undefined
  try {
    return readFileSync(file, 'utf8').trim()
  } catch (error) {
    throw invalidArgument(
      `onceonly gateway: the token cannot be read: ${error instanceof Error ? error.message : error}`,
    )
  }
}
