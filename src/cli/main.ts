#!/usr/bin/env node
// The program `onceonly` finds the command, and ends with the exit code that the command returns: 0 done, 1 failed or a promise
// is violated, 2 wrong arguments, 3 not found. Commands are loaded on demand, so that help is quick and a command loads only
// what it needs itself.
//
// Decisions, and what they cost:
// - Commands that look change nothing: no file, no table, no journal mode. Costs: after an upgrade `migrate` comes first.
// - Commands work with a server that can lose data. The gateway refuses it unless the URL says otherwise. An operator who looks
//   into a store in trouble must be let in.
// - Contents are hidden without `--reveal`, failure messages too, and control characters are spelt out: a key must not
//   steer a terminal.
// - How long an effect took is `leaseUntil − fence`: a fence is the store's clock at the claim.

import { createRequire } from 'node:module'
import { OnceError } from '../core/errors.ts'
import { checkNodeVersion } from '../core/options.ts'
import { chosen } from './arguments.ts'

type Run = (args: readonly string[]) => Promise<number>

interface Command {
  readonly summary: string
  load(): Promise<Run>
}

const commands: Readonly<Record<string, Command>> = {
  gateway: {
    summary: 'a reverse proxy that makes any HTTP service idempotent',
    load: async () => (await import('./gateway.ts')).gateway,
  },
  demo: {
    summary: 'watch a payment survive lost responses and killed processes; nothing to install',
    load: async () => (await import('./demo.ts')).demo,
  },
  keys: {
    summary: 'look at entries (list, show) and change them manually (resolve, release, keep, forget)',
    load: async () => (await import('./keys.ts')).keys,
  },
  operations: {
    summary: 'look at operations of several steps (list, show), cancel or resume them',
    load: async () => (await import('./operations.ts')).operations,
  },
  inbox: {
    summary: 'look at parked messages (list, show) and let them run again (redrive)',
    load: async () => (await import('./inbox.ts')).inbox,
  },
  outbox: {
    summary: 'see how far behind an outbox is (status), look at dead letters (list) and send them again (redrive)',
    load: async () => (await import('./outbox.ts')).outbox,
  },
  webhooks: {
    summary:
      'look at endpoints and deliveries (endpoints, list, show), send them again (replay), disable or enable endpoints',
    load: async () => (await import('./webhooks.ts')).webhooks,
  },
  sessions: {
    summary: 'look at the sessions of clients (list, show), and close one',
    load: async () => (await import('./sessions.ts')).sessions,
  },
  sweep: {
    summary: 'remove what has expired; safe from several machines',
    load: async () => (await import('./sweep.ts')).sweep,
  },
  migrate: {
    summary: 'create or update the schema of a store, or print it',
    load: async () => (await import('./migrate.ts')).migrate,
  },
  quarantine: {
    summary: 'see whether Redis has lost data, and let new keys in again',
    load: async () => (await import('./quarantine.ts')).quarantine,
  },
  doctor: {
    summary: 'check a deployment against the promise; ends with 1 when it is violated',
    load: async () => (await import('./doctor.ts')).doctor,
  },
}

const help = `onceonly: run an effect once, however often it is asked for

Usage: onceonly <command> [options]

${Object.entries(commands)
  .map(([name, { summary }]) => `  ${name.padEnd(10)} ${summary}`)
  .join('\n')}

  onceonly <command> --help says more of each, with an example. onceonly --version says which one this is.

Ends with 0 when it did what it was asked, 1 when it failed or found a promise violated, 2 when it was asked wrongly,
3 when there is no such entry.`

async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    console.log(help)
    return name === undefined ? 2 : 0
  }
  if (name === '--version' || name === '-v') {
    console.log(version())
    return 0
  }
  checkNodeVersion()
  const run = await commands[chosen('', Object.keys(commands), name)]!.load()
  return run(rest)
}

// The same place for src/cli/main.ts and dist/cli/main.js.
function version(): string {
  return (createRequire(import.meta.url)('../../package.json') as { version: string }).version
}

const listenFailures: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another program has it. End that one, or give another port (0 is any free one)',
  EADDRNOTAVAIL: 'this machine has no such address',
  EACCES: 'this user may not; ports below 1024 are for root. Give a higher port',
  ENOTFOUND: 'there is no such name',
}

/** An address that cannot be bound is no bug. Undefined for any other error. */
function listenFailure(error: unknown): string | undefined {
  const { code = '', syscall, address, hostname, port } = error as NodeJS.ErrnoException & Record<string, unknown>
  if (syscall !== 'listen' && syscall !== 'getaddrinfo') return undefined
  const where = port === undefined ? String(hostname ?? address) : `${String(address)}:${String(port)}`
  return `cannot listen on ${where}: ${listenFailures[code] ?? 'the system refused it'} (${code})`
}

function report(error: unknown): number {
  const unheard = listenFailure(error)
  if (unheard !== undefined) {
    console.error(`onceonly: ${unheard}.`)
    return 1
  }
  if (!(error instanceof OnceError)) {
    console.error('onceonly: Bug! This was not expected:', error)
    return 1
  }
  const asked = error.code === 'INVALID_ARGUMENT'
  // docs/errors.md is sorted by code. An operator who mistyped does not look there.
  console.error(
    `${error.message.startsWith('onceonly') ? '' : 'onceonly: '}${asked ? '' : `${error.code}: `}${error.message}`,
  )
  return asked ? 2 : 1
}

// Standard output has no reader any more (| head): that is an end, not a failure.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error
  process.exit(0)
})

// Ours in one line. What Node says of node:sqlite or of a driver's deprecations is not for an operator of a store. Missing tables are
// an error of the command itself, which names the command that makes them.
process.removeAllListeners('warning')
process.on('warning', (warning: Error & { readonly code?: string }) => {
  if (warning.name !== 'OnceonlyWarning' || warning.code === 'SCHEMA_MISSING') return
  console.error(`onceonly: warning: ${warning.message}`)
})

process.exitCode = await main(process.argv.slice(2)).catch(report)
