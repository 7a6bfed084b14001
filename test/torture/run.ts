// npm run torture -- [--long] [--json FILE] [--only STORE[,STORE]] [--seed S]
//
// Real processes and servers, killed, stopped, cut, filled and set. Exit code 0: no violation, and the quotas were met. 1: a
// violation. 2: INVALID, the run met too little of what it is about. --only leaves stores out, and the quotas with them. With
// ONCEONLY_REQUIRE=all, whatever this machine lacks makes the run INVALID.
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { type Campaign, runCampaign } from './campaign.ts'
import { invalidities } from './counts.ts'
import { type StoreName, storeNames } from './place.ts'

const longScale = 20
const violationsShown = 20
/** Everything was stopped by then: what is still open is a leak. It is named, and holds nobody up who waits for the end. */
const leaveMsMax = 30_000

function readWanted(): { only: StoreName[]; scale: number; seed: number; json: string | undefined } {
  const { values } = parseArgs({
    options: {
      long: { type: 'boolean', default: false },
      json: { type: 'string' },
      only: { type: 'string' },
      seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    },
  })
  const only = (values.only?.split(',') ?? [...storeNames]).map((name) => {
    const known = storeNames.find((each) => each === name.trim())
    if (!known) throw new Error(`expected --only to list some of ${storeNames.join(', ')}, got "${name}"`)
    return known
  })
  const seed = Number(values.seed)
  if (!Number.isSafeInteger(seed) || seed < 0)
    throw new Error(`expected --seed to be a whole number, got "${values.seed}"`)
  return { only, scale: values.long ? longScale : 1, seed, json: values.json }
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

function table({ counts, byStore }: Campaign): void {
  const names = Object.keys(byStore)
  const wide = Math.max(...names.map((name) => name.length)) + 2
  const shown = [
    'kills',
    'zombies',
    'restarts',
    'cuts',
    'clockJumps',
    'takeovers',
    'fenced',
    'calls',
    'auditedWrites',
  ] as const
  say(`${''.padEnd(wide)}${shown.map((name) => name.padStart(14)).join('')}`)
  for (const name of names)
    say(`${name.padEnd(wide)}${shown.map((column) => String(byStore[name]![column]).padStart(14)).join('')}`)
  say('')
  for (const [name, count] of Object.entries(counts)) say(`${name.padEnd(18)}${String(count).padStart(9)}`)
}

async function main(): Promise<void> {
  const { only, scale, seed, json } = readWanted()
  const beganMs = performance.now()
  say(`seed ${seed}`)
  const campaign = await runCampaign({ only, scale, seed, say })
  const { counts, points, violations, skipped } = campaign
  const seconds = (performance.now() - beganMs) / 1_000
  table(campaign)
  for (const line of skipped) say(`skipped: ${line}`)
  const isWhole = only.length === storeNames.length
  const isStrict = process.env['ONCEONLY_REQUIRE'] === 'all'
  const missed = [...invalidities({ counts, scale, skipped, points, isWhole, isStrict }), ...campaign.missed]
  for (const line of missed) say(`INVALID: ${line}`)
  for (const { store, assertion, key, message } of violations.slice(0, violationsShown)) {
    say(`VIOLATION ${assertion} (${store}, ${key?.replace('\n', '/') ?? 'no key'}): ${message}`)
  }
  const rest = violations.length - violationsShown
  if (rest > 0) say(`and ${rest} more`)
  if (!isStrict && (!isWhole || skipped.length > 0))
    say('(quotas are looked at as far as stores and machine are there)')
  say(
    `${violations.length} violations, ${counts.kills} kills at ${Object.keys(points).length} points, ${counts.zombies} zombies, ${counts.restarts} server restarts, ${counts.cuts} cuts, in ${seconds.toFixed(0)} s, seed ${seed}`,
  )
  const { byStore } = campaign
  if (json) {
    const report = { seed, scale, seconds, counts, byStore, points, violations, skipped, missed }
    mkdirSync(dirname(resolve(json)), { recursive: true })
    writeFileSync(json, JSON.stringify(report, null, 2))
  }
  process.exitCode = violations.length > 0 ? 1 : missed.length > 0 ? 2 : 0
}

await main()
// Nothing is open. After a long run Node itself was seen to spin in its own clearing up, for an hour.
process.once('beforeExit', () => process.exit())
setTimeout(() => {
  say(`still open after ${leaveMsMax} ms: ${process.getActiveResourcesInfo().join(', ')}`)
  process.exit()
}, leaveMsMax).unref()
