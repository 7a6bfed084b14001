// Duplicates that come while the effect runs. All local waiters of one request share one wait: one of them leads and asks the
// store again, the others get the same answer. A thousand duplicates cost one poll, not a thousand.

import { backoffMs, backoffs } from '../backoff.ts'
import { sleep } from '../clock.ts'
import type { Clock, Random } from '../clock.ts'
import type { Verdict } from '../store.ts'

export interface WithVerdict {
  readonly verdict: Verdict
}

export interface WaitRequest<A extends WithVerdict> {
  /** Requests with the same group get the same result. */
  readonly group: string
  readonly waitMs: number
  /** Ask the store once more. */
  ask(): Promise<A>
}

export interface Waiting {
  /** Resolves to a verdict that is not `busy`, or to undefined when the time has passed. */
  wait<A extends WithVerdict>(request: WaitRequest<A>): Promise<A | undefined>
  isAnyWaiting(): boolean
  /** Something ended here: ask at once. */
  wake(group: string): void
}

interface Member {
  /** Ends the member's sleep: with a verdict, with the lead (`'lead'`), or because its time has passed (`undefined`). */
  answer(outcome: WithVerdict | 'lead' | undefined): void
}

interface Group {
  readonly members: Set<Member>
  leader: Member | undefined
  wake: AbortController
}

export function createWaiting(clock: Clock, random: Random): Waiting {
  const groups = new Map<string, Group>()

  function join(name: string): Group {
    let group = groups.get(name)
    if (!group) groups.set(name, (group = { members: new Set(), leader: undefined, wake: new AbortController() }))
    return group
  }

  function leave(name: string, group: Group, member: Member): void {
    group.members.delete(member)
    if (group.leader === member) {
      group.leader = group.members.values().next().value
      group.leader?.answer('lead')
    }
    if (group.members.size === 0 && groups.get(name) === group) groups.delete(name)
  }

  /** Ask until the verdict is not `busy`. A verdict other than a grant holds for every member. */
  async function lead<A extends WithVerdict>(
    request: WaitRequest<A>,
    group: Group,
    untilMs: number,
  ): Promise<A | undefined> {
    for (let tries = 0; ; tries++) {
      const leftMs = untilMs - clock.elapsed()
      if (leftMs <= 0) return undefined
      await sleep(clock, Math.min(backoffMs(backoffs.poll, tries, random), leftMs), { signal: group.wake.signal })
      if (group.wake.signal.aborted) group.wake = new AbortController()
      const asked = await request.ask()
      if (asked.verdict.is === 'busy') continue
      if (asked.verdict.is !== 'granted') {
        groups.delete(request.group)
        for (const member of group.members) member.answer({ verdict: asked.verdict })
      }
      return asked
    }
  }

  async function wait<A extends WithVerdict>(request: WaitRequest<A>): Promise<A | undefined> {
    const group = join(request.group)
    const untilMs = clock.elapsed() + request.waitMs
    let cancelTimer: () => void = () => {}
    const answered = Promise.withResolvers<WithVerdict | 'lead' | undefined>()
    const member: Member = { answer: answered.resolve }
    group.members.add(member)
    try {
      if (group.leader) {
        cancelTimer = clock.schedule(() => answered.resolve(undefined), request.waitMs)
        const answer = await answered.promise
        if (answer !== 'lead') return answer as A | undefined
      }
      group.leader = member
      return await lead(request, group, untilMs)
    } finally {
      cancelTimer()
      leave(request.group, group, member)
    }
  }

  return {
    wait,
    isAnyWaiting: () => groups.size > 0,
    wake: (name) => groups.get(name)?.wake.abort(),
  }
}
