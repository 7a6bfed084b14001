// Bugs in operations: steps, undos, records.

import { bugsIn, byOperations, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inMemory = 'src/stores/memory/contract.test.ts'
const inSteps = 'src/core/operations/steps.test.ts'
const inUndo = 'src/core/operations/undo.test.ts'
const inDoubts = 'src/core/operations/doubts.test.ts'
const inLeaks = 'src/core/leaks.test.ts'
const inWorker = 'src/core/operations/worker.test.ts'
const notOpened =
  'by a store that opens no transaction says nothing of the undo: nothing is stuck, and the next attempt goes on'
const provesNothing = 'proves nothing of the code: nothing is stuck, its error is told, and the next attempt goes on'
const pausesGrow = 'waits longer each time, up to the most of its back-off, and anew after a person has resumed it'
const lookedUp = 'on the way back a step in doubt is looked up by its own key, and what was found is undone as done'

export const operationBugs: readonly SeededBug[] = [
  ...bugsIn('src/core/operations/resume.ts', 'operations', [
    {
      id: 'an operation that a person has resumed pauses on its way back as if nobody had',
      find: ' interruptions: _interruptions,',
      replace: '',
      caughtBy: byTest(inUndo, pausesGrow),
    },
    {
      id: 'a worker that cannot see what it was granted keeps the key for a lease',
      find: `      context.runtime.background(inStore(context, 'release', claim.key, () => context.store.release(claim, 'open')))\n`,
      replace: '',
      caughtBy: byTest(
        inWorker,
        'a worker that cannot see what it was granted gives it back: a retry need not wait for its lease',
      ),
    },
    {
      id: 'a worker takes up what a newer version began, again and again',
      find: `  if (entry.version > context.definition.version) return 'newer'\n`,
      replace: '',
      caughtBy: byTest(
        'src/core/operations/versions.test.ts',
        'a worker leaves what a newer version began as it is, and counts no attempt',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/undo.ts', 'operations', [
    {
      id: 'a store that opens no transaction for an undo leaves it stuck',
      find: '(isOpen ? Promise.reject(error as Error) : interrupted(error))',
      replace: 'Promise.reject(error as Error)',
      caughtBy: byTest(inUndo, notOpened),
    },
    {
      id: 'a store that opens no transaction for an undo ends the attempt at once',
      find: '      if (error instanceof Interruption) interruption = error\n',
      replace: '      if (error instanceof Interruption) throw error.cause\n',
      caughtBy: byTest(inUndo, 'for less than the tries of an undo take ends in the same attempt'),
    },
    {
      id: 'an undo that was tried between two interruptions is stuck',
      find: '      if (error instanceof Interruption) interruption = error\n',
      replace: '      interruption = error instanceof Interruption ? error : undefined\n',
      caughtBy: byTest(inUndo, 'between two tries of its undo is not stuck: only an undo all of whose tries failed is'),
    },
    {
      id: 'a way back that no retry cures is tried again and again',
      find: '(isForGood(cause) ? (cause as Error) : new Interruption(cause))',
      replace: '(new Interruption(cause))',
      caughtBy: byTest(inUndo, 'by what no retry cures is left to a person at once (the store cannot do it)'),
    },
    {
      id: 'a lookup that fails on the way back leaves the undo stuck',
      find: 'await lookAgain(context, asked, before).catch(interrupted)',
      replace: 'await lookAgain(context, asked, before)',
      caughtBy: byTest(inUndo, 'by a lookup that fails says nothing of the undo, and the next attempt looks again'),
    },
    {
      id: 'a lookup that fails on the way back is taken for a try of the undo, as the simulation sees it',
      find: 'await lookAgain(context, asked, before).catch(interrupted)',
      replace: 'await lookAgain(context, asked, before)',
      caughtBy: byOperations('undo-tried'),
    },
    {
      id: 'a claim that is lost when an undo begins is taken for an interruption',
      find: 'const cause = error instanceof Interruption ? error.cause : error\n',
      replace: 'const cause = error\n',
      caughtBy: byTest(inUndo, 'by a claim that is lost is told as lost, and not tried again'),
    },
    {
      id: 'a function that failed before it asked for a step proves that the code has changed',
      find: '  if (!isThrough && !isForGood(performed.thrown)) throw performed.thrown\n',
      replace: '',
      caughtBy: byTest(inUndo, provesNothing),
    },
    {
      id: 'a function that failed before it asked for a step proves it, as the simulation sees it',
      find: '  if (!isThrough && !isForGood(performed.thrown)) throw performed.thrown\n',
      replace: '',
      caughtBy: byOperations('undo-tried'),
    },
    {
      id: 'a function that ended for good before it asked for a step proves nothing',
      find: `'value' in performed || isDecided(performed.thrown)`,
      replace: `'value' in performed`,
      caughtBy: byTest(inUndo, 'and one that asks for another step instead has got through: the undo is stuck'),
    },
    {
      id: 'a step in doubt is looked up on the way back by the key of its undo',
      find: 'contextOf(context, `step:${record.name}`)',
      replace: 'contextOf(context, `undo:${record.name}`)',
      caughtBy: byTest(inUndo, lookedUp),
    },
    {
      id: 'what a lookup found on the way back is undone as unknown',
      find: `return { ...record, forward: 'done', result: bytes }`,
      replace: 'return { ...record, result: bytes }',
      caughtBy: byTest(inUndo, lookedUp),
    },
    {
      id: 'undo in the wrong order',
      find: 'owedSteps(journal).toReversed()',
      replace: '[...owedSteps(journal)]',
      caughtBy: byTest(inUndo, 'a final failure undoes in reverse, each once, and is stored as the answer'),
    },
    {
      id: 'an unknown step is not compensated',
      find: `['began', 'done', 'undoing', 'stuck']`,
      replace: `['done', 'undoing', 'stuck']`,
      caughtBy: byTest(inUndo, 'when its attempts are exhausted it goes back, and a step in doubt is told so'),
    },
    {
      id: 'a failed undo is swallowed',
      find: `return leaveStuck(journal, journal.step(record.name)!, messageOf(error))`,
      replace: `return journal.write({ step: { ...journal.step(record.name)!, forward: forwardOf(record), state: 'undone' } })`,
      caughtBy: byTest(
        inUndo,
        'an undo that keeps failing is parked with its error, the others still run, and resume goes on',
      ),
    },
    {
      id: 'an undo is told its own key as that of its step',
      find: 'forwardKey: stepKey(journal.claim.key, record.name),',
      replace: 'forwardKey: key,',
      caughtBy: byTest(
        inUndo,
        'an undo is given the key of its step beside its own, also when the result of the step is unknown',
      ),
    },
    {
      id: 'undo twice: that it was done is not written down',
      find: `  await asked.step.undo!(told)\n  await journal.write({ step: { ...kept, forward, state: 'undone' } })`,
      replace: `  await asked.step.undo!(told)`,
      caughtBy: byTest(
        inUndo,
        'a process that dies while it goes back is succeeded by one that goes on with the undos',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/steps.ts', 'operations', [
    {
      id: 'a committed step runs again in the next attempt',
      find: `const isDone = record?.state === 'done' || record?.forward === 'done'`,
      replace: `const isDone = record?.forward === 'done'`,
      caughtBy: byTest(
        inSteps,
        'a later attempt is given the stored result of a step that is done, and its run is not called',
      ),
    },
    {
      id: 'a step begins before that is written down',
      find: `  await journal.write({ step: { ...record, state: 'began' } })\n`,
      replace: '',
      caughtBy: byTest(inDoubts, 'with a lookup, what was found is taken, and the step is not run'),
    },
    {
      id: 'a random downstream key for each attempt of a step',
      find: 'key: deriveKey(key, part),',
      replace: 'key: deriveKey(key, `${part}:${attempt}`),',
      caughtBy: byTest(
        inSteps,
        'the derived key of a step is the same on every attempt, and differs from step to step',
      ),
    },
    {
      id: 'a lookup that cannot tell is taken for not found',
      find: `if (looked === 'not-found') return 'run'`,
      replace: `if (looked === 'not-found' || looked === 'unknown') return 'run'`,
      caughtBy: byTest(inDoubts, 'with a lookup that cannot tell, nothing is run and it stays in doubt'),
    },
    {
      id: 'a step in doubt is run again although its author said stop',
      find: `if (step.inDoubt !== 'park') return 'run'`,
      replace: `if (step.inDoubt !== undefined || !step.lookup) return 'run'`,
      caughtBy: byTest(inDoubts, "with inDoubt 'park' the operation parks until a person decides"),
    },
    {
      id: 'a pivot does not hold',
      find: 'return journal.steps().some((step) => step.pivot &&',
      replace: 'return journal.steps().some((step) => step.pivot && !step.pivot &&',
      caughtBy: byTest(
        inUndo,
        'after a pivot there is no way back: it goes on, and parks when its attempts are exhausted',
      ),
    },
    {
      id: 'a pivot that was refused counts as passed',
      find: ` && step.state !== 'failed' && step.state !== 'absent')`,
      replace: ')',
      caughtBy: byTest(inUndo, 'a pivot that was refused for good has not been passed: the operation goes back'),
    },
    {
      id: 'a pivot that was not found counts as passed',
      find: ` && step.state !== 'failed' && step.state !== 'absent')`,
      replace: ` && step.state !== 'failed')`,
      caughtBy: byTest(inUndo, 'a pivot that a lookup did not find has not been passed: a cancel undoes what was done'),
    },
    {
      id: 'a function that was given up may begin steps',
      find: '      asked.close()\n      await abandon()',
      replace: '      await abandon()',
      caughtBy: byTest(
        inSteps,
        'a function that hangs keeps no transaction open, and begins no step after it was given up',
      ),
    },
    {
      id: 'a step with another fingerprint is answered with the stored one',
      find: 'if (!record || tookNoEffect || record.fingerprint === asked) return',
      replace: 'if (!record || tookNoEffect || record.fingerprint !== undefined || asked !== undefined) return',
      caughtBy: byTest(inSteps, 'a step asked with another fingerprint is a MISMATCH, and runs nothing'),
    },
  ]),
  ...bugsIn('src/core/operations/steps.ts', 'operations', [
    {
      id: 'the signal of a step with a timeoutMs is kept for ever',
      find: '    const { signal } = controller',
      replace: '    const signal = AbortSignal.any([controller.signal, plain.signal])',
      caughtBy: byTest(
        inLeaks,
        'after a step that ends within its timeoutMs, no timer, no listener and nothing that it was given is left',
      ),
    },
    {
      id: 'a step that ended still listens to the signal of its attempt',
      find: '    cancel()\n    unfollow()',
      replace: '    cancel()',
      caughtBy: byTest(
        inLeaks,
        'steps that ended leave no listener at the signal of their attempt, however many there were',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/worker.ts', 'operations', [
    {
      id: 'a worker that was stopped still listens for close',
      find: 'work().finally(unfollow)',
      replace: 'work()',
      caughtBy: byTest(
        inLeaks,
        'after a worker that is stopped, no timer, no listener and nothing that it was given is left',
      ),
    },
  ]),
  ...bugsIn('src/core/clock.ts', 'operations', [
    {
      id: 'a sleep that is over leaves its listener',
      find: `signal?.removeEventListener('abort', done)`,
      replace: 'void signal',
      caughtBy: byTest(inLeaks, 'a sweeper waits with one timer and one listener, however often it has swept'),
    },
  ]),
  ...bugsIn('src/core/operations/resume.ts', 'operations', [
    {
      id: 'a worker goes on with a life that it began itself',
      find: `    if (enlisted.is !== 'granted' || !(await isAskedFor(context, enlisted.verdict))) return 'over'`,
      replace: `    if (enlisted.is !== 'granted') return 'over'`,
      caughtBy: byTest(inWorker, 'a worker begins no operation that has expired since it looked: nothing is left'),
    },
    {
      id: 'a person who resumes an operation that is gone begins it',
      find: `  if (!(await isAskedFor(context, verdict))) return false`,
      replace: '',
      caughtBy: byTest(inWorker, 'resume begins no operation that has expired since it looked: nothing is left'),
    },
    {
      id: 'a worker that has seen one life of an operation runs another one that no caller asked for',
      find: 'if (!entry || entry.fence !== claim.fence || hasInput(entry)) return true',
      replace: 'if (entry) return true',
      caughtBy: byTest(
        inWorker,
        'a worker that has seen one life of an operation does not run another one that no caller asked for',
      ),
    },
    {
      id: 'a worker throws away what a caller has asked for since it looked',
      find: `  if (verdict.is !== 'granted' || !(await isAskedFor(context, verdict))) return 'over'`,
      replace: `  if (verdict.is === 'granted') await endUnasked(context, verdict.claim)\n  if (verdict.is !== 'busy') return 'over'`,
      caughtBy: byTest(
        inWorker,
        'a worker that comes to throw away what no caller asked for leaves it when a caller has asked since',
      ),
    },
    {
      id: 'a late duplicate of a claim of a worker begins what nobody sees',
      find: 'store.enlist(key, { ...request, version: entry.version,',
      replace: 'store.claim(key, { ...request, version: entry.version,',
      caughtBy: byTest(
        inWorker,
        'a late duplicate of the claim that ends what no caller asked for leaves nothing either',
      ),
    },
    {
      id: 'what a dead worker began by mistake is kept for ever',
      find: `  if (!hasInput(entry)) return expireUnasked(context, entry)`,
      replace: `  if (!hasInput(entry)) return 'over'`,
      caughtBy: byTest(
        inWorker,
        'a worker that dies before it has forgotten what it began by mistake leaves nothing that another would run',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/attempt.ts', 'operations', [
    {
      id: 'the fingerprint of an input is that of its encoded bytes',
      find: 'requestOf(context, fingerprint(given))',
      replace: 'requestOf(context, fingerprint(bytes))',
      caughtBy: byTest(inSteps, 'an input that its codec encodes differently each time is the same input'),
    },
    {
      id: 'a function that hangs keeps its transaction open',
      find: '      await steps.abandon()\n',
      replace: '',
      caughtBy: byTest(
        inSteps,
        'a function that hangs keeps no transaction open, and begins no step after it was given up',
      ),
    },
    {
      id: 'a worker runs an expired operation anew where a caller may',
      find: `request: { ...requestOf(context, asked), onExpired: 'refuse' },`,
      replace: `request: { ...requestOf(context, asked), input },`,
      caughtBy: byTest(
        inWorker,
        'a worker that dies before it has forgotten what it began by mistake leaves nothing that another would run',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/operation.ts', 'operations', [
    {
      id: 'an operation that was forgotten meanwhile is shown in a state that it never was in',
      find: 'if (isUnfinished && !(ledger && entry.input)) return undefined',
      replace: 'if (isUnfinished && !entry.input) return undefined',
      caughtBy: byTest(inWorker, 'the status of an operation that was forgotten after the first look is none'),
    },
  ]),
  ...bugsIn('src/core/operations/asked.ts', 'operations', [
    {
      id: 'undos begin while siblings still run',
      find: '      await Promise.all(running.values())\n      return late',
      replace: '      return late',
      caughtBy: byTest(inUndo, 'undos wait for parallel siblings to end'),
    },
    {
      id: 'the last step ends an operation whose other steps still run',
      find: 'record.name === lastName && asked.runsAlone(record.name)',
      replace: 'record.name === lastName',
      caughtBy: byTest(
        inSteps,
        'a step that another one runs beside is recorded by itself, though the function returns its promise',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/conduct.ts', 'operations', [
    {
      id: 'a way back that is interrupted counts as an attempt that died',
      find: 'const course = { ...going, interruptions: before + 1, lastError: messageOf(thrown) }',
      replace:
        'const course = { ...going, failuresBack: (going.failuresBack ?? 0) + 1, interruptions: before + 1, lastError: messageOf(thrown) }',
      caughtBy: byTest(
        inUndo,
        'by its database, however often its callers ask meanwhile, is never parked: one attempt is enough',
      ),
    },
    {
      id: 'a way back that is interrupted counts as a death, as the simulation sees it',
      find: 'const course = { ...going, interruptions: before + 1, lastError: messageOf(thrown) }',
      replace:
        'const course = { ...going, failuresBack: (going.failuresBack ?? 0) + 1, interruptions: before + 1, lastError: messageOf(thrown) }',
      caughtBy: byOperations('deaths-counted'),
    },
    {
      id: 'a database that is down under an undo is asked every second, for ever',
      find: 'interruptions: before + 1',
      replace: 'interruptions: 0',
      caughtBy: byTest(inUndo, pausesGrow),
    },
    {
      id: 'a way back that gets further each time waits longer each time',
      find: 'owedSteps(journal).length < owed ? 0 : known',
      replace: 'known',
      caughtBy: byTest(
        inUndo,
        'by its deadline while it gets further each time comes to its end, and waits no longer for it',
      ),
    },
    {
      id: 'what was interrupted keeps why it had been parked',
      find: 'const { parked: _parked, interruptions: known = 0, ...going }',
      replace: 'const { interruptions: known = 0, ...going }',
      caughtBy: byTest(inUndo, 'that was parked and then cancelled waits for no person any more'),
    },
    {
      id: 'what was learnt on the way back is taken from the attempt before',
      find: `undos === 'learn' ? await perform(conducting) : { thrown }`,
      replace: `undos === 'learn' ? (await perform(conducting), { thrown }) : { thrown }`,
      caughtBy: byTest(inUndo, provesNothing),
    },
    {
      id: 'an operation with one attempt is parked when one process dies on its way back',
      find: 'Math.max(attempts, countedBackoffs.undo.triesMax)',
      replace: 'attempts',
      caughtBy: byTest(inUndo, 'and dies from then on is parked with the last error that is known'),
    },
    {
      id: 'who finds an operation parked is not told its last error',
      find: "lastError === undefined ? '' : ` The last error: ${lastError}`",
      replace: "''",
      caughtBy: byTest(inUndo, 'and dies from then on is parked with the last error that is known'),
    },
    {
      id: 'what was thrown and is no Error is told as undefined',
      find: 'failed (${messageOf(cause)}), and that is not',
      replace: 'failed (${(cause as Error).message}), and that is not',
      caughtBy: byTest(inUndo, 'tells its caller why, whatever was thrown (a text)'),
    },
    {
      id: 'a caller is told "not executed" of an operation that is half undone',
      find: 'isTrue ? thrown : notYet(journal, thrown)',
      replace: 'thrown',
      caughtBy: byTest(inUndo, notOpened),
    },
    {
      id: 'data of a failure that JSON empties is stored empty',
      find: 'JSON.parse(storableJson(data))',
      replace: 'JSON.parse(JSON.stringify(data))',
      caughtBy: byTest(
        inUndo,
        'data of a final failure that JSON cannot hold is left out, not emptied, and the undos run all the same (a Map)',
      ),
    },
    {
      id: 'an attempt that lost its claim is told as parked',
      find: `  if ('thrown' in ended && isLost(ended.thrown)) return ended\n`,
      replace: '',
      caughtBy: byTest(
        inSteps,
        'an attempt that lost its claim is told so, also when another of its steps would park the operation',
      ),
    },
    {
      id: 'the record of the last step is left out when the operation is settled',
      find: 'news: last ? { step: last.record } : {}, last }',
      replace: 'news: {}, last }',
      caughtBy: byTest(
        inSteps,
        'a function that returns the very promise of a step: its record and the end are one write',
      ),
    },
  ]),
  ...bugsIn('src/core/operations/transaction-steps.ts', 'operations', [
    {
      id: 'a step is recorded outside of its transaction',
      find: 'await journal.commit({ step: done(bytes) }, (change) => commitWithin(context, begun, change))',
      replace: `await journal.write({ step: done(bytes) })
    await commitWithin(context, begun, { records: [], becomes: { to: 'running', leaseMs: settings.leaseMs } })`,
      caughtBy: byOperations('ends-whole'),
    },
    {
      id: 'a transaction that is opened for a function that was given up stays open',
      find: '      open.isAbandoned = true\n',
      replace: '',
      caughtBy: byTest(
        inSteps,
        'a transaction that is opened for a function that was given up meanwhile is rolled back',
      ),
    },
    {
      id: 'a step whose COMMIT nobody answered is run again at once',
      find: 'if (!store.isConflict(error) || tries',
      replace: `if ((!store.isConflict(error) && (error as OnceError).code !== 'OUTCOME_UNKNOWN') || tries`,
      caughtBy: byOperations('step-once'),
    },
  ]),
  ...bugsIn('src/core/operations/journal.ts', 'operations', [
    {
      id: 'a step goes on before what it wrote is written',
      find: '    await send(batch)\n',
      replace: '    void send(batch).catch(() => {})\n',
      caughtBy: byOperations('began-before-run'),
    },
    {
      id: 'a wish to cancel is not heard',
      find: `cancelReason ??= await context.readCancelReason()`,
      replace: `void 0`,
      caughtBy: byOperations('cancel-heard'),
    },
    {
      id: 'an attempt that does not know what it wrote undoes what it knows',
      find: `        unconfirmed ??= error\n`,
      replace: '',
      caughtBy: byOperations('undo-once'),
    },
    {
      id: 'a course that may have landed is taken back',
      find: `        known.assumeCourse(all)\n`,
      replace: '',
      caughtBy: byTest(
        inUndo,
        'an operation that turned back with its first write, which was not confirmed, is not turned forward by the next',
      ),
    },
    {
      id: 'an attempt that was taken over goes on with its steps',
      find: `    if (advanced === 'lost') throw claimLost(held.claim, settings)\n`,
      replace: '',
      caughtBy: byTest(inSteps, 'an operation that was taken over cannot write a step, and its signal aborts'),
    },
  ]),
  ...bugsIn('src/stores/memory/operations.ts', 'operations', [
    {
      id: 'memory: a takeover resets the steps',
      find: `const before = verdict.how !== 'fresh' || known?.lifeFence === fence ? known : undefined`,
      replace: `const before = verdict.how === 'reopened' || known?.lifeFence === fence ? known : undefined`,
      caughtBy: byTest(inDoubts, 'with a lookup, what was found is taken, and the step is not run'),
    },
    {
      id: 'memory: a release forgets the steps',
      find: `const before = verdict.how !== 'fresh' || known`,
      replace: `const before = verdict.how === 'taken-over' || known`,
      caughtBy: byTest(
        inSteps,
        'a later attempt is given the stored result of a step that is done, and its run is not called',
      ),
    },
    {
      id: 'memory: a record that comes late overwrites a later one',
      find: '    if ((before.get(name)?.revision ?? 0) >= revision) continue\n',
      replace: '',
      caughtBy: byTest(inMemory, 'a record that comes late never overwrites a later one'),
    },
    {
      id: 'memory: a record is written without a look at the token',
      find: `if (!operation || moved(decisions, claim, change.becomes) === 'lost') return 'lost'`,
      replace: `if (!operation || moved(decisions, claim, change.becomes) === undefined) return 'lost'`,
      caughtBy: byTest(
        inMemory,
        'after a takeover the old holder can write no record, and can neither settle nor give back',
      ),
    },
  ]),
]
