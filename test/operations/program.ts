// A process that works on operations. `client` asks for each once; `retry` asks until it is told; `worker` takes up what is due until it is over; `finish`
// lets workers loose on all operations, and asks for each as a client when they are done. With `kill` it ends itself by
// SIGKILL at its n-th call that leaves the process, before or after it. Its argument is a JSON; it prints what it came to.

import { flushCompileCache } from 'node:module'
import { OnceError } from '../../src/core/errors.ts'
import { pollUntil } from '../servers/poll.ts'
import { openCheckout, openStore } from './checkout.ts'
import type { Checkout, Pass, Place } from './checkout.ts'

export interface Orders {
  readonly place: Place
  readonly do: 'client' | 'retry' | 'worker' | 'finish'
  /** Each has a scope and an order of its own, which are named alike. */
  readonly names: readonly string[]
  readonly kill?: Kill
  /** Short unless given: what a killed process leaves is taken up when its lease ends. */
  readonly leaseMs?: number
}

export interface Kill {
  /** From 1 on. */
  readonly point: number
  readonly when: 'before' | 'after'
}

/** What a process prints when nobody killed it. */
export interface Said {
  /** Its calls, in order. */
  readonly points: readonly string[]
  readonly values: readonly unknown[]
}

const orders = JSON.parse(process.argv[2]!) as Orders
const points: string[] = []
let begun = 0

const pass: Pass = async (name, call) => {
  // How often a worker looks before it finds something, and again afterwards, depends on when a lease ends.
  const isLooking = name === 'store.due'
  if (isLooking && begun > 0) return call()
  const number = begun + 1
  if (!isLooking) begun = number
  const here = orders.kill?.point === number
  if (here && orders.kill.when === 'before') process.kill(process.pid, 'SIGKILL')
  const answer = await call()
  if (isLooking && Array.isArray(answer) && answer.length === 0) return answer
  if (here) process.kill(process.pid, 'SIGKILL')
  begun = Math.max(begun, number)
  points.push(name)
  return answer
}

const opened = openStore(orders.place)
const open = (name: string, through: Pass): Checkout =>
  openCheckout(orders.place, name, opened.store, through, orders.leaseMs)
const checkouts = orders.names.map((name) => ({
  name,
  checkout: open(name, pass),
  // Looking at it is no call of the operation's.
  watching: open(name, (_, call) => call()),
}))

async function untilOver({ name, watching }: (typeof checkouts)[number]): Promise<void> {
  // What was never enlisted is nobody's to take up: its client asks again.
  const isOver = async (): Promise<boolean> =>
    ((await watching.operation.status(name))?.state ?? 'completed') === 'completed'
  await pollUntil(`the end of ${name}`, isOver, { intervalMs: 100 })
}

async function work(everyMs: number): Promise<void> {
  const workers = checkouts.map(({ checkout }) => checkout.recover(everyMs))
  await Promise.all(checkouts.map(untilOver))
  await Promise.all(workers.map((worker) => worker.stop()))
}

async function ask(name: string, { operation }: Checkout): Promise<unknown> {
  return (await operation.run(name, { id: name })).value
}

async function asking(name: string, checkout: Checkout): Promise<unknown> {
  return pollUntil(`an answer for ${name}`, () =>
    ask(name, checkout).catch((error: unknown) => {
      if (error instanceof OnceError && error.retryable) return false
      throw error
    }),
  )
}

/** Found while its lease is alive, it would be asked for twice, and later calls would have other numbers. */
async function untilNobodyHolds({ name, watching }: (typeof checkouts)[number]): Promise<void> {
  const isHeld = async (): Promise<boolean> => (await watching.operation.status(name))?.state === 'running'
  await pollUntil(`the end of the lease of ${name}`, async () => !(await isHeld()), { intervalMs: 50 })
}

async function obey(): Promise<unknown[]> {
  if (orders.do === 'worker') {
    if (orders.kill) await Promise.all(checkouts.map(untilNobodyHolds))
    await work(50)
    return []
  }
  // Many workers at once: they look less often.
  if (orders.do === 'finish') await work(1_000)
  return Promise.all(
    checkouts.map(({ name, checkout }) => (orders.do === 'retry' ? asking(name, checkout) : ask(name, checkout))),
  )
}

const values = await obey()
process.stdout.write(JSON.stringify({ points, values } satisfies Said))
for (const { checkout, watching } of checkouts) await Promise.all([checkout.close(), watching.close()])
await opened.close()
flushCompileCache()
