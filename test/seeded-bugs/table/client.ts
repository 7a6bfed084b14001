// Bugs in the client.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const caught = (name: string): ReturnType<typeof byTest> => byTest('src/client/client.test.ts', name)
const byContract = (name: string): ReturnType<typeof byTest> => byTest('src/client/pending.test.ts', name)

const byLibraries = (name: string): ReturnType<typeof byTest> => byTest('test/client/libraries.test.ts', name)
const inBrowser = (name: string): ReturnType<typeof byTest> => byTest('test/browser/client.test.ts', name, 'chromium')

const indexedDb = 'indexedDb keeps the contract of key stores between two tabs'
const webStorage = 'webStorage keeps the contract of key stores in one tab, and another tab sees a key soon'
const sameKey = 'the key is kept before the first attempt, and every attempt has the same key and the same bytes'
const late = 'nothing is sent again after the window: the outcome is unknown, and a person is asked'
const gone = '410 of the server is unknown, and is never retried with another key'
const form = 'a form is serialised once, with one boundary, and is the same intention under another boundary'

export const clientBugs: readonly SeededBug[] = [
  ...bugsIn('src/client/client.ts', 'client', [
    {
      id: 'client: the first attempt is made before the key is kept',
      find: 'const standing = await keys.open(fresh, request.signal)',
      replace:
        'await settings.fetch(fresh.request.url, { method: fresh.request.method })\n  const standing = await keys.open(fresh, request.signal)',
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
      id: 'client: a response that nobody will read keeps its connection',
      find: 'unfollow()\n      controller.abort()',
      replace: 'unfollow()',
      caughtBy: caught('a body that passes through and is not the answer is let go before the retry'),
    },
    {
      id: 'client: a response that passes through is no longer the caller’s to abort',
      find: "passes = ruling.is === 'answer' && arrived.body instanceof ReadableStream",
      replace: 'passes = false',
      caughtBy: caught('a body that passes through ends with the signal of the caller'),
    },
    {
      id: 'client: an answer is not kept until it was used',
      find: 'if (kept) await quietly(',
      replace: "if (kept?.body === '') await quietly(",
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
      find: "const isAnswer = status < 400 || headers.get(replayHeader) === 'true'",
      replace: "const isAnswer = status < 400 || replayHeader === ''",
      caughtBy: caught('never a 5xx that is a replay: it is the answer'),
    },
    {
      id: 'client: a request in progress is taken for the answer',
      find: "idempotency_key_in_use: 'IN_FLIGHT'",
      replace: "idempotency_key_in_use: 'MISMATCH'",
      caughtBy: caught('409 of Stripe'),
    },
  ]),
  ...bugsIn('src/core/backoff.ts', 'client', [
    {
      id: 'client: Retry-After as a date is ignored',
      find: 'Date.parse(value) - nowMs',
      replace: 'NaN',
      caughtBy: caught('Retry-After is honoured, in seconds and as a date'),
    },
  ]),
  ...bugsIn('src/client/client/bytes.ts', 'client', [
    {
      id: 'client: a response without Content-Length is read whole, whatever its size',
      find: 'if (length > bytesMax) {',
      replace: 'if (length > bytesMax && length < 0) {',
      caughtBy: caught('an answer that is too large to be kept passes through, though no Content-Length says so'),
    },
    {
      id: 'client: what was read of a large response is lost to the caller',
      find: 'const chunk = chunks.shift() ?? (await reader.read()).value',
      replace: 'const chunk = (await reader.read()).value',
      caughtBy: caught('an answer that is too large to be kept passes through, though no Content-Length says so'),
    },
  ]),
  ...bugsIn('src/client/client/answer.ts', 'client', [
    {
      id: 'client: waits for the end of an event stream',
      find: 'body: body && !isEndless ? await readUpTo(body, bytesMax) : body }',
      replace: 'body: body && (!isEndless || body) ? await readUpTo(body, bytesMax) : body }',
      caughtBy: caught('an event stream passes through from its first byte'),
    },
  ]),
  ...bugsIn('src/client/client/key-of.ts', 'client', [
    {
      id: 'client: keyOf makes another key than the server’s, as parts have no length in front',
      find: 'return [length, bytes]',
      replace: 'return [bytes]',
      caughtBy: caught('makes the id that the server’s keyOf makes, for every kind of part'),
    },
  ]),
  ...bugsIn('src/client/client/keyed-fetch.ts', 'client', [
    {
      id: 'client: keyedFetch leaves every operation pending',
      find: 'await response.settled()',
      replace: '',
      caughtBy: byLibraries('ky'),
    },
    {
      id: 'client: keyedFetch gives a key to what changes nothing',
      find: 'if (/^(GET|HEAD|OPTIONS)$/.test(request.method)) return fetch(request)',
      replace: '',
      caughtBy: byLibraries('what changes nothing has no key, through each of them'),
    },
  ]),
  ...bugsIn('src/client/client/browser-keys.ts', 'client', [
    {
      id: 'client: browser: the key is not in IndexedDB before the first attempt',
      find: 'if (record) records.put(record)',
      replace: 'if (record?.answer) records.put(record)',
      caughtBy: inBrowser(
        'the key is in IndexedDB before the first attempt, the page is reloaded in the middle, one charge',
      ),
    },
    {
      id: 'client: browser: the last tab to open wins',
      find: 'return standing ? undefined : record',
      replace: 'return standing && record.key === "" ? undefined : record',
      caughtBy: inBrowser(indexedDb),
    },
    {
      id: 'client: browser: a late save brings a removed record back',
      find: 'save: (record) => change(record.operation, (standing) => advance(standing, record)),',
      replace:
        'save: (record) => change(record.operation, (standing) => advance(standing ?? record, record) ?? record),',
      caughtBy: inBrowser(indexedDb),
    },
    {
      id: 'client: browser: remove does not look at the key',
      find: 'remove: (operation, key) => change(operation, (standing) => (standing?.key === key ? null : undefined)),',
      replace: 'remove: (operation, key) => change(operation, (standing) => (standing && key ? null : undefined)),',
      caughtBy: inBrowser(webStorage),
    },
    {
      id: 'client: browser: Web Storage lists the keys of other names',
      find: 'names.filter((each) => each.startsWith(prefix))',
      replace: "names.filter((each) => each.includes(':'))",
      caughtBy: inBrowser(webStorage),
    },
  ]),
  ...bugsIn('src/client/node/interceptor.ts', 'client', [
    {
      id: 'client: undici: an operation stays pending after its answer',
      find: 'await response.settled()',
      replace: '',
      caughtBy: byLibraries('undici: request, with a text and with a stream'),
    },
    {
      id: 'client: undici: a key for what changes nothing',
      find: 'if (/^(GET|HEAD|OPTIONS|CONNECT)$/.test(asked.method) || asked.upgrade) return dispatch(asked, handler)',
      replace: 'if (asked.upgrade) return dispatch(asked, handler)',
      caughtBy: byLibraries('what changes nothing has no key, through each of them'),
    },
    {
      id: 'client: undici: a response that breaks off counts as whole',
      find: 'receiving?.error(error)',
      replace: 'receiving?.close()',
      caughtBy: byLibraries(
        'undici: a response that breaks off after it was passed on is an error, and no second attempt',
      ),
    },
  ]),
  ...bugsIn('src/client/client/request.ts', 'client', [
    {
      id: 'client: Firefox sends no body',
      find: 'const { body = (await request.blob()).stream() } =',
      replace: 'const { body = null } =',
      caughtBy: caught('where a request has no `body`, as in Firefox, its bytes are sent all the same'),
    },
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
      find: 'return { open: (record) => cured(() => openIn(place, session, record)) }',
      replace: 'return { open: (record) => cured(() => openIn(place, session && database, record)) }',
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
