// Bugs in logical decoding, and in the doctor's look at slots.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const inDecoding = (test: string): CaughtBy => byTest('test/messages/decoding.test.ts', test, 'postgres')

export const decodingBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/outbox/decoding.ts', 'messages', [
    {
      id: 'decoding: a new session takes over what an old one knew',
      find: 'const place = `${session} ${shard.epoch}`',
      replace: 'const place = `${shard.epoch}`',
      caughtBy: inDecoding(
        'what no session has heard of is found by a look at the whole shard when the next one begins',
      ),
    },
    {
      id: 'decoding: a look in vain forgets what the stream has told',
      find: 'if (found.length === 0) known.set(shard.shard, place)',
      replace: 'if (found.length === 0 && known.set(shard.shard, place)) heard.clear()',
      caughtBy: inDecoding('a row that the stream tells of before it can be seen is delivered when it can be seen'),
    },
    {
      id: 'decoding: a relay that streams polls all the same',
      find: 'if (known.get(shard.shard) === place && !(await isNew(shard))) return []',
      replace: 'if (known.get(shard.shard) === place) await isNew(shard)',
      caughtBy: inDecoding('a commit of another process is delivered, and while there is none no row is looked for'),
    },
    {
      id: 'decoding: a relay without a stream waits for it',
      find: 'if (session === undefined) return rows.read(shard, from, limit)',
      replace: 'if (session === undefined) return []',
      caughtBy: inDecoding('while the stream is cut the relay polls, and streams again afterwards'),
    },
    {
      id: 'decoding: rows that another process has redriven are not looked for',
      find: 'for (const shard of await waitingShards(tables)) looked.delete(shard)',
      replace: 'await waitingShards(tables)',
      caughtBy: inDecoding('a dead letter that another process redrives is sent'),
    },
    {
      id: 'decoding: a shard with held rows is not looked at again',
      find: 'if (isStreaming && !held.has(shard) && looked',
      replace: 'if (isStreaming && looked',
      caughtBy: inDecoding('a head that fails blocks its key and no other, and leaves first when it succeeds'),
    },
  ]),
  ...bugsIn('src/messages/outbox/decoding/stream.ts', 'messages', [
    {
      id: 'decoding: a stream that fell silent counts as one',
      find: "if (isUp) end('SILENT')",
      replace: "if (sessions < 0) end('SILENT')",
      caughtBy: inDecoding('a stream that falls silent is noticed, and the relay polls'),
    },
    {
      id: 'decoding: a stream that is far behind keeps the relay from polling',
      find: 'positionOf(lsn) >= from && begin()',
      replace: 'positionOf(lsn) >= 0n && from >= 0n && begin()',
      caughtBy: inDecoding('a relay polls until its stream has caught up'),
    },
    {
      id: 'decoding: the slot keeps the log of all other tables',
      find: 'if (isLive()) reached(lsn)',
      replace: 'if (isLive()) at((position = lsn))',
      caughtBy: inDecoding('the slot moves on with what is delivered, and with what other tables write'),
    },
  ]),
  ...bugsIn('src/messages/outbox/decoding/slot.ts', 'messages', [
    {
      id: 'decoding: a server without wal_level = logical is not refused by name',
      find: "if (walLevel !== 'logical') {",
      replace: "if (walLevel === '') {",
      caughtBy: inDecoding(
        'tables that are missing, a slot of another database and an outbox elsewhere are refused by name',
      ),
    },
    {
      id: 'decoding: a slot that is lost stays',
      find: "if (facts.slot && facts.slot.walStatus !== 'lost') return",
      replace: 'if (facts.slot) return',
      caughtBy: inDecoding('a slot that the server has given up is replaced by create'),
    },
  ]),
  ...bugsIn('src/stores/postgres/fitness.ts', 'messages', [
    {
      id: 'doctor: a slot that nobody reads is well until the server has given it up',
      find: "|| Number(slot['bytes']) > most",
      replace: '|| most < 0',
      caughtBy: byTest(
        'src/stores/postgres/fitness.test.ts',
        'a slot that nobody reads is found before it fills the disk, and when the server has given it up',
        'postgres',
      ),
    },
  ]),
]
