// Servers on a full disk. Redis ends when its append-only file cannot grow. MariaDB refuses a table that cannot. DynamoDB Local refuses the
// write, and the file of the MongoDB stand-in gives up until its server starts again. Each round ends the disk a little further on,
// and in the end everything that was acknowledged must be there.
import { unlinkSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from '../../servers/poll.ts'
import { startDynamodb } from '../../servers/dynamodb.ts'
import { startMariadb } from '../../servers/mariadb.ts'
import { startMongodb } from '../../servers/mongodb.ts'
import { startRedis } from '../../servers/redis.ts'
import type { Running } from '../../servers/server.ts'
import type { Surroundings } from '../../servers/server/process.ts'
import { durable } from '../../subjects/redis.ts'
import type { Flow, Job } from '../asking.ts'
import { type DiskFull, giveBackPage, refusalIn, writeToTheLastByte } from '../disk.ts'
import { judge } from '../judge.ts'
import type { StoreName } from '../place.ts'
import { prepare, supervise, type Supervisor } from '../supervisor.ts'

const asksInRound = 6

interface Subject {
  readonly diskKib: number
  /** How often the disk is full in a run of scale 1. The more a round costs, the fewer. */
  readonly rounds: number
  start(surroundings: Surroundings): Promise<Running>
  readonly flows: readonly Flow[]
}

const run: readonly Flow[] = ['run', 'run', 'run']

const subjects = {
  redis: {
    diskKib: 16 * 1_024,
    rounds: 8,
    start: (surroundings) => startRedis({ config: durable, surroundings }),
    flows: run,
  },
  mysql: {
    // An empty server has some 110 MiB with the smallest log that it takes.
    diskKib: 200 * 1_024,
    rounds: 3,
    start: (surroundings) => startMariadb({ settings: { 'innodb-log-file-size': '4M' }, surroundings }),
    flows: ['run', 'transaction', 'operation'],
  },
  dynamodb: {
    diskKib: 16 * 1_024,
    rounds: 3,
    start: (surroundings) => startDynamodb({ surroundings }),
    flows: run,
  },
  mongodb: { diskKib: 16 * 1_024, rounds: 2, start: (surroundings) => startMongodb({ surroundings }), flows: run },
} satisfies Partial<Readonly<Record<StoreName, Subject>>>

export const serversWithDisks = Object.keys(subjects) as readonly (keyof typeof subjects)[]

export interface ServerDiskFull extends DiskFull {
  /** How often the server went down, or had to be started again, because its file could not grow. */
  readonly crashes: number
}

export async function fillDiskOfServer(store: keyof typeof subjects, scale: number): Promise<ServerDiskFull> {
  const { start, diskKib, rounds, flows }: Subject = subjects[store]
  let server: Running
  try {
    server = await start({ diskKib })
  } catch (error) {
    return { skipped: refusalIn(error), refused: 0, crashes: 0 }
  }
  try {
    const place = { store, url: server.url } as const
    await prepare(place)
    const supervisor = await supervise(place)
    let [refused, crashes] = [0, 0]
    for (let round = 0; round < rounds * scale; round++) {
      refused += await fillOnce(server, supervisor, flows)
      crashes += await bringBack(server, supervisor)
    }
    await supervisor.converge()
    const judged = await judge(place, supervisor.folder, supervisor.asker.opened, 'true')
    await supervisor.close()
    return { refused, crashes, judged }
  } finally {
    await server.stop()
  }
}

let keys = 0

const job = (flow: Flow): Job => ({ flow, id: `f${++keys}-${flow}-value`, asked: 'value', phase: 'first' })

/** Returns how many calls were refused. */
async function fillOnce(server: Running, { asker }: Supervisor, flows: readonly Flow[]): Promise<number> {
  const filler = join(server.dataDir!, 'filler')
  writeToTheLastByte(filler)
  let refused = 0
  for (let asked = 0; asked < asksInRound && server.pid !== undefined; asked++) {
    const answers = await Promise.all(flows.map((flow) => asker.ask(job(flow))))
    refused += answers.filter(({ is }) => is === 'refused').length
    giveBackPage(filler)
  }
  unlinkSync(filler)
  return refused
}

/** With room again a server answers within so many calls, or it has to be started again. */
const callsUntilRestart = 5

/** Returns whether it had to be started again, 1 or 0. */
async function bringBack(server: Running, { asker }: Supervisor): Promise<number> {
  let crashes = 0
  let calls = 0
  await pollUntil('the server to answer', async () => {
    if (server.pid === undefined || calls === callsUntilRestart) {
      crashes = 1
      await server.restart()
    }
    calls += 1
    const { is } = await asker.ask(job('run'))
    return is === 'value' || is === 'failure' ? true : undefined
  })
  return crashes
}
