// Schedules of the relay from seeds: out-of-order commits, late and lost acknowledgements, processes that die or stand still, relays
// that meet in one shard, brokers that refuse keys or take nothing. Then everything heals, and everything must have arrived in order.
import { afterAll, expect, test } from 'vitest'
import type { FailurePolicy } from '../../src/messages/outbox.ts'
import { freshSeed, isThorough } from '../fresh-seed.ts'
import { type Counts, createRelayWorld, noCounts, type RelayProcess, type RelayWorld } from './relay-world.ts'

const schedulesFixed = 60
// A shard that its relay owned without working on it; rows behind a parked one that were due before it; a relay that went on with what it
// knew when taking its shard anew had failed.
const found = [1364274397, 1239410333, 1440834133, 1742045338, 1017912388]
const schedulesFresh = 1_000
const total = noCounts()

const policies: readonly FailurePolicy[] = ['block', { parkAfter: 3 }, { skipAfter: 3 }]

test('fixed seeds: every committed event arrives, in the order of commits per key', { timeout: 300_000 }, async () => {
  for (const seed of found) await runSchedule(seed)
  for (let seed = 1; seed <= schedulesFixed; seed++) await runSchedule(seed)
  expectReached(total)
})

const fresh = freshSeed('the relay')
if (fresh !== undefined) {
  test('fresh seeds: the same', { timeout: 600_000 }, async () => {
    for (let seed = fresh; seed < fresh + (isThorough ? schedulesFresh : schedulesFixed); seed++)
      await runSchedule(seed)
  })
}

afterAll(() => process.stdout.write(`relay simulation: ${JSON.stringify(total)}\n`))

async function runSchedule(seed: number): Promise<void> {
  const policy = policies[seed % policies.length]!
  const world = createRelayWorld(seed, policy)
  const { clock, random } = world
  const adding: Promise<void>[] = []
  const processes: RelayProcess[] = [world.startRelay(), world.startRelay()]
  for (let step = 0; step < 60; step++) {
    await clock.advance(random.integer(10, 1_000))
    const what = random.weighted({ add: 60, kill: 6, pause: 8, poison: 6, outage: 3, back: 6 })
    if (what === 'add') adding.push(world.addTransaction())
    else if (what === 'kill') {
      const at = random.integer(0, processes.length - 1)
      processes[at]!.kill()
      processes[at] = world.startRelay()
    } else if (what === 'pause') random.pick(processes).pause(random.integer(500, 9_000))
    else if (what === 'poison') world.poison(`key-${random.integer(0, 6)}`)
    else world.setOutage(what === 'outage')
  }
  world.heal()
  await heal(world)
  await Promise.all(adding)
  judge(seed, policy, world)
  let stopped = 0
  for (const { relay } of processes) void relay.stop().then(() => stopped++)
  await clock.advance(60_000)
  expect(stopped, `seed ${seed}: a relay that is stopped ends within a minute`).toBe(processes.length)
  for (const name of Object.keys(total) as (keyof Counts)[]) total[name] += world.counts[name]
}

// The longest pause between two tries is five minutes, and a key can have several rows that failed.
const healMsMax = 3_600_000

async function heal(world: RelayWorld): Promise<void> {
  for (let waited = 0; waited < healMsMax; waited += 5_000) {
    await world.clock.advance(5_000)
    world.redrive()
    if (world.isDone() && waited > 20_000) return
  }
}

function judge(seed: number, policy: FailurePolicy, world: RelayWorld): void {
  const said = `seed ${seed} (again: ONCEONLY_SEED=${seed}), policy ${JSON.stringify(policy)}`
  const { committed, firsts, dead, violations } = world
  expect(violations, said).toEqual([])
  expect(world.isDone(), `${said}: rows are neither sent nor given up an hour after everything was healed`).toBe(true)
  const arrived = new Set(firsts)
  const lost = committed.filter(({ id }) => !arrived.has(id) && !dead.has(id)).map(({ id }) => id)
  expect(lost, `${said}: lost`).toEqual([])
  for (const [key, rows] of Map.groupBy(committed, (row) => row.key)) {
    if (key === undefined) continue
    // A row that was given up may still arrive late, from a relay that did not know.
    const expected = rows.map(({ id }) => id).filter((id) => !dead.has(id))
    const own = new Set(expected)
    expect(
      firsts.filter((id) => own.has(id)),
      `${said}: the order of ${key}`,
    ).toEqual(expected)
  }
}

function expectReached(counts: Counts): void {
  const least: Partial<Counts> = {
    committed: 500,
    rolledBack: 50,
    kills: 60,
    takeovers: 40,
    fenced: 5,
    lostReplies: 100,
    repeated: 50,
    held: 50,
    dead: 1,
  }
  for (const [name, number] of Object.entries(least)) {
    expect(counts[name as keyof Counts], `a run that reached too few: ${name}`).toBeGreaterThanOrEqual(number)
  }
}
