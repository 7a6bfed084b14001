// What is looked at while a schedule of sessions runs, by what the effects and the answers themselves show.
import { OnceError } from '../../../src/index.ts'
import { nameOf, times } from './world.ts'
import type { SentRequest, SessionAttempt, SessionLife, SessionWorld } from './world.ts'

/** An effect begins. */
export function judgeBegin(world: SessionWorld, life: SessionLife, sent: SentRequest, idleMs: number): SessionAttempt {
  const { content, session, sequence } = sent
  const name = nameOf(sent)
  const attempts = world.attempts.get(name) ?? []
  const running = attempts.filter(({ state }) => state === 'running')
  if (attempts.some(({ state }) => state === 'answered')) world.violated('one-effect', `${name} runs after its answer`)
  if (running.some(({ life: { isDead, wasPaused } }) => !isDead && !wasPaused))
    world.violated('one-effect', `${name} runs while it runs in a process that lives`)
  if (attempts.some((each) => each.content !== content)) world.violated('one-content', `${name} runs as ${content}`)
  if (session.epoch < world.epochs.get(session.session)!)
    world.violated('fenced-not-run', `${name} runs in an old epoch`)
  if (idleMs > times.leaseMs)
    world.violated('expired-not-run', `${name} runs ${idleMs} ms after its session was last heard of`)
  if (sequence > world.acknowledged.get(`${session.session}/${session.epoch}`)! + world.window)
    world.violated('window-kept', `${name} runs, and is beyond the window of ${world.window}`)
  if (world.strict && sequence > 1 && !world.attempts.has(nameOf({ ...sent, sequence: sequence - 1 })))
    world.violated('gap-not-run', `${name} runs, and the number before it never began`)
  if (attempts.length > 0) world.counts.ranAgain++
  if (running.length > 0) world.counts.takeovers++
  const attempt: SessionAttempt = { life, content, state: 'running' }
  world.attempts.set(name, [...attempts, attempt])
  world.counts.effects++
  world.tell(`${name} begins: ${content}`)
  return attempt
}

/** A caller has an answer: of the effect, or stored. */
export function judgeAnswer(world: SessionWorld, sent: SentRequest, answer: string): void {
  const name = nameOf(sent)
  world.tell(`${name}: ${answer}`)
  if (!answer.includes(sent.content)) world.violated('one-content', `${name} asked ${sent.content} and got ${answer}`)
  const before = world.answers.get(name)
  if (before !== undefined && before !== answer) world.violated('same-answer', `${name} was ${before}, then ${answer}`)
  world.answers.set(name, answer)
}

/** A caller is refused. `own` is the attempt that this call made. */
export function judgeRefusal(
  world: SessionWorld,
  sent: SentRequest,
  error: unknown,
  own: SessionAttempt | undefined,
): void {
  const name = nameOf(sent)
  if (!(error instanceof OnceError)) return world.tell(`${name}: ${(error as Error).message}`)
  world.tell(`${name}: ${error.code}, executed ${error.executed}`)
  if (own && error.executed === 'no')
    world.violated('not-executed-left-nothing', `${name} is ${error.code}, executed no, after its effect ran`)
}

export function judgeEpoch(world: SessionWorld, client: string, epoch: number): void {
  const before = world.epochs.get(client) ?? 0
  if (epoch <= before) world.violated('epoch-grows', `${client} was given ${epoch} after ${before}`)
  world.epochs.set(client, Math.max(epoch, before))
}

export async function judgeRows(world: SessionWorld): Promise<void> {
  for (const { session, requests } of await world.alive().sessions.list()) {
    if (requests > world.window) world.violated('rows-bounded', `${session} has ${requests} rows`)
  }
}

/** When all leases and tombstones have ended, a sweep leaves nothing. */
export async function judgeRemains(world: SessionWorld): Promise<void> {
  // What was sent late arrives before that.
  await world.clock.advance(5 * times.leaseMs + times.tombstoneMs)
  const { sessions } = world.alive()
  await sessions.sweep()
  const [left, more] = [await sessions.list(), await sessions.sweep()]
  if (left.length > 0 || more > 0)
    world.violated('rows-bounded', `${left.length} sessions are left, and a second sweep removes ${more}`)
}
