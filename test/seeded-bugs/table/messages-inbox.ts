// Bugs in the inbox.

import { bugsIn, byMessages, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const tests = 'src/messages/inbox.test.ts'
const caught = (name: string): ReturnType<typeof byTest> => byTest(tests, name)

const onPostgres = (name: string): ReturnType<typeof byTest> => byTest('test/messages/inbox.test.ts', name, 'postgres')

const again = 'a handler that fails leaves neither effect nor mark, and the next delivery runs it'
const once = 'of many deliveries at once, through two processes, one has its effect'
const counted = 'an attempt is counted before the handler runs, so that a message which ends the process is parked'
const parked = 'a message that keeps failing is parked with its last error, and redriven'
const redriven = 'a message that was redriven is not run again, however often it comes, is parked and redriven'
const stale = 'a version that is not newer than the applied one is stale, in a batch and across processes'
const poison = 'a poison message does not sink its batch'
const ordered = 'what comes after a failed message of its key waits, and other keys do not'
const acknowledged = 'acknowledged after the commit, and not at all when the handler failed'
const deliveries = 'at-most-once marks and acknowledges before it runs, and at-least-once runs every delivery'

export const inboxBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/inbox/by-transaction.ts', 'messages', [
    {
      id: 'inbox: the mark is made in an earlier transaction than the effect',
      find: '    const { taken, left } = inOrder(messages, ours, others)\n',
      replace:
        '    const { taken, left } = inOrder(messages, ours, others)\n    await open.commit()\n    Object.assign(open, await database.begin(keyOfMark(settings.scope, messages)))\n',
      caughtBy: caught(again),
    },
    {
      id: 'inbox: a message that another has just taken is run all the same',
      find: '    const { taken, left } = inOrder(messages, ours, others)\n',
      replace: '    const { taken, left } = { taken: messages, left: new Set<Read<M>>() }\n',
      caughtBy: caught(once),
    },
    {
      id: 'inbox: a batch goes around a message that another has in its hands, and is committed before it',
      find: 'if (done.has(id) || (ours.has(id) && !isHeld)) continue',
      replace: 'if (done.has(id) || ours.has(id) || isHeld) continue',
      caughtBy: byMessages('in-order'),
    },
    {
      id: 'inbox: the body of a message that came before is not compared',
      find: 'found.fingerprint !== message.fingerprint) note(',
      replace: 'found.fingerprint === undefined) note(',
      caughtBy: caught('the same id with another body is not run, and is kept for a person'),
    },
    {
      id: 'inbox: a batch fails as a whole because of one message',
      find: '    if (group.length === 1) return note(',
      replace:
        '    for (const message of group.slice(1)) note(message, busy())\n    if (group.length > 0) return note(',
      caughtBy: caught(poison),
    },
    {
      id: 'inbox: a message overtakes a failed one of its key',
      find: 'message.key !== undefined) held.add(message.key)',
      replace: 'message.key === undefined) held.add(message.id)',
      caughtBy: caught(ordered),
    },
    {
      id: 'inbox: what a hung handler writes after its deadline is committed',
      find: '    if (failure.isHung) await open.abandon()\n    throw failure',
      replace: '    if (failure.isHung) return\n    throw failure',
      caughtBy: caught('a handler that outlives its deadline is rolled back, and what it writes later reaches nobody'),
    },
    {
      id: 'inbox: a parked message can come back as a fresh attempt',
      find: `await marks.put(open, id, 'p')`,
      replace: `await marks.put(open, id, 'r')`,
      caughtBy: caught(parked),
    },
  ]),
  ...bugsIn('src/messages/inbox/marks.ts', 'messages', [
    {
      id: 'inbox: an attempt is not counted',
      find: 'await open.query(sql`update ${table} set attempts = attempts + 1 where ${one(on, id)}`)',
      replace: 'await open.query(sql`update ${table} set attempts = attempts where ${one(on, id)}`)',
      caughtBy: caught(counted),
    },
    {
      id: 'inbox: a consumer sweeps the marks of others by its own window',
      find: ' and scope = ${bound(scope)} and state <>',
      replace: ' and state <>',
      caughtBy: caught('a consumer that remembers for a short time forgets nothing of one that remembers for longer'),
    },
    {
      id: 'inbox: a message that was redriven, came again and was parked again runs twice',
      find: "if (mark.state === 'd') return undefined",
      replace: "if (mark.state === 's') return undefined",
      caughtBy: caught(redriven),
    },
    {
      id: 'inbox: a redriven message whose id another had first leaves no mark',
      find: "const own = sql`${one(on, ownIdOf(scope, message))} and state <> 'r'`",
      replace: "const own = sql`${one(on, ownIdOf(scope, message))} and state = 'r'`",
      caughtBy: caught(redriven),
    },
    {
      id: 'inbox: sweeping forgets parked messages',
      find: `and state <> 'p'`,
      replace: `and state <> 'x'`,
      caughtBy: caught('marks of messages that nobody can redeliver any more are deleted, and parked ones stay'),
    },
  ]),
  ...bugsIn('src/messages/inbox/versions.ts', 'messages', [
    {
      id: 'inbox: a stale version is run',
      find: 'if (BigInt(version) <= last.get(entity)!) {',
      replace: 'if (BigInt(version) < 0n) {',
      caughtBy: caught(stale),
    },
    {
      id: 'inbox: versions of one batch are not compared with each other',
      find: '        last.set(entity, BigInt(version))\n',
      replace: '',
      caughtBy: caught(stale),
    },
  ]),
  ...bugsIn('src/messages/inbox/delivery.ts', 'messages', [
    {
      id: 'inbox: a message is acknowledged before its effect is committed',
      find: '    const handled = await handleMany(delivering, messages, run)\n    const ended',
      replace:
        '    await acknowledge(messages.map((_message, position) => position))\n    const handled = await handleMany(delivering, messages, run)\n    const ended',
      caughtBy: caught(acknowledged),
    },
    {
      id: 'inbox: of two messages of a batch with one id, the second is parked though it is the marked one',
      find: 'else results[position] = (await byDelivery(delivering, [read], run))[0]',
      replace: "else results[position] = await ground.park(read, 'MISMATCH', otherBody)",
      caughtBy: caught(
        'of two messages of a batch with one id, the one that is marked is the duplicate, wherever it stands',
      ),
    },
    {
      id: 'inbox: a failed message is acknowledged',
      find: `(is === 'failed' || is === 'busy' ? [] : [position])`,
      replace: `(is === 'busy' ? [] : [position])`,
      caughtBy: caught(acknowledged),
    },
    {
      id: 'inbox: at-most-once runs before it acknowledges',
      find: '    if (isFirst) await acknowledge(positions)\n    await run(tx, fresh)',
      replace: '    await run(tx, fresh)\n    if (isFirst) await acknowledge(positions)',
      caughtBy: caught(deliveries),
    },
    {
      id: 'inbox: the window is not looked at',
      find: 'if (ageMs <= settings.windowMs) return undefined',
      replace: 'if (ageMs > 0) return undefined',
      caughtBy: caught('a message older than the window is never run, and one without an id neither'),
    },
    {
      id: 'inbox: the second of two equal messages in a batch is told as handled although the first failed',
      find: `return handled.is === 'failed' ? { is: 'busy', retryAfterMs: handled.retryAfterMs } : handled`,
      replace: `return handled.is === 'failed' ? { is: 'duplicate' } : handled`,
      caughtBy: caught('two equal messages in a batch share the fate of the first'),
    },
  ]),
  ...bugsIn('src/messages/inbox/message.ts', 'messages', [
    {
      id: 'inbox: a long id is cut off',
      find: `keyOf(scope, [Buffer.from(id, 'utf16le').toString('base64')]).id`,
      replace: 'id.slice(0, 100)',
      caughtBy: caught('ids of any length and any characters are told apart byte for byte'),
    },
    {
      id: 'inbox: a CloudEvent is known by its id alone',
      find: '? `${source}#${event}` : id',
      replace: '? event : id',
      caughtBy: caught('a CloudEvent is known by its source and its id together'),
    },
  ]),
  ...bugsIn('src/messages/inbox/parked.ts', 'messages', [
    {
      id: 'inbox: a redriven message that ends the process is run again and again',
      find: 'set attempts = attempts + 1, redrive_at_ms = null where',
      replace: 'set attempts = attempts + 1 where',
      caughtBy: caught('a redriven message that ends the process is left parked'),
    },
    {
      id: 'inbox: a parked message is stored in the clear under a codec',
      find: '${encodeText(codec, message)},',
      replace: '${message},',
      caughtBy: caught('with a codec nothing of a parked message is stored in the clear'),
    },
  ]),
  ...bugsIn('src/messages/inbox.ts', 'messages', [
    {
      id: 'inbox: a message is tried for ever',
      find: '    attempts,\n    attemptMs: options',
      replace: '    attempts: attempts * 1_000,\n    attemptMs: options',
      caughtBy: caught(parked),
    },
  ]),
  // What takes two processes at one moment, or a fault between two statements: only the simulation meets it.
  ...bugsIn('src/messages/inbox/by-transaction.ts', 'messages', [
    {
      id: 'inbox: a message is parked under the hands of the process that runs its last attempt',
      find: 'if (!(await marks.take(open, [message])).has(id)) {',
      replace: "if (id === '') {",
      caughtBy: byMessages('one-effect'),
    },
    {
      id: 'inbox: a batch that split commits what comes after a failed message of its key',
      find: 'const group = messages.filter((message) => !isHeld(message))',
      replace: 'const group = messages.filter(() => true)',
      caughtBy: byMessages('in-order'),
    },
    {
      id: 'inbox: a message in other hands is told as a duplicate',
      find: 'if (left.has(message)) return busy()',
      replace: "if (left.has(message)) return { is: 'duplicate' }",
      caughtBy: byMessages('acknowledged-is-done'),
    },
    {
      id: 'inbox: a message is parked before the dead-letter function has it',
      find: 'await settings.deadLetter(message.message, { code, detail })',
      replace: 'void settings.deadLetter(message.message, { code, detail })',
      caughtBy: byMessages('dead-letter-first'),
    },
  ]),
  ...bugsIn('src/messages/inbox/marks.ts', 'messages', [
    {
      id: 'inbox: of two messages with one id, received at one moment, the second is taken for the first (MySQL, SQLite)',
      find: 'given.get(id) === fingerprint',
      replace: 'given.has(id) && fingerprint !== undefined',
      caughtBy: byMessages('acknowledged-is-done'),
    },
    {
      id: 'inbox: a mark that is done can be taken again',
      find: "and state = 'r'${also} order by id",
      replace: "and state <> 'p'${also} order by id",
      caughtBy: byMessages('one-effect'),
    },
    {
      id: 'inbox: marks are never swept',
      find: 'const old = sql`at_ms < ${String(beforeMs)}',
      replace: 'const old = sql`at_ms < ${String(beforeMs - 1e12)}',
      caughtBy: byMessages('marks-bounded'),
    },
  ]),
  ...bugsIn('src/messages/inbox/functions.sql.ts', 'messages', [
    {
      id: 'inbox: a batch fails when another consumer receives one of it at the same moment (PostgreSQL)',
      find: 'exception when unique_violation then',
      replace: 'exception when division_by_zero then',
      caughtBy: onPostgres(
        'of a message that two consumers receive at the same moment, the second is told what became of it',
      ),
    },
    {
      id: 'inbox: a mark that is done is taken again (PostgreSQL)',
      find: "${isGiven} and there.state = 'r' ${inOrder} for update",
      replace: '${isGiven} ${inOrder} for update',
      caughtBy: onPostgres(
        'a mark that is done is not taken again, and one that another transaction has is passed over',
      ),
    },
  ]),
  ...bugsIn('src/messages/inbox/versions.ts', 'messages', [
    {
      id: 'inbox: two first versions of an entity do not see each other',
      find: 'if (missing.length === 0) return found',
      replace: 'if (missing.length >= 0) return found',
      caughtBy: byMessages('versions-grow'),
    },
  ]),
  ...bugsIn('src/messages/inbox/redrive.ts', 'messages', [
    {
      id: 'inbox: a redriven message whose id another had first is not marked, and is run again by the next redrive',
      find: "parked.code === 'NO_ID' ? id :",
      replace: "parked.code === 'NO_ID' || parked.code === 'MISMATCH' ? id :",
      caughtBy: byMessages('one-effect'),
    },
    {
      id: 'inbox: a redriven message is run although its entity has a newer version',
      find: 'if (!isStale) await deadlineOf',
      replace: 'if (!isStale || id !== undefined) await deadlineOf',
      caughtBy: byMessages('versions-grow'),
    },
  ]),
  ...bugsIn('src/messages/inbox/parked.ts', 'messages', [
    {
      id: 'inbox: a redrive by code also reaches a message that was parked again for another reason',
      find: 'and code = ${parked.code} and ${isSo}`',
      replace: 'and ${isSo}`',
      caughtBy: caught(
        'a redrive by code leaves a message alone that was run and parked again meanwhile, for another reason',
      ),
    },
  ]),
  ...bugsIn('src/messages/inbox/delivery.ts', 'messages', [
    {
      id: 'inbox: a mark is forgotten before the window of its message has passed',
      find: 'const clockSkewMs = 3_600_000',
      replace: 'const clockSkewMs = -15_000',
      caughtBy: byMessages('one-effect'),
    },
  ]),
  ...bugsIn('src/messages/in-hand.ts', 'messages', [
    {
      id: 'in hand: a message that failed lets the next of its key begin',
      find: 'if (held.canWaitAtBroker && held.message.key === undefined) return',
      replace: 'if (held.canWaitAtBroker) return',
      caughtBy: byMessages('in-order'),
    },
  ]),
  ...bugsIn('src/messages/inbox/by-claim.ts', 'messages', [
    {
      id: 'inbox by claim: every delivery has a key of its own',
      find: 'const key = { scope: settings.scope, id }',
      replace: 'const key = { scope: settings.scope, id: `${id} ${settings.random.fraction()}` }',
      caughtBy: byMessages('one-effect', 'ways'),
    },
    {
      id: 'inbox by claim: a message that runs elsewhere is acknowledged as a duplicate',
      find: "    case 'IN_FLIGHT':\n      return busy()\n",
      replace: "    case 'IN_FLIGHT':\n      return { is: 'duplicate' }\n",
      caughtBy: byMessages('acknowledged-is-done', 'ways'),
    },
    {
      id: 'inbox by claim: a message that was tried too often is acknowledged before it is handed to the dead-letter function',
      find: "    await settings.deadLetter?.(message.message, { code: 'ATTEMPTS', detail })\n    throw",
      replace: '    throw',
      caughtBy: byMessages('acknowledged-is-done', 'ways'),
    },
  ]),
  ...bugsIn('src/messages/inbox/delivery.ts', 'messages', [
    {
      id: 'inbox: at-most-once runs what is marked already',
      find: "const fresh = reads.filter((_read, position) => marked[position]!.is === 'handled')",
      replace: "const fresh = reads.filter((_read, position) => marked[position]!.is !== 'busy')",
      caughtBy: byMessages('one-effect', 'ways'),
    },
    {
      id: 'inbox: at-most-once does not wait for the acknowledgement',
      find: '    if (isFirst) await acknowledge(positions)\n    await run(tx, fresh)\n',
      replace: '    if (isFirst) void acknowledge(positions).catch(() => {})\n    await run(tx, fresh)\n',
      caughtBy: byMessages('acknowledged-first', 'ways'),
    },
    {
      id: 'inbox: at-least-once acknowledges what failed',
      find: "reads.map(() => ({ is: 'failed', error, attempts: 1, retryAfterMs: backoffs.message.firstMs }))",
      replace:
        "reads.map(() => ({ is: 'failed', error, attempts: 1, retryAfterMs: 0 })).map(() => ({ is: 'handled' }))",
      caughtBy: byMessages('acknowledged-is-done', 'ways'),
    },
  ]),
]
