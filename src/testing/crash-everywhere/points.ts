// The places at which a process can die: before and after every call that leaves it. A run without a crash learns whether a
// method returns a promise. Only then can a call be stopped before it is made.

export const crashKinds = ['dies before', 'dies after', 'fails before', 'fails after'] as const
/** `dies`: the process ends at the call. `fails`: the call is an error, and the process goes on. */
export type CrashKind = (typeof crashKinds)[number]

/** What the code under test builds itself from. */
export interface CrashPoints {
  /** The same object. Every call of it that returns a promise is a point. For a store, a client, a repository. */
  wrap<T extends object>(name: string, target: T): T
  /** One call to the outside as a point: `outside('charge', () => bank.charge(order))`. */
  outside<T>(name: string, call: () => T | Promise<T>): Promise<T>
}

export interface Passage {
  /** Names of the calls that are known to return a promise. More are added as they are met. */
  readonly asynchronous: Set<string>
  /** Passes a point: `carry` makes the call. The promise that this returns may never resolve. */
  pass<T>(name: string, carry: () => T | Promise<T>): Promise<T>
  /** A transaction was opened. It is to be given up when its process dies, as a server does when a connection is cut. */
  opened(transaction: OpenTransaction, name: string): void
  /** The code under test has ended the transaction. */
  ended(transaction: OpenTransaction): void
}

export interface OpenTransaction {
  abandon(): Promise<void>
}

export function crashPoints(passage: Passage): CrashPoints {
  return {
    wrap: (name, target) => wrapped(name, target, passage),
    async outside(name, call) {
      passage.asynchronous.add(name)
      return passage.pass(name, call)
    },
  }
}

function wrapped<T extends object>(name: string, target: T, passage: Passage): T {
  return new Proxy(target, {
    get(_, property) {
      const member: unknown = Reflect.get(target, property, target)
      if (typeof member !== 'function' || typeof property === 'symbol') return member
      return (...args: unknown[]): unknown =>
        callAsPoint(`${name}.${property}`, () => Reflect.apply(member, target, args) as unknown, passage)
    },
  })
}

function callAsPoint(name: string, call: () => unknown, passage: Passage): unknown {
  const carried = async (answer: unknown): Promise<unknown> => withPoints(name, await answer, passage)
  if (passage.asynchronous.has(name)) return passage.pass(name, () => carried(call()))
  const answer = call()
  // An object that is handed out at once has calls, too: `store.within(tx)`.
  if (!isPromise(answer)) return hasMethods(answer) ? wrapped(name, answer, passage) : answer
  passage.asynchronous.add(name)
  return passage.pass(name, () => carried(answer))
}

/** What a call returns may have calls, too: `granted` of `store.begin`. */
function withPoints(name: string, value: unknown, passage: Passage): unknown {
  if (!isPlain(value)) return value
  const members = Object.entries(value).filter(([, member]) => hasMethods(member)) as [string, object][]
  if (members.length === 0) return value
  return {
    ...value,
    ...Object.fromEntries(
      members.map(([member, target]) => {
        const watched = 'abandon' in target ? watchEnd(`${name}.${member}`, target as OpenTransaction, passage) : target
        return [member, wrapped(`${name}.${member}`, watched, passage)]
      }),
    ),
  }
}

const endings: readonly string[] = ['commit', 'rollback', 'abandon']

function watchEnd(path: string, transaction: OpenTransaction, passage: Passage): OpenTransaction {
  passage.opened(transaction, path)
  const watched = Object.entries(transaction).map(([name, member]: [string, unknown]) => {
    if (typeof member !== 'function' || !endings.includes(name)) return [name, member]
    const end = (...args: unknown[]): unknown => {
      passage.ended(transaction)
      return Reflect.apply(member, transaction, args)
    }
    return [name, end]
  })
  return Object.fromEntries(watched) as OpenTransaction
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function'
}

function isPlain(value: unknown): value is object {
  return typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype
}

// Plain objects only: behind a class may be a driver that compares itself with what it is given.
function hasMethods(value: unknown): value is object {
  return isPlain(value) && Object.values(value).some((member) => typeof member === 'function')
}
