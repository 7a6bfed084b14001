// A model of a broker: partitions as logs, and for each group of consumers what is acknowledged. A partition has one owner at a time in
// a group, and an owner that was replaced may not know it yet. Acknowledgements can be lost or late. A log delivers everything from the
// first message on that is not acknowledged; a queue only those that are not.
import type { Message } from '../../../src/messages/inbox.ts'
import { heard } from './world.ts'
import type { Life, World } from './world.ts'

export interface Entry {
  readonly position: number
  readonly message: Message
}

export interface Partition {
  readonly number: number
  readonly log: Entry[]
  readonly queues: Queue[]
}

/** What a group of consumers has of a partition. */
export interface Queue {
  readonly partition: Partition
  readonly acknowledged: Set<number>
  /** The owner that the broker knows. */
  assignment: Assignment | undefined
  wake(): void
  /** Resolves when there may be something new. */
  arrival(): Promise<void>
  /** Everything before it is acknowledged. */
  floor(): number
}

export interface Assignment {
  /** What its owner believes. */
  isOurs: boolean
}

export function createPartition(number: number, groups: number): Partition {
  const partition: Partition = { number, log: [], queues: [] }
  for (let group = 0; group < groups; group++) partition.queues.push(createQueue(partition))
  return partition
}

function createQueue(partition: Partition): Queue {
  const acknowledged = new Set<number>()
  let waiting: (() => void)[] = []
  return {
    partition,
    acknowledged,
    assignment: undefined,
    wake() {
      const woken = waiting
      waiting = []
      for (const each of woken) each()
    },
    arrival: () => new Promise((resolve) => waiting.push(resolve)),
    floor() {
      let floor = 0
      while (acknowledged.has(floor)) floor++
      return floor
    },
  }
}

export function publish(partition: Partition, message: Message): void {
  partition.log.push({ position: partition.log.length, message })
  for (const queue of partition.queues) queue.wake()
}

/** What the owner of a queue gets from a position on. */
export function deliverable(kind: 'log' | 'queue', queue: Queue, from: number): readonly Entry[] {
  const rest = queue.partition.log.slice(from)
  return kind === 'log' ? rest : rest.filter(({ position }) => !queue.acknowledged.has(position))
}

export interface Acknowledging {
  readonly world: World
  readonly life: Life
  readonly queue: Queue
  readonly assignment: Assignment
}

/** What an owner says that was replaced may be refused, and may count. */
export async function acknowledge(
  { world, life, queue, assignment }: Acknowledging,
  positions: readonly number[],
): Promise<void> {
  const { random, faults, counts } = world
  if (life.isDead) return new Promise(() => {})
  await world.wait(random.chance(faults) ? random.integer(500, 6_000) : random.integer(0, 3))
  if (random.chance(faults)) {
    counts.lostRequests++
    return heard(world, life, () => Promise.reject(new Error('the acknowledgement is lost')))
  }
  if (queue.assignment !== assignment) counts.zombies++
  const isFenced = queue.assignment !== assignment && random.chance(0.5)
  if (!isFenced) for (const position of positions) queue.acknowledged.add(position)
  await world.wait(random.integer(0, 3))
  if (!isFenced && !random.chance(faults)) return heard(world, life, () => {})
  counts.lostAcknowledgements++
  return heard(world, life, () => Promise.reject(new Error('no answer to the acknowledgement')))
}
