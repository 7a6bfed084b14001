// npm run orders -- [--only postgres,mysql] [--scenarios N] [--seed S] [--record]
//
// Calls on one key in one tick, on real stores: answers and final state are compared with every order of the same calls on the memory
// store (src/testing/store-contract/all-orders.ts). The contract does it some forty times for each store, this as often as you like, with
// seeds that no run has seen. With --record it adds itself to searches.json, from where docs/guarantees.md has it (npm run guarantees). Exit code 1: no order
// explains what a store answered. With ONCEONLY_REQUIRE=all a store that is missing is an error.

import { randomInt } from 'node:crypto'
import { parseArgs } from 'node:util'
import { checkAllOrders } from '../../src/testing/store-contract.ts'
import prepareServers from '../servers/global-setup.ts'
import { mustFail } from '../servers/needs.ts'
import { skipFor, textOf } from '../servers/skip.ts'
import { commit } from '../simulation/failure.ts'
import { type OrdersGround, ordersGrounds } from './grounds.ts'
import { recordOrders } from './searches.ts'

interface Wanted {
  readonly only: readonly string[]
  readonly scenarios: number
  readonly seed: number
  readonly record: boolean
}

/** A store with few entries is quick, and what went wrong before does not reach what comes after. */
const scenariosPerSubject = 500

function readWanted(): Wanted {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      scenarios: { type: 'string', default: '2000' },
      seed: { type: 'string', default: String(randomInt(1, 2 ** 30)) },
      record: { type: 'boolean', default: false },
    },
  })
  const [scenarios, seed] = [Number(values.scenarios), Number(values.seed)]
  for (const [name, value] of Object.entries({ scenarios, seed }))
    if (!Number.isSafeInteger(value) || value < 1)
      throw new Error(`expected --${name} to be a whole number from 1 on, got ${value}`)
  const names = Object.keys(ordersGrounds)
  const asked = (values.only?.split(',') ?? names).map((each) => each.trim())
  const unknown = asked.find((each) => !names.some((name) => name.startsWith(each)))
  if (unknown !== undefined)
    throw new Error(`expected --only to list beginnings of ${names.join(', ')}, got "${unknown}"`)
  const only = names.filter((name) => asked.some((each) => name.startsWith(each)))
  return { only, scenarios, seed, record: values.record }
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

function missing({ needs }: OrdersGround): string | undefined {
  const skips = needs.flatMap((name) => skipFor(name, { ours: true }, process.env) ?? [])
  if (skips.length === 0) return undefined
  const reason = skips.map(textOf).join('; ')
  if (mustFail(skips, process.env)) throw new Error(`${reason} (a skip is a failure because ONCEONLY_REQUIRE=all)`)
  return reason
}

/** How many scenarios no order explains. */
async function search({ start }: OrdersGround, seed: number, scenarios: number): Promise<number> {
  await using place = await start()
  let found = 0
  for (let done = 0; done < scenarios; done += scenariosPerSubject) {
    const subject = await place.create()
    for (let each = seed + done; each < seed + Math.min(scenarios, done + scenariosPerSubject); each++) {
      try {
        await checkAllOrders(subject, each)
      } catch (error) {
        found++
        say(error instanceof Error ? error.message : String(error))
      }
    }
    await subject.destroy()
  }
  return found
}

async function main(): Promise<void> {
  const { only, scenarios, seed, record } = readWanted()
  const endServers = await prepareServers()
  // Now: somebody may commit while it runs.
  const at = commit()
  say(`${scenarios} scenarios from seed ${seed}`)
  for (const name of only) {
    const ground = ordersGrounds[name]!
    const lack = missing(ground)
    if (lack) {
      say(`${name}: skipped, ${lack}`)
      continue
    }
    const beganMs = performance.now()
    const found = await search(ground, seed, scenarios)
    say(`${name}: ${found} without an order, ${((performance.now() - beganMs) / 1_000).toFixed(1)} s`)
    if (found > 0) process.exitCode = 1
    if (record) recordOrders(name, { commit: at, schedules: scenarios, found })
  }
  await endServers?.()
}

await main()
