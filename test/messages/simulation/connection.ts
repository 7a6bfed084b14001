// The database as a process of the simulated world has it: the model behind a network that loses requests and replies, delivers late
// what its sender took for lost, and breaks in the middle of transactions. A commit without an answer is OUTCOME_UNKNOWN.
import type { SqlDatabase, SqlTransaction } from '../../../src/clients/sql-database.ts'
import type { SqlStatement } from '../../../src/clients/sql-statement.ts'
import { OnceError } from '../../../src/core/errors.ts'
import { ModelConflict, nowText } from './sql-model.ts'
import type { ModelTransaction, SqlModel } from './sql-model.ts'
import { heard } from './world.ts'
import type { Life, World } from './world.ts'

/** What a handler writes with. */
export interface EffectClient {
  /** Resolves when the server has it. `onCommit` is called when, and if, it is committed. */
  write(onCommit: () => void): Promise<void>
  /** As the server knows it. For the judge: no client can ask. */
  isOpen(): boolean
}

interface Connection {
  readonly world: World
  readonly model: SqlModel
  readonly life: Life
}

/** When the server notices that the other end of a connection has gone. */
const noticedMsMax = 3_000

export function databaseFor(
  world: World,
  model: SqlModel,
  dialect: SqlDatabase['dialect'],
  life: Life,
): SqlDatabase<EffectClient> {
  const connection: Connection = { world, model, life }
  return {
    dialect,
    table: (suffix) => ({ texts: [suffix], values: [] }),
    tableName: (suffix) => suffix,
    nowMs: () => ({ texts: [nowText], values: [] }),
    migrate: async () => {},
    query: (statement) => queryAlone(connection, statement),
    begin: () => begin(connection),
    join: () => {
      throw new Error('Bug! The inbox joins no transaction of others.')
    },
    isConflict: (error) => error instanceof ModelConflict,
  }
}

const lostError = (): Error => new Error('the connection is lost')

type Fate = 'arrives' | 'request lost' | 'reply lost'

function fateOf({ random, faults, isDatabaseDown }: World): Fate {
  if (isDatabaseDown) return 'request lost'
  if (random.chance(faults / 2)) return 'request lost'
  return random.chance(faults / 2) ? 'reply lost' : 'arrives'
}

function latency({ random, faults }: World): number {
  return random.chance(faults / 4) ? random.integer(500, 6_000) : random.integer(0, 3)
}

async function queryAlone(connection: Connection, statement: SqlStatement): Promise<readonly string[]> {
  const { world, model, life } = connection
  const { random, counts } = world
  if (life.isDead) return new Promise(() => {})
  const execute = async (): Promise<readonly string[]> => {
    const tx = await model.begin()
    try {
      const answers = await model.execute(tx, statement)
      model.commit(tx)
      return answers
    } finally {
      model.rollback(tx)
    }
  }
  await world.wait(latency(world))
  const fate = fateOf(world)
  if (fate === 'request lost') {
    counts.lostRequests++
    if (!world.isDatabaseDown && random.chance(0.3)) {
      counts.lateRequests++
      world.clock.schedule(() => void execute().catch(() => {}), random.integer(1, 8_000))
    }
    return heard(world, life, () => Promise.reject(lostError()))
  }
  const done = await execute().then(
    (answers) => () => answers,
    (error: unknown) => () => {
      throw error
    },
  )
  await world.wait(latency(world))
  if (fate === 'arrives') return heard(world, life, done)
  counts.lostAcknowledgements++
  return heard(world, life, () => Promise.reject(lostError()))
}

async function begin(connection: Connection): Promise<SqlTransaction<EffectClient>> {
  const { world, model, life } = connection
  const { random, counts } = world
  if (life.isDead) return new Promise(() => {})
  await world.wait(latency(world))
  if (fateOf(world) !== 'arrives') return heard(world, life, () => Promise.reject(lostError()))
  const tx = await model.begin()
  /** The server rolls back when it notices that nobody is there. */
  const breakOff = (): void => void world.clock.schedule(() => model.rollback(tx), random.integer(0, noticedMsMax))
  watch(world, life, tx, breakOff)
  const inside = async <T>(work: () => T | Promise<T>): Promise<T> => {
    if (life.isDead) return new Promise(() => {})
    await world.wait(latency(world))
    const fate = fateOf(world)
    if (fate === 'request lost') return lose(connection, breakOff)
    if (tx.isOpen && random.chance(world.faults / 3)) {
      counts.conflicts++
      model.rollback(tx)
      return heard(world, life, () => Promise.reject(new ModelConflict('could not serialize')))
    }
    const done = await attempt(work)
    await world.wait(latency(world))
    return fate === 'arrives' ? heard(world, life, done) : lose(connection, breakOff)
  }
  return heard(world, life, () => ({
    tx: {
      isOpen: () => tx.isOpen,
      write: (onCommit) =>
        inside(() => {
          if (!tx.isOpen) throw new Error('the transaction has ended')
          tx.onCommit.push(onCommit)
        }),
    },
    query: (statement) => inside(() => model.execute(tx, statement)),
    commit: () => commit(connection, tx, breakOff),
    async rollback() {
      await world.wait(latency(world))
      if (fateOf(world) === 'arrives') model.rollback(tx)
      else breakOff()
      return heard(world, life, () => {})
    },
    async abandon() {
      if (!life.isDead) breakOff()
    },
  }))
}

// A process that died in the middle leaves its transaction open until the server notices.
function watch({ clock }: World, life: Life, tx: ModelTransaction, breakOff: () => void): void {
  const look = (): void => {
    if (!tx.isOpen) return
    if (life.isDead) breakOff()
    else clock.schedule(look, 1_000)
  }
  clock.schedule(look, 1_000)
}

async function attempt<T>(work: () => T | Promise<T>): Promise<() => T> {
  try {
    const value = await work()
    return () => value
  } catch (error) {
    return () => {
      throw error
    }
  }
}

function lose({ world, life }: Connection, breakOff: () => void): Promise<never> {
  world.counts.lostRequests++
  breakOff()
  return heard(world, life, () => Promise.reject(lostError()))
}

async function commit(connection: Connection, tx: ModelTransaction, breakOff: () => void): Promise<void> {
  const { world, model, life } = connection
  if (life.isDead) return new Promise(() => {})
  await world.wait(latency(world))
  const fate = fateOf(world)
  const unknown = (): Promise<never> => {
    world.counts.unknownCommits++
    return Promise.reject(new OnceError('OUTCOME_UNKNOWN', { executed: 'unknown', message: 'no answer to COMMIT' }))
  }
  if (fate === 'request lost') {
    // It may still come, as long as the server has not noticed.
    if (world.random.chance(0.3))
      world.clock.schedule(() => tx.isOpen && model.commit(tx), world.random.integer(1, noticedMsMax))
    breakOff()
    return heard(world, life, unknown)
  }
  if (tx.isOpen && world.random.chance(world.faults / 3)) {
    world.counts.conflicts++
    model.rollback(tx)
    return heard(world, life, () => Promise.reject(new ModelConflict('could not serialize')))
  }
  const done = await attempt(() => model.commit(tx))
  await world.wait(latency(world))
  return heard(world, life, fate === 'arrives' ? done : unknown)
}
