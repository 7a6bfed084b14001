// `onceonly quarantine`: Redis came back without data that it had acknowledged, and the store refuses new keys until a person has
// looked. This command shows the quarantine, and ends it.

import { systemClock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { isQuarantinable } from '../stores/redis.ts'
import { flag, parseCommand, wrong, reason as reasonText } from './arguments.ts'
import { moment } from './words.ts'
import { storeHelp, storeOptions, withStore } from './with-store.ts'

const help = `onceonly quarantine: see whether Redis has lost data, and let new keys in again

Usage: onceonly quarantine --store redis://… [--json]
       onceonly quarantine --store redis://… --end --reason TEXT

${storeHelp}
  --end          let new keys in again: what ran before the loss and is retried now runs again
  --reason TEXT  why that is safe; the store keeps it

Exits with 1 while there is a quarantine, with 0 when there is none or it was ended.

Example: onceonly quarantine --store redis://cache.example --end --reason "compared with the provider, nothing ran"
`

export async function quarantine(args: readonly string[]): Promise<number> {
  const options = { ...storeOptions, end: flag, reason: reasonText }
  const parsed = parseCommand({ command: 'quarantine', help, options, args })
  if (!parsed) return 0
  const { store: url, json, end, reason } = parsed.values
  if (end && reason === undefined)
    throw wrong('quarantine', '--end needs --reason TEXT: why is it safe to let new keys in?')
  if (!end && reason !== undefined) throw wrong('quarantine', '--reason needs --end')
  return withStore('quarantine', url, async ({ store }) => {
    if (!isQuarantinable(store)) {
      const message = `The store ${store.name} has no quarantine: only the Redis store can lose data that it acknowledged.`
      throw new OnceError('UNSUPPORTED', { message })
    }
    const held = await store.quarantine()
    const ended = held !== undefined && end === true && (await store.endQuarantine(reason!))
    if (json) console.log(JSON.stringify({ quarantine: held ?? null, ended }))
    else
      console.log(
        held
          ? `Quarantine since ${moment(held.sinceMs, systemClock.now())}: ${JSON.stringify(held.evidence)}`
          : 'No quarantine.',
      )
    if (ended && !json) console.log('The quarantine has ended: new keys are let in again.')
    return held && !ended ? 1 : 0
  })
}
