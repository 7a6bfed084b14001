// Redis on a full disk: what it has not in its append-only file it may not acknowledge, so it ends, in the middle of whatever it
// was doing. Each round ends the file a little further on, and the next start must find everything that was acknowledged.
import { unlinkSync } from 'node:fs'
import { join } from 'node:path'
import { pollUntil } from '../../servers/poll.ts'
import { startRedis } from '../../servers/redis.ts'
import type { Running } from '../../servers/server.ts'
import { durable } from '../../subjects/redis.ts'
import type { Job } from '../asking.ts'
import { type DiskFull, giveBackPage, refusalIn, writeToTheLastByte } from '../disk.ts'
import { judge } from '../judge.ts'
import { prepare, supervise, type Supervisor } from '../supervisor.ts'

const diskKib = 16 * 1_024
const asksInRound = 6

export interface RedisDiskFull extends DiskFull {
  /** How often the server went down because its file could not grow. */
  readonly crashes: number
}

export async function fillDiskOfRedis(rounds: number): Promise<RedisDiskFull> {
  let server: Running
  try {
    server = await startRedis({ config: durable, surroundings: { diskKib } })
  } catch (error) {
    return { skipped: refusalIn(error), refused: 0, crashes: 0 }
  }
  try {
    const place = { store: 'redis', url: server.url } as const
    await prepare(place)
    const supervisor = await supervise(place)
    let [refused, crashes] = [0, 0]
    for (let round = 0; round < rounds; round++) {
      refused += await fillOnce(server, supervisor)
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

const job = (): Job => ({ flow: 'run', id: `f${++keys}-run-value`, asked: 'value', phase: 'first' })

/** Returns how many calls were refused. */
async function fillOnce(server: Running, { asker }: Supervisor): Promise<number> {
  const filler = join(server.dataDir!, 'filler')
  writeToTheLastByte(filler)
  let refused = 0
  for (let asked = 0; asked < asksInRound && server.pid !== undefined; asked++) {
    const answers = await Promise.all([job(), job(), job()].map((each) => asker.ask(each)))
    refused += answers.filter(({ is }) => is === 'refused').length
    giveBackPage(filler)
  }
  unlinkSync(filler)
  return refused
}

/** Returns whether it had gone down, 1 or 0. */
async function bringBack(server: Running, { asker }: Supervisor): Promise<number> {
  let crashes = 0
  await pollUntil('Redis to answer', async () => {
    if (server.pid === undefined) {
      crashes = 1
      await server.restart()
    }
    const { is } = await asker.ask(job())
    return is === 'value' || is === 'failure' ? true : undefined
  })
  return crashes
}
