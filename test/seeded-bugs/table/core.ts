// Bugs in the idea itself: claims, leases, fences, waiting, transactions.

import { bugsIn, bySimulation, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inKeyFuzz = 'test/fuzz/keys.test.ts'
const inUnfit = 'test/http/unfit-stores.test.ts'
const inCodecs = 'test/codecs.test.ts'
const inOnce = 'src/core/once.test.ts'
const inLane = 'src/core/lane.test.ts'
const inSharedTimers = 'src/core/clock/shared-timers.test.ts'
const inTransaction = 'src/core/once/transaction.test.ts'
const inLeaks = 'test/leaks.test.ts'
const inAttempt = 'src/core/call/attempt.test.ts'
const inOutcome = 'src/core/outcome.test.ts'
const inFingerprint = 'src/core/fingerprint.test.ts'

const inReconcile = 'src/core/once/reconcile.test.ts'
const keysInDoubt: readonly SeededBug[] = bugsIn('src/core/once/reconcile.ts', 'claim, lease, fence', [
  {
    id: 'keys in doubt of HTTP are not listed',
    find: `  yield* doubtsIn(context, store, { service: scope })\n`,
    replace: '',
    caughtBy: byTest(inReconcile, 'keys of HTTP are in it with their tenant, those of others are not'),
  },
  {
    id: 'keys in doubt of another service are listed',
    find: `!scope.startsWith(service) || scope.charAt(service.length) > '/'`,
    replace: `!scope.startsWith(service)`,
    caughtBy: byTest(inReconcile, 'the walk ends with the last tenant'),
  },
  {
    id: 'a decision overrules the retry that took the key over',
    find: `if (name !== 'keep' && !(await holds(context, entry))) return 'passed'`,
    replace: '',
    caughtBy: byTest(inReconcile, 'a key that a retry takes over after it was looked at once more is passed over, too'),
  },
  {
    id: 'a key that a person released meanwhile stays held by the reconciler',
    find: `  await callStore(storeCalls, 'release', key, () => store.release(claim, 'forget'))\n`,
    replace: '',
    caughtBy: byTest(inReconcile, 'a key that was released meanwhile is given back as open'),
  },
  {
    id: 'what was reconciled is no event, and in no metric',
    find: `  publish('mended', key, { action: name })\n`,
    replace: '',
    caughtBy: byTest(inReconcile, 'each gets what was decided, audited with the reason, and a retry is told so'),
  },
  {
    id: 'what was reconciled is kept for no time',
    find: 'keepMs: entry.expiresAtMs - entry.leaseUntilMs,',
    replace: 'keepMs: 1,',
    caughtBy: byTest(inReconcile, 'what was reconciled is kept for as long as its entry says'),
  },
])

export const coreBugs: readonly SeededBug[] = [
  ...keysInDoubt,
  ...bugsIn('src/core/options.ts', 'claim, lease, fence', [
    {
      id: 'a manual change is audited with a reason of blanks, or one that no store can keep',
      find: `value.trim() !== '' && value.isWellFormed() && !value.includes('\\0')`,
      replace: `value !== ''`,
      caughtBy: byTest(inReconcile, 'without a reason, or with an unknown option, nothing is asked'),
    },
  ]),
  ...bugsIn('src/core/canonical-json.ts', 'claim, lease, fence', [
    {
      id: 'a request with an invalid Date has the fingerprint of one with null',
      find: 'if (isInvalidDate(value))',
      replace: 'if (false)',
      caughtBy: byTest(inFingerprint, 'canonical JSON refuses by name and place'),
    },
  ]),
  ...bugsIn('src/core/once/run.ts', 'claim, lease, fence', [
    {
      id: 'an attempt that was fenced off still answers with its value',
      find: `  if (fenced === 'lost') throw claimLost(held.claim, call.settings, { cause: plan.thrown })\n`,
      replace: '',
      caughtBy: bySimulation('same-answer'),
    },
    {
      id: 'the answer is given before the outcome is settled',
      find: '  try {\n    fenced = await held.settle(stored.bytes, retention, plan.by)',
      replace:
        "  try {\n    fenced = 'done' as string\n    void held.settle(stored.bytes, retention, plan.by).catch(() => {})",
      caughtBy: bySimulation('answer-after-settle'),
    },
    {
      id: 'the key of an effect that hangs is given back while it still runs',
      find: `if (ended.is === 'hung') return { do: 'left-to-lease', thrown }`,
      replace: `if (ended.is === 'hung') return { do: 'open', thrown }`,
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'an effect that is in doubt is given back as if it had failed',
      find: `if (thrown instanceof InDoubtError || settings.onThrow === 'doubt')`,
      replace: `if (settings.onThrow === 'doubt')`,
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'a failure forgets the attempt instead of opening the key',
      find: `return { do: 'open', thrown }`,
      replace: `return { do: 'forget', thrown }`,
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'a final failure is not stored, and runs again',
      find: `if (thrown instanceof FinalError) return { do: 'settle', outcome: { kind: 'failure', error: thrown }, thrown }\n`,
      replace: '\n',
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'a process that stood still starts the effect although its lease is over',
      find: '  if (mayHaveEnded(context, call.settings, askedMs)) await stillHeld(context, verdict.claim, call.settings, askedMs)\n',
      replace: '',
      caughtBy: byTest(
        inOnce,
        'a process that stood still from asking until its lease was over does not start what another has taken',
      ),
    },
    {
      id: 'the first caller is given its own object and every replay the stored one',
      find: 'const { outcome } = stored',
      replace: 'const { outcome } = plan',
      caughtBy: byTest(inOnce, 'the first caller is given what every replay is given'),
    },
    {
      id: 'what an effect came to is in what is logged',
      find: 'kind: outcome.kind, durationMs',
      replace: 'kind: outcome.kind, ...{ outcome }, durationMs',
      caughtBy: byTest(inOnce, 'the life of a key is told, with a hash and never with the key or the value'),
    },
    {
      id: 'a release is not awaited: the caller is told before its key is free',
      find: `if (plan.do !== 'left-to-lease') await held.release(plan.do).catch(() => {})`,
      replace: `if (plan.do !== 'left-to-lease') void held.release(plan.do).catch(() => {})`,
      caughtBy: byTest(inAttempt, 'a caller is told of a failure after its key is free again'),
    },
    {
      id: 'a heartbeat outlives an attempt that was left to its lease',
      find: '    held.stop()\n    calls.wake(call)',
      replace: '    calls.wake(call)',
      caughtBy: bySimulation('quiet-after-end'),
    },
  ]),
  ...bugsIn('src/core/errors.ts', 'claim, lease, fence', [
    {
      id: 'a change whose reason could not be put on record is told as one that may have been made',
      find: "executed: 'no', retryable, cause",
      replace: "executed: 'unknown', retryable, cause",
      caughtBy: byTest(
        'src/core/once/on-record.test.ts',
        'a reason that may not be on record is told as no change, and none is made',
      ),
    },
  ]),
  ...bugsIn('src/core/call/claim.ts', 'claim, lease, fence', [
    {
      id: 'a caller whose effect never began is told that it may have run, as it was not told whether it holds its key',
      find: 'await asking.catch((cause: unknown) => Promise.reject(asNotBegun(cause, why)))',
      replace: 'await asking',
      caughtBy: byTest(
        'src/core/once.test.ts',
        'a process that stood still and is not told whether it still holds its key has run nothing: the reply was lost',
      ),
    },
    {
      id: 'the token is the name of the process',
      find: 'this.#request = { ...call.request, token: context.random.uuid() }',
      replace: "this.#request = { ...call.request, token: '00000000-0000-4000-8000-000000000001' }",
      caughtBy: bySimulation('one-execution-a-claim'),
    },
    {
      id: 'a store that does not answer runs the effect all the same',
      find: 'return this.start(() => this.#asking.ask(this.#context, this.#key, this.#request), nowMs)',
      replace: `const claim = { key: this.#key, token: this.#request.token, attempt: 1, fence: 1 }
    const granted = { is: 'granted', how: 'fresh', claim } as never
    return this.start(() => this.#asking.ask(this.#context, this.#key, this.#request), nowMs).catch(() => granted)`,
      caughtBy: bySimulation('claim-before-effect'),
    },
    {
      id: 'a claim that nobody heard of blocks its key for a lease',
      find: `    if (error.code === 'STORE_UNAVAILABLE') this.#disown()\n`,
      replace: '',
      caughtBy: byTest(inOnce, 'a claim that landed although its reply was lost does not block the key'),
    },
    {
      id: 'a claim that lands late is kept by nobody',
      find: `    if (verdictOf(answer).is === 'granted') this.#disown(answer)\n`,
      replace: '',
      caughtBy: byTest(inOnce, 'a claim that lands after its caller gave up is released when it does'),
    },
  ]),
  ...bugsIn('src/core/call.ts', 'claim, lease, fence', [
    {
      id: 'a result that a person gave is upgraded from the version of the attempt in doubt',
      find: 'const version = versionOf(verdict.outcome, verdict.version)',
      replace: 'const { version } = verdict',
      caughtBy: byTest(
        inOnce,
        'a result that a person gave has the version of the code that gave it, not that of the attempt in doubt',
      ),
    },
    {
      id: 'no fingerprint is taken of what is asked',
      find: 'fingerprint(runOptions.fingerprint)',
      replace: 'fingerprint(undefined)',
      caughtBy: bySimulation('own-answer'),
    },
    {
      id: 'nobody wakes the duplicates when the effect ends',
      find: '      if (waiting.isAnyWaiting()) waiting.wake(call.group)\n',
      replace: '',
      caughtBy: byTest(inOnce, 'the end of a local effect wakes its duplicates without a poll'),
    },
    {
      id: 'an expired key says nothing about itself and is replayed as undefined',
      find: `      if (verdict.is === 'settled') return replay(call, verdict, startedMs)`,
      replace: `      if (verdict.is === 'settled') return replay(call, verdict, startedMs)\n      if (verdict.is === 'expired') return { value: undefined as never, replayed: true, attempt: 1 }`,
      caughtBy: byTest(
        inOnce,
        'after keepMs a retry is told EXPIRED and nothing runs; after the tombstone the key is new',
      ),
    },
  ]),
  // Each of these shows itself only in schedules where a person resolves or keeps keys, processes have different times, or a codec seals.
  ...bugsIn('src/core/entry.ts', 'claim, lease, fence', [
    {
      id: 'a result given by hand leaves the fence to the holder that it pushed out',
      find: 'outcome, fence: at.fence, leaseUntilMs',
      replace: 'outcome, leaseUntilMs',
      caughtBy: bySimulation('fence-grows'),
    },
    {
      id: 'what is kept for no time is still there at that moment',
      find: 'nowMs >= forgottenAtMs(entry)) return undefined',
      replace: 'nowMs > forgottenAtMs(entry)) return undefined',
      caughtBy: byTest(
        'src/stores/memory/contract.test.ts',
        'a later attempt that is settled and kept for no time is gone at once: it is not due, and the next claim is the first',
      ),
    },
    {
      id: 'a keep by hand makes a key expire earlier',
      find: 'keepMs: Math.max(entry.keepMs, at.nowMs + action.keepMs - entry.leaseUntilMs)',
      replace: 'keepMs: at.nowMs + action.keepMs - entry.leaseUntilMs',
      caughtBy: bySimulation('live-kept'),
    },
    {
      id: 'a later attempt keeps the retention of the first one',
      find: '    keepMs: request.retention.keepMs,',
      replace: '    keepMs: before?.keepMs ?? request.retention.keepMs,',
      caughtBy: bySimulation('linearizable'),
    },
  ]),
  ...bugsIn('src/core/call.ts', 'claim, lease, fence', [
    {
      id: 'a replay is read without the codec',
      find: 'decodeOutcome(verdict.outcome, options.codec, call.key)',
      replace: 'decodeOutcome(verdict.outcome, undefined, call.key)',
      caughtBy: bySimulation('no-wedge'),
    },
  ]),
  ...bugsIn('src/core/call/waiting.ts', 'claim, lease, fence', [
    {
      id: 'a duplicate that has its answer leaves its timer',
      find: '      cancelTimer()\n      leave(',
      replace: '      leave(',
      caughtBy: byTest(inLeaks, 'duplicates that wait, and give up waiting, leave no timer and no memory', 'time'),
    },
    {
      id: 'a group of duplicates is kept when all of them have gone',
      find: '    if (group.members.size === 0 && groups.get(name) === group) groups.delete(name)\n',
      replace: '',
      caughtBy: byTest(inLeaks, 'duplicates that wait, and give up waiting, leave no timer and no memory', 'time'),
    },
    {
      id: 'a grant is told to every duplicate that waits',
      find: `if (asked.verdict.is !== 'granted') {`,
      replace: `if (asked.verdict.is) {`,
      caughtBy: bySimulation('one-execution-a-claim'),
    },
    {
      id: 'a leader that leaves hands the lead to nobody',
      find: `      group.leader?.answer('lead')\n`,
      replace: '',
      caughtBy: byTest(
        inOnce,
        'when the first is released, exactly one waiter takes over and the others get its outcome',
      ),
    },
    {
      id: 'every duplicate polls for itself',
      find: '      if (group.leader) {',
      replace: '      if (group.leader === member) {',
      caughtBy: byTest(inOnce, 'a thousand local duplicates share one wait, not a thousand polls'),
    },
  ]),
  ...bugsIn('src/core/call/attempt.ts', 'claim, lease, fence', [
    {
      id: 'a heartbeat outlives the deadline of its effect',
      find: '    this.stop()\n    return deadlinePassed',
      replace: '    return deadlinePassed',
      caughtBy: bySimulation('quiet-after-end'),
    },
    {
      id: 'a settle that nobody confirmed is taken for done',
      find: 'if (fenced !== undefined) return fenced',
      replace: `return fenced ?? 'done'`,
      caughtBy: bySimulation('answer-after-settle'),
    },
    {
      id: 'a settle whose reply was lost is not repeated',
      find: '  const writing = repeat(context, ask, untilMs)\n',
      replace: '  const writing = Promise.resolve(untilMs < 0 ? await ask() : undefined)\n',
      caughtBy: byTest(inOnce, 'a settle whose reply is lost is repeated and recognised'),
    },
    {
      id: 'a settle is given up at half a lease',
      find: 'const untilMs = beganMs + Math.max(settings.leaseMs, storeCalls.timeoutMs)',
      replace: 'const untilMs = beganMs + Math.max(settings.leaseMs / 2, storeCalls.timeoutMs)',
      caughtBy: byTest(inAttempt, 'a settle that is not confirmed is repeated until its lease ends'),
    },
    {
      id: 'close does not wait for a settle that is not confirmed',
      find: '  context.background(writing)\n',
      replace: '  writing.catch(() => {})\n',
      caughtBy: byTest(inAttempt, 'close waits for a settle that is not confirmed, and goes on repeating it'),
    },
    {
      id: 'close drops a settle that is not confirmed',
      find: '  const writing = repeat(context, ask, untilMs)\n',
      replace: `  const dropped = new Promise<undefined>((resolve) =>
    context.closing.addEventListener('abort', () => resolve(undefined)),
  )
  const given = (): Promise<Result> => (context.closing.aborted ? new Promise(() => {}) : ask())
  const writing = Promise.race([repeat(context, given, untilMs), dropped])\n`,
      caughtBy: byTest(inAttempt, 'close waits for a settle that is not confirmed, and goes on repeating it'),
    },
  ]),
  ...bugsIn('src/core/call/heartbeat.ts', 'claim, lease, fence', [
    {
      id: 'a heartbeat that is stopped leaves its timer',
      find: '    this.#isStopped = true\n    this.cancel()\n',
      replace: '    this.#isStopped = true\n',
      caughtBy: byTest(inLeaks, 'calls of once leave no timer and no memory', 'time'),
    },
    {
      id: 'a heartbeat that is told that the claim is lost goes on',
      find: `    if (fenced === 'lost') return this.#end('lost')\n`,
      replace: '',
      caughtBy: bySimulation('told-when-lost'),
    },
    {
      id: 'there is no heartbeat',
      find: 'return this.#holder.settings.leaseMs / 3',
      replace: 'return this.#holder.settings.leaseMs * 300',
      caughtBy: bySimulation('calm-is-free'),
    },
    {
      id: 'a lease that ran out in silence is not noticed',
      find: `    if (this.#leftMs < 1) return this.#end('silent')\n`,
      replace: '',
      caughtBy: bySimulation('told-when-lost'),
    },
  ]),
  ...bugsIn('src/core/call/effect.ts', 'claim, lease, fence', [
    {
      id: 'an effect that has ended leaves the timer of its deadline',
      find: '    this.#hasEnded = true\n    this.cancel()\n',
      replace: '    this.#hasEnded = true\n',
      caughtBy: byTest(inLeaks, 'calls of once leave no timer and no memory', 'time'),
    },
    {
      id: 'an effect that ignores its signal hangs its caller',
      find: '      this.set(this.#clock, this.#holder.settings.leaseMs)\n',
      replace: '',
      caughtBy: bySimulation('everybody-answered'),
    },
    {
      id: 'every attempt hands another key to the systems behind it',
      find: 'return (name) => deriveKey(this.key, name)',
      replace: 'return (name) => deriveKey({ ...this.key, id: this.token }, name)',
      caughtBy: bySimulation('same-derived-key'),
    },
    {
      id: 'the signal of an effect that lost its claim does not abort',
      find: '    this.#controller?.abort(error)\n',
      replace: '',
      caughtBy: bySimulation('told-when-lost'),
    },
  ]),
  ...bugsIn('src/core/timed-call.ts', 'claim, lease, fence', [
    {
      id: 'a change by hand that the store did not answer is said not to be made',
      find: `['mend', 'session']`,
      replace: `['session']`,
      caughtBy: byTest(
        'src/core/timed-call.test.ts',
        'that changes something for a person or a client may have done it: mend',
      ),
    },
    {
      id: 'a call of the store that was answered leaves its timer',
      find: '  protected answered(answer: T): void {\n    this.cancel()\n',
      replace: '  protected answered(answer: T): void {\n',
      caughtBy: byTest(inLeaks, 'calls of once leave no timer and no memory', 'time'),
    },
    {
      id: 'a store that never answers hangs its caller',
      find: '    this.#isOver = true\n',
      replace: '    if (!this.#isOver) return\n',
      caughtBy: bySimulation('everybody-answered'),
    },
  ]),
  ...bugsIn('src/core/outcome.ts', 'claim, lease, fence', [
    {
      id: 'a value of which JSON leaves nothing is stored as {}',
      find: 'if (!found && !isEmptied(member)) return',
      replace: 'if (!found) return',
      caughtBy: byTest(inOutcome, 'a ReadableStream in "s" cannot be stored as JSON'),
    },
    {
      id: 'an invalid Date is stored as null',
      find: 'if (member === null && isInvalidDate(this[name]))',
      replace: 'if (isInvalidDate(member))',
      caughtBy: byTest(inOutcome, 'an invalid Date in "at" cannot be stored as JSON'),
    },
    {
      id: 'a boxed NaN or Infinity is stored as null',
      find: `(typeof member === 'number' || member instanceof Number)`,
      replace: `typeof member === 'number'`,
      caughtBy: byTest(inOutcome, 'Infinity in "0" cannot be stored as JSON'),
    },
    {
      id: 'the first caller is given -0 and every replay 0',
      find: 'Number.isFinite(value) ? value + 0 : notPlain',
      replace: 'Number.isFinite(value) ? value : notPlain',
      caughtBy: byTest(inOutcome, 'the first caller is given exactly what every replay is given'),
    },
    {
      id: 'what has a JSON form of its own is stored without it',
      find: ` || 'toJSON' in value) return notPlain`,
      replace: `) return notPlain`,
      caughtBy: byTest(inOutcome, 'what is stored of a value with a form of its own is that form'),
    },
    {
      id: 'a member called __proto__ becomes the prototype of what the first caller is given',
      find: ` || name === '__proto__') return notPlain`,
      replace: `) return notPlain`,
      caughtBy: byTest(inOutcome, 'a member called __proto__ is stored, and stays a member'),
    },
    {
      id: 'what a codec returns that is no bytes is stored',
      find: "if (Object.prototype.toString.call(bytes) === '[object Uint8Array]') return",
      replace: 'if (bytes !== null) return',
      caughtBy: byTest(inOutcome, 'encode of the codec returned a string'),
    },
  ]),
  ...bugsIn('src/core/once/transaction.ts', 'transactions', [
    {
      id: 'a refusal that cannot be stored is committed with the writes that led to it',
      find: "if (outcome.kind === 'failure' && stored.outcome.kind === 'not-stored') {",
      replace: "if (outcome.kind === 'failure' && stored.outcome.kind === 'value') {",
      caughtBy: byTest(inTransaction, 'a FinalError that cannot be stored takes effect and claim back, and says so'),
    },
  ]),
  ...bugsIn('src/core/settings.ts', 'claim, lease, fence', [
    {
      id: 'a misspelt option of a call is taken for one that changes nothing',
      find: '!Object.hasOwn(callRules, name) || (',
      replace: 'Object.hasOwn(callRules, name) && (',
      caughtBy: byTest(inOnce, 'a misspelt option'),
    },
    {
      id: 'a call with a lease of its own has the deadline of the default lease',
      find: 'const fitting = Math.max(settings.attemptMs, (options.leaseMs ?? 0) * leasesPerAttempt)',
      replace: 'const fitting = settings.attemptMs',
      caughtBy: byTest(inAttempt, 'a call with a lease of its own has a deadline that fits it'),
    },
    {
      id: 'a longer lease of a call moves the deadline that createOnce was given',
      find: 'const attemptMs = once.options.attemptMs ?? fitting',
      replace: 'const attemptMs = fitting',
      caughtBy: byTest(
        inAttempt,
        'a deadline that createOnce was given holds for a call with a longer lease of its own',
      ),
    },
  ]),
  ...bugsIn('src/core/clock.ts', 'claim, lease, fence', [
    {
      id: 'a sleep that is over leaves its listener on the signal',
      find: "      signal?.removeEventListener('abort', done)\n",
      replace: '',
      caughtBy: byTest(
        inLeaks,
        'a store that fails leaves nothing of its retries, and a claim that nobody heard of nothing of its release',
        'time',
      ),
    },
  ]),
  ...bugsIn('src/core/once.ts', 'claim, lease, fence', [
    {
      id: 'what went on in the background is kept for ever',
      find: 'work.catch(() => {}).finally(() => backgroundWork.delete(tracked))',
      replace: 'work.catch(() => {})',
      caughtBy: byTest(
        inLeaks,
        'a store that fails leaves nothing of its retries, and a claim that nobody heard of nothing of its release',
        'time',
      ),
    },
  ]),
  ...bugsIn('src/core/timed-call.ts', 'claim, lease, fence', [
    {
      id: 'a store without tables is a 503 with nothing in any log',
      find: '    if (isUnfit(error)) tellUnfit(this.calls, this.#key, error)\n',
      replace: '',
      caughtBy: byTest(
        inUnfit,
        'a fault that lasts is told again after an hour, and a key that the message names is left out',
      ),
    },
    {
      id: 'the warning of a store that cannot be used names the key',
      find: "key ? error.message.replaceAll(describeKey(key), 'a key') : error.message",
      replace: 'error.message',
      caughtBy: byTest(
        inUnfit,
        'a fault that lasts is told again after an hour, and a key that the message names is left out',
      ),
    },
  ]),
  ...bugsIn('src/core/once/ready.ts', 'claim, lease, fence', [
    {
      id: 'a look at the store that was given up leaves its key claimed',
      find: ', (late) => background(forget(late))',
      replace: '',
      caughtBy: byTest(
        inUnfit,
        'a look at the store leaves nothing there, also when the store grants the claim after the look was given up',
      ),
    },
  ]),
  ...bugsIn('src/http/fastify.ts', 'http', [
    {
      id: 'an app on Fastify starts on a store that cannot serve a request',
      find: "    instance.addHook('onReady', () => exchange.checkStore())\n",
      replace: '',
      caughtBy: byTest(inUnfit, 'Fastify does not start on a store that only a person can mend'),
    },
  ]),
  ...bugsIn('src/http/exchange.ts', 'http', [
    {
      id: 'no app starts while its store is down',
      find: 'if (isUnfit(error)) throw error',
      replace: 'throw error',
      caughtBy: byTest(inUnfit, 'Fastify starts on a store that is down for a moment or in quarantine'),
    },
  ]),
  ...bugsIn('src/stores/redis/scripts.ts', 'claim, lease, fence', [
    {
      id: 'a wrong password of Redis is told as passing',
      find: '(NOAUTH|WRONGPASS|NOPERM)',
      replace: '(NOAUTH|NOPERM)',
      caughtBy: byTest(inUnfit, 'with a wrong password'),
    },
  ]),
  ...bugsIn('src/core/once/sweeping.ts', 'claim, lease, fence', [
    {
      id: 'expiry never runs',
      find: 'for (let more = true; more && !closing.aborted;) {',
      replace: 'for (let more = false; more && !closing.aborted;) {',
      caughtBy: byTest(inOnce, 'sweepEveryMs expires entries in the background, until close'),
    },
    {
      id: 'the background sweep does one step a round',
      find: 'more = swept.more',
      replace: 'more = false',
      caughtBy: byTest(inOnce, 'removes every expired entry within a minute, in as many steps as it takes'),
    },
    {
      id: 'the background sweep goes on after close',
      find: 'more && !closing.aborted;) {',
      replace: 'more;) {',
      caughtBy: byTest(inOnce, 'stops with close(), also between two steps, and leaves no timer'),
    },
    {
      id: 'nothing sweeps unless asked',
      find: 'if (everyMs === false) return',
      replace: 'if (everyMs === false || everyMs === undefined) return',
      caughtBy: byTest(inOnce, 'removes every expired entry within a minute, in as many steps as it takes'),
    },
    {
      id: 'every process of a fleet sweeps every minute, found or not',
      find: '    idleRounds++\n',
      replace: '',
      caughtBy: byTest(
        inOnce,
        'a process that finds nothing asks less and less often, and after a find every minute again',
      ),
    },
  ]),
  ...bugsIn('src/core/options.ts', 'claim, lease, fence', [
    {
      id: 'a Node that is too old claims the key and fails after it',
      find: '  checkNodeVersion()\n',
      replace: '',
      caughtBy: byTest(
        'src/core/options/node-version.test.ts',
        'a store and createOnce refuse, and name both versions',
      ),
    },
  ]),
  ...bugsIn('src/core/outcome.ts', 'claim, lease, fence', [
    {
      id: 'a codec is handed bytes, and a codec of JSON never gives them back',
      find: 'if (!(value instanceof Uint8Array)) return',
      replace: 'if (codec) return',
      caughtBy: byTest(inCodecs, 'JSON is replayed byte for byte, and none of it is readable on disk'),
    },
    {
      id: 'bytes are stored past the codec',
      find: 'const bytes = codec ? byCodec(codec, value)',
      replace: 'const bytes = codec && !(value instanceof Uint8Array) ? byCodec(codec, value)',
      caughtBy: byTest(
        inCodecs,
        'bytes: the first caller and every replay get the same, and none of it is readable on disk',
      ),
    },
    {
      id: 'a failure is stored past the codec',
      find: "    if (codec) {\n      const bytes = tagged('codecFailure', encodedBy(codec, failure))",
      replace:
        "    if (false as boolean && codec) {\n      const bytes = tagged('codecFailure', encodedBy(codec, failure))",
      caughtBy: byTest(inCodecs, 'a failure, its message and its data, in run, transaction and resolve'),
    },
  ]),
  ...bugsIn('src/core/operations/records.ts', 'operations', [
    {
      id: 'what errors said in an operation is stored past the codec',
      find: 'if (!codec || codec === opaqueCodec || (error',
      replace: 'if (codec || (error',
      caughtBy: byTest(inCodecs, 'inputs and results of steps, and what errors said in steps'),
    },
    {
      id: 'a person without the codec destroys what is sealed',
      find: 'if (head.sealed === undefined || !codec || codec === opaqueCodec) return head',
      replace:
        'if (head.sealed === undefined || !codec || codec === opaqueCodec) return { ...head, sealed: undefined }',
      caughtBy: byTest(inCodecs, 'inputs and results of steps, and what errors said in steps'),
    },
  ]),
  ...bugsIn('src/core/key.ts', 'claim, lease, fence', [
    {
      id: 'a derived key forgets the scope: two tenants share it',
      find: `uuidOf(['keyFor', parent.scope, parent.id, name])`,
      replace: `uuidOf(['keyFor', parent.id, name])`,
      caughtBy: byTest('src/core/key.test.ts', 'a derived key depends on scope, id and name'),
    },
    {
      id: 'parts of a key run into each other',
      find: 'return [length, bytes]',
      replace: 'return [bytes]',
      caughtBy: byTest(inKeyFuzz, 'no parts of a key imitate the frame between them'),
    },
    {
      id: 'a key is trimmed',
      find: 'return Object.freeze({ scope, id })',
      replace: 'return Object.freeze({ scope, id: id.trim() })',
      caughtBy: byTest('src/core/key.test.ts', 'a key keeps every byte: nothing is trimmed, folded or truncated'),
    },
  ]),
  ...bugsIn('src/core/fingerprint.ts', 'claim, lease, fence', [
    {
      id: 'a text and the bytes of it have one fingerprint',
      find: '`text\\n${asked}`',
      replace: '`bytes\\n${asked}`',
      caughtBy: byTest('src/core/fingerprint.test.ts', 'bytes, text, JSON and nothing never meet'),
    },
  ]),
  ...bugsIn('src/core/events.ts', 'claim, lease, fence', [
    {
      id: 'the key is in what is logged',
      find: 'keyHash: key && hashKey(key)',
      replace: 'keyHash: key && `${key.scope}/${key.id}`',
      caughtBy: byTest(inOnce, 'the life of a key is told, with a hash and never with the key or the value'),
    },
  ]),
  ...bugsIn('src/core/outcome.ts', 'claim, lease, fence', [
    {
      id: 'an outcome that cannot be read is replayed as nothing',
      find: "      throw new Error(`it begins with byte ${stored[0] ?? 'none'}, which no version of onceonly writes`)",
      replace: `      return { kind: 'value', value: undefined }`,
      caughtBy: byTest(inOnce, 'unreadable stored data is an error, never a second run'),
    },
  ]),
  ...bugsIn('src/core/lane.ts', 'claim, lease, fence', [
    {
      id: 'one dispatch of a lane takes all that wait, and the free ones have nothing to do',
      find: 'Math.max(batchMin, Math.ceil(waiting.length / free))',
      replace: 'Math.max(batchMax, Math.ceil(waiting.length / free))',
      caughtBy: byTest(inLane, 'more requests than batchMin are shared among the dispatches that are free'),
    },
    {
      id: 'what a lane has gathered in a turn waits for another call',
      find: '    isGathering = isTurnUnderWay = false\n    drain()\n',
      replace: '    isGathering = isTurnUnderWay = false\n',
      caughtBy: byTest(
        inLane,
        'a lane that gathers turns sends the first request of a turn at once, and those after it together at its end',
      ),
    },
    {
      id: 'a dispatch of a lane that ends sends a part of what a turn gathers',
      find: 'waiting.length >= (isGathering ? batchMin : 1)',
      replace: 'waiting.length >= (isGathering && waiting.length === 1 ? batchMin : 1)',
      caughtBy: byTest(inLane, 'a lane that gathers turns sends no part of a turn because a dispatch has ended'),
    },
  ]),
  ...bugsIn('src/core/clock/shared-timers.ts', 'claim, lease, fence', [
    {
      id: 'a limit that is cancelled keeps those that came after it from being collected',
      find: '    limit.after = undefined\n    if (!this.#first)',
      replace: '    if (!this.#first)',
      caughtBy: byTest(inSharedTimers, 'a cancelled limit knows nothing of its neighbours'),
    },
    {
      id: 'a limit that is cancelled twice brings its old neighbour back',
      find: '    limit.isSet = false\n',
      replace: '',
      caughtBy: byTest(
        inSharedTimers,
        'a cancelled limit does not end, whether it is the first, the last or between two others',
      ),
    },
    {
      id: 'a limit that throws keeps all later ones from ending',
      find: '      else this.#timer = setTimeout(() => this.#fire(), Math.max(1, this.#first.dueMs - nowMs))\n    }',
      replace:
        '    }\n    if (this.#first) this.#timer = setTimeout(() => this.#fire(), Math.max(1, this.#first.dueMs - nowMs))',
      caughtBy: byTest(inSharedTimers, 'a limit whose function throws does not keep the others from ending'),
    },
    {
      id: 'a list of limits is kept for ever',
      find: 'if (!this.#first) lists.delete(this.#delayMs)',
      replace: 'if (!this.#first) this.#timer = setTimeout(() => this.#fire(), this.#delayMs)',
      caughtBy: byTest(
        inSharedTimers,
        'after a thousand cancelled limits one timer is left, and none once their length has passed',
      ),
    },
    {
      id: 'a cancelled limit keeps the process alive',
      find: '    if (!this.#first) this.#timer.unref()\n',
      replace: '',
      caughtBy: byTest(inSharedTimers, 'a limit that is set keeps the process alive, a cancelled one does not'),
    },
  ]),
]

export const transactionBugs: readonly SeededBug[] = bugsIn('src/core/once/transaction.ts', 'transactions', [
  {
    id: 'a run begins beside another effect in its transaction',
    find: `const leave = enter(tx, call.key)\n        try {\n          return await runWithin(`,
    replace: `const leave = (): void => {}\n        try {\n          return await runWithin(`,
    caughtBy: byTest(
      'src/core/once/transaction.test.ts',
      'two runs that overlap on one transaction: the second is refused when it begins',
    ),
  },
  {
    id: 'runSync begins beside another effect in its transaction',
    find: `const leave = enter(tx, call.key)\n        try {\n          return runWithinSync(`,
    replace: `const leave = (): void => {}\n        try {\n          return runWithinSync(`,
    caughtBy: byTest(
      'src/core/once/transaction.test.ts',
      'runSync is refused while another effect runs in its transaction, nested or beside it',
    ),
  },
  {
    id: 'a commit that nobody confirmed is told as not executed',
    find: `    throw new OnceError('OUTCOME_UNKNOWN', {\n      message:\n        \`The transaction`,
    replace: `    throw new OnceError('STORE_UNAVAILABLE', {\n      message:\n        \`The transaction`,
    caughtBy: bySimulation('not-executed-left-nothing'),
  },
  {
    id: 'a COMMIT that nobody answered is taken for done',
    find: `    return await bounded(context.storeCalls, () => granted.commit(stored.bytes, call.request.retention))\n`,
    replace: `    return await bounded(context.storeCalls, () => granted.commit(stored.bytes, call.request.retention)).catch(() => 'done' as const)\n`,
    caughtBy: bySimulation('answer-has-effect'),
  },
  {
    id: 'a final failure is committed together with the writes that led to it',
    find: `    if (stored.outcome.kind === 'failure') await bounded(context.storeCalls, () => granted.undoEffect())\n`,
    replace: '',
    caughtBy: bySimulation('transaction-once'),
  },
  {
    id: 'a serialization failure is thrown at the caller instead of tried again',
    find: `      if (!store.isConflict(error)) throw error\n`,
    replace: `      throw error\n`,
    caughtBy: byTest(inTransaction, 'a conflict with others is tried again, as the rollback took the effect along'),
  },
  {
    id: 'a serialization failure is stored as the answer',
    find: `(call.settings.onThrow === 'store' && !isConflict)`,
    replace: `call.settings.onThrow === 'store'`,
    caughtBy: byTest(
      inTransaction,
      'a conflict that the effect lets out is tried again, and never stored as its answer',
    ),
  },
  {
    id: 'a commit that was lost is answered as done',
    find: `if ((await commit(context, call, granted, stored)) === 'lost') throw lostInTransaction(call.key)`,
    replace: `await commit(context, call, granted, stored)`,
    caughtBy: bySimulation('answer-has-effect', 20_000),
  },
  {
    id: 'the transaction of an effect that still runs goes back to the pool',
    find: `ended.is === 'hung' ? 'abandon' : 'rollback'`,
    replace: `ended.is === 'hung' ? 'rollback' : 'rollback'`,
    caughtBy: byTest(
      inTransaction,
      'an effect that hangs past its deadline is rolled back, and what it writes later reaches nobody',
    ),
  },
  {
    id: 'any throw is stored as the answer of a transaction',
    find: `return store ? { kind: 'failure', error: failureOf(ended.thrown) } : undefined`,
    replace: `return store || ended.thrown ? { kind: 'failure', error: failureOf(ended.thrown) } : undefined`,
    caughtBy: byTest(inTransaction, 'a throw takes effect and claim back'),
  },
  {
    id: 'a transaction that began too late is left open',
    find: `      if (late?.granted) await rollBack(context, late.granted, 'rollback')\n`,
    replace: '',
    caughtBy: bySimulation('no-wedge'),
  },
  {
    id: 'a rollback that is never answered hangs the caller',
    find: '    await bounded(context.storeCalls, () => granted[how]())',
    replace: '    await granted[how]()',
    caughtBy: byTest(inTransaction, 'a rollback that is never answered hangs nobody, and the connection is cut off'),
  },
])
