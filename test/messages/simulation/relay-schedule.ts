// One schedule of the relay, from its seed to its judgement: out-of-order commits, late and lost acknowledgements, processes that die or
// stand still, relays that meet in one shard, brokers that refuse keys or take nothing. Then everything heals, and everything must have
// arrived in order.
import type { FailurePolicy } from '../../../src/messages/outbox.ts'
import type { ManualClock } from '../../../src/testing/manual-clock.ts'
import { createRelayWorld } from '../relay-world.ts'
import type { RelayProcess, RelayWorld } from '../relay-world.ts'
import { simulatedClock } from './world.ts'
import type { JudgedSchedule, MessageViolation } from './world.ts'

const policies: readonly FailurePolicy[] = ['block', { parkAfter: 3 }, { skipAfter: 3 }]
const steps = 60

export async function judgeRelaySchedule(seed: number, clock: ManualClock = simulatedClock()): Promise<JudgedSchedule> {
  const policy = policies[seed % policies.length]!
  const world = createRelayWorld(seed, policy, { clock })
  const { random } = world
  const adding: Promise<void>[] = []
  const processes: RelayProcess[] = [world.startRelay(), world.startRelay()]
  for (let step = 0; step < steps; step++) {
    await clock.advance(random.integer(10, 1_000))
    const what = random.weighted({ add: 60, kill: 6, pause: 8, poison: 6, outage: 3, back: 6 })
    if (what === 'add') adding.push(world.addTransaction())
    else actOnRelays(world, processes, what)
  }
  world.heal()
  await heal(world)
  await Promise.all(adding)
  const violations = judge(world)
  let stopped = 0
  for (const { relay } of processes) void relay.stop().then(() => stopped++)
  await clock.advance(60_000)
  if (stopped < processes.length)
    violations.push({ assertion: 'nothing-lost', message: 'a relay that is stopped does not end within a minute' })
  return {
    counts: { schedules: 1, ...world.counts },
    violations,
    story: () => `policy ${JSON.stringify(policy)}\n${world.firsts.join('\n')}`,
  }
}

export function actOnRelays(
  world: RelayWorld,
  processes: RelayProcess[],
  what: 'kill' | 'pause' | 'poison' | 'outage' | 'back',
): void {
  const { random } = world
  if (what === 'kill') {
    const at = random.integer(0, processes.length - 1)
    processes[at]!.kill()
    processes[at] = world.startRelay()
  } else if (what === 'pause') random.pick(processes).pause(random.integer(500, 9_000))
  else if (what === 'poison') world.poison(`key-${random.integer(0, 6)}`)
  else world.setOutage(what === 'outage')
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

function judge(world: RelayWorld): MessageViolation[] {
  const { committed, firsts, dead } = world
  const violations: MessageViolation[] = world.violations.map((message) => ({ assertion: 'outbox-sound', message }))
  if (!world.isDone())
    violations.push({
      assertion: 'nothing-lost',
      message: 'rows are neither sent nor given up an hour after all was healed',
    })
  const arrived = new Set(firsts)
  for (const { id } of committed)
    if (!arrived.has(id) && !dead.has(id)) violations.push({ assertion: 'nothing-lost', message: `${id} is lost` })
  for (const [key, rows] of Map.groupBy(committed, (row) => row.key)) {
    if (key === undefined) continue
    // A row that was given up may still arrive late, from a relay that did not know.
    const expected = rows.map(({ id }) => id).filter((id) => !dead.has(id))
    const own = new Set(expected)
    const order = firsts.filter((id) => own.has(id)).join(', ')
    if (order !== expected.join(', '))
      violations.push({
        assertion: 'in-order',
        message: `${key} arrived as ${order}, and was committed as ${expected}`,
      })
  }
  return violations
}
