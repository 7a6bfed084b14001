// `onceonly quarantine`: Redis came back without data that it had acknowledged, and the store refuses new keys until somebody has
// looked. This shows it, and ends it.

import { systemClock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import type { Quarantinable } from '../stores/redis.ts'
import { flag, parseCommand, text, wrong } from './arguments.ts'
import { moment } from './words.ts'
import { storeHelp, storeOptions, withStore } from './with-store.ts'

const help = `onceonly quarantine: see whether Redis has lost data, and let new keys in again

Usage: onceonly quarantine --store redis://… [--json]
       onceonly quarantine --store redis://… --end --reason TEXT

${storeHelp}
  --end          let new keys in again: what ran before the loss and is retried now runs again
  --reason TEXT  why that is safe; kept with the store

Ends with 1 while there is a quarantine, with 0 when there is none or it was ended.

Example: onceonly quarantine --store redis://cache.example --end --reason "compared with the provider, nothing ran"
`

export async function quarantine(args: readonly string[]): Promise<number> {
  const options = { ...storeOptions, end: flag, reason: text }
  const parsed = parseCommand({ command: 'quarantine', help, options, args })
  if (!parsed) return 0
  const { store: url, json, end, reason } = parsed.values
  if (end && reason === undefined) throw wrong('quarantine', 'why is it safe? Give --reason TEXT')
  if (!end && reason !== undefined) throw wrong('quarantine', 'a reason is for --end, which is not given')
  return withStore('quarantine', url, async ({ store }) => {
    if (!('quarantine' in store)) {
      throw new OnceError('UNSUPPORTED', {
        message: `The store ${store.name} knows no quarantine: it loses nothing silently.`,
      })
    }
    const watched = store as unknown as Quarantinable
    const held = await watched.quarantine()
    const ended = held !== undefined && end === true && (await watched.endQuarantine(reason!))
    if (json) console.log(JSON.stringify({ quarantine: held ?? null, ended }))
    else
      console.log(
        held
          ? `Quarantine since ${moment(held.sinceMs, systemClock.now())}: ${JSON.stringify(held.evidence)}`
          : 'No quarantine.',
      )
    if (ended && !json) console.log('It is over: new keys are let in again.')
    return held && !ended ? 1 : 0
  })
}
