// Bugs in the client.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const caught = (name: string): ReturnType<typeof byTest> => byTest('src/client/client.test.ts', name)
const byContract = (name: string): ReturnType<typeof byTest> => byTest('src/client/pending.test.ts', name)

const sameKey = 'the key is kept before the first attempt, and every attempt has the same key and the same bytes'
const late = 'nothing is sent again after the window: the outcome is unknown, and a person is asked'
const gone = '410 of the server is unknown, and is never retried with another key'
const form = 'a form is serialised once, with one boundary, and is the same intention under another boundary'

export const clientBugs: readonly SeededBug[] = [
  ...bugsIn('src/client/client.ts', 'client', [
    {
      id: 'client: the first attempt is made before the key is kept',
      find: 'const standing = await keys.open(fresh)',
      replace:
        'await settings.fetch(fresh.request.url, { method: fresh.request.method })\n  const standing = await keys.open(fresh)',
      caughtBy: caught(sameKey),
    },
    {
      id: 'client: a pending operation is asked for with another request',
      find: 'if (!isSameRequest(standing.request, server.place(request.kept, standing.key))) {',
      replace: 'if (standing.request.method === "") {',
      caughtBy: caught('a pending operation with another request is a mismatch, before anything is sent'),
    },
    {
      id: 'client: resume takes up what this client has in its hands',
      find: 'if ([...held].some((each) => each.operation === operation)) continue',
      replace: '',
      caughtBy: caught('resume leaves alone what this client has in its hands'),
    },
    {
      id: 'client: resume settles an answer that was not used',
      find: 'await use(response, shown(record))',
      replace: 'await response.settled()\n          await use(response, shown(record))',
      caughtBy: caught('a handler of resume that fails leaves the operation pending'),
    },
  ]),
  ...bugsIn('src/client/client/asking.ts', 'client', [
    {
      id: 'client: a new key on every attempt',
      find: 'if (server.header) headers.set(server.header, server.quoted ? `"${record.key}"` : record.key)',
      replace: 'if (server.header) headers.set(server.header, crypto.randomUUID())',
      caughtBy: caught(sameKey),
    },
    {
      id: 'client: retries past the window of the server',
      find: 'if (atMs < lastRetryAtMs(record, horizonMs)) return',
      replace: 'if (atMs < lastRetryAtMs(record, horizonMs) || atMs > 0) return',
      caughtBy: caught(late),
    },
    {
      id: 'client: retries without a budget',
      find: 'if (isOver || !budget.retry()) {',
      replace: 'if (isOver) {',
      caughtBy: caught('bounds the retries of all calls together'),
    },
    {
      id: 'client: one call goes on for ever',
      find: 'const isOver = clock.elapsed() - asking.startedMs + pauseMs >= retry.totalMs',
      replace: 'const isOver = asking.attempt > 50',
      caughtBy: caught('one call ends at its time limit, says what it knows, and keeps the key'),
    },
    {
      id: 'client: says "not executed" after a reply that was lost',
      find: "if (ruling.executed !== 'no') asking.executed = 'unknown'",
      replace: '',
      caughtBy: caught('"not executed" is said only when the server said so every time'),
    },
    {
      id: 'client: an answer is not kept until it was used',
      find: 'if (arrived.bytes !== undefined) await quietly(',
      replace: 'if (arrived.bytes === undefined) await quietly(',
      caughtBy: caught('an answer that was not settled is given again without the server'),
    },
    {
      id: 'client: an expired key is dropped, so that the next call has a new one',
      find: "if (executed === 'no') await quietly(",
      replace: "if (executed === 'no' || code === 'EXPIRED') await quietly(",
      caughtBy: caught(gone),
    },
  ]),
  ...bugsIn('src/client/client/rules.ts', 'client', [
    {
      id: 'client: asks again for a failure that is a replay',
      find: "if (status < 400 || headers.get(replayHeader) === 'true')",
      replace: 'if (status < 400)',
      caughtBy: caught('never a 5xx that is a replay: it is the answer'),
    },
    {
      id: 'client: a request in progress is taken for the answer',
      find: "idempotency_key_in_use: 'IN_FLIGHT'",
      replace: "idempotency_key_in_use: 'MISMATCH'",
      caughtBy: caught('409 of Stripe'),
    },
    {
      id: 'client: Retry-After as a date is ignored',
      find: 'Date.parse(value) - nowMs',
      replace: 'NaN',
      caughtBy: caught('Retry-After is honoured, in seconds and as a date'),
    },
  ]),
  ...bugsIn('src/client/client/request.ts', 'client', [
    {
      id: 'client: credentials are written to disk',
      find: 'headers: all.filter(([each]) => each !== name && !isSecret.test(each)),',
      replace: 'headers: all.filter(([each]) => each !== name),',
      caughtBy: caught('credentials are sent, and never written down'),
    },
  ]),
  ...bugsIn('src/client/client/window.ts', 'client', [
    {
      id: 'client: a short window is reported to nobody',
      find: 'if (windowMs < horizonMs && !reported.has(origin)) {',
      replace: 'if (windowMs < 0 && !reported.has(origin)) {',
      caughtBy: caught(
        'a window that is shorter than the horizon is reported at the first response, with both figures',
      ),
    },
  ]),
  ...bugsIn('src/client/pending.ts', 'client', [
    {
      id: 'client: a form under another boundary is another request',
      find: "return boundary && body !== null ? atob(body).replaceAll(boundary, '') : body",
      replace: 'return boundary === "" ? null : body',
      caughtBy: caught(form),
    },
    {
      id: 'client: the window is counted from the last attempt',
      find: 'const sentAtMs = least(standing.sentAtMs, next.sentAtMs)',
      replace: 'const sentAtMs = next.sentAtMs ?? standing.sentAtMs',
      caughtBy: byContract('memory: the first answer stays, the earliest attempt counts, the shortest window holds'),
    },
  ]),
  ...bugsIn('src/client/node/file-keys.ts', 'client', [
    {
      id: 'client: files: the last to open wins',
      find: 'await link(written, path)\n    await flushFolder',
      replace: 'await rename(written, path)\n    await flushFolder',
      caughtBy: byContract('file: of many that open one operation at once, one key stands for all'),
    },
    {
      id: 'client: files: a record that cannot be read counts as absent',
      find: 'return text === undefined ? undefined : whole(parseRecord(text, path))',
      replace: "return text === undefined || text === '' ? undefined : whole(parseRecord(text, path))",
      caughtBy: byContract('a record that cannot be read is an error, and no absent record'),
    },
  ]),
  ...bugsIn('src/client/node/sql-keys.ts', 'client', [
    {
      id: 'client: SQL: the key is kept outside of the caller’s transaction',
      find: 'return { open: (record) => cured(() => openIn(database, session, record)) }',
      replace: 'return { open: (record) => cured(() => openIn(database, session && database, record)) }',
      caughtBy: byTest(
        'test/client/sql-keys.test.ts',
        'the contract of key stores, and a key in the caller’s transaction',
        'postgres',
      ),
    },
    {
      id: 'client: SQL: the last to open is told that it was the first',
      find: 'return standing.openedBy === openedBy ? record : standing.record',
      replace: 'return standing.record.key === record.key ? record : standing.record',
      caughtBy: byTest(
        'test/client/sql-keys.test.ts',
        'the contract of key stores, and a key in the caller’s transaction',
        'postgres',
      ),
    },
  ]),
]
