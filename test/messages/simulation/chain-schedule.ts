// One schedule of the whole chain, from its seed to its judgement: the shipped relays over a model of the outbox, a model of a broker, and
// the shipped inbox over a model of its database, each with its faults. What is committed in the outbox has one effect at the inbox, in
// the order of commits per key.
import { publish } from './broker-model.ts'
import { createRelayWorld } from '../relay-world.ts'
import type { RelayProcess, RelayWorld } from '../relay-world.ts'
import { actOnConsumers, heal, judgeOrder, observed, startGroup } from './inbox-schedule.ts'
import { createInboxWorld } from './inbox-world.ts'
import type { InboxWorld, Nature } from './inbox-world.ts'
import { actOnRelays } from './relay-schedule.ts'
import { simulatedClock } from './world.ts'
import type { JudgedSchedule } from './world.ts'

const steps = 25
const dayMs = 86_400_000

const natures: Readonly<Record<Nature, number>> = { good: 88, flaky: 6, throws: 2, kills: 2, hangs: 2 }

export async function judgeChainSchedule(seed: number): Promise<JudgedSchedule> {
  const clock = simulatedClock()
  const inboxes = createInboxWorld(seed, { clock, groups: 1, windowMs: dayMs })
  const { world } = inboxes
  const relays = createRelayWorld(seed, 'block', { clock, onArrive: (id, key) => arrive(inboxes, id, key) })
  const judged = await observed(world, () => run(inboxes, relays))
  return { ...judged, counts: { ...judged.counts, relayKills: relays.counts.kills, repeated: relays.counts.repeated } }
}

async function run(inboxes: InboxWorld, relays: RelayWorld): Promise<void> {
  const { clock, random } = relays
  const adding: Promise<void>[] = []
  const processes: RelayProcess[] = [relays.startRelay(), relays.startRelay()]
  startGroup(inboxes, inboxes.groups[0]!)
  for (let step = 0; step < steps; step++) {
    await clock.advance(random.integer(10, 800))
    const what = random.weighted({ add: 55, kill: 5, pause: 6, poison: 4, outage: 2, back: 6, consumers: 30 })
    if (what === 'add') adding.push(relays.addTransaction())
    else if (what === 'consumers') actOnConsumers(inboxes)
    else actOnRelays(relays, processes, what)
  }
  relays.heal()
  await heal(inboxes, () => relays.isDone())
  await Promise.all(adding)
  judge(inboxes, relays)
  for (const { relay } of processes) void relay.stop()
  await clock.advance(60_000)
}

/** The broker has it, perhaps once more. */
function arrive(inboxes: InboxWorld, id: string, key: string | undefined): void {
  const { world, partitions, sent } = inboxes
  const at = key === undefined ? 0 : Number(key.slice(4)) % partitions.length
  const nature = sent.get(id)?.nature ?? world.random.weighted(natures)
  world.counts.published++
  const message = {
    uid: id,
    id,
    key,
    partition: at,
    sentAtMs: world.clock.now(),
    entity: undefined,
    version: 0,
    nature,
  }
  publish(partitions[at]!, inboxes.add(message))
}

function judge(inboxes: InboxWorld, { committed, isDone }: RelayWorld): void {
  const { world, groups } = inboxes
  const [group] = groups
  if (!isDone()) world.violated('nothing-lost', 'rows are not sent an hour after all was healed')
  const done = new Set(group!.effects.map(({ sent }) => sent.uid))
  const known = new Set(committed.map(({ id }) => id))
  for (const { id } of committed)
    if (!done.has(id))
      world.violated('nothing-lost', `${id} is committed in the outbox, and has no effect at the inbox`)
  for (const id of done)
    if (!known.has(id)) world.violated('outbox-sound', `${id} has an effect, and was never committed in the outbox`)
  const order = new Map(committed.map(({ id }, position) => [id, position]))
  judgeOrder(inboxes, group!, (uid) => order.get(uid))
}
