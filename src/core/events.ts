// The library never logs: it publishes on node:diagnostics_channel, `onceonly:<event>`. Events carry a hash of the key, never
// the key, the fingerprint or the outcome. A channel without subscribers costs one branch.

import { channel } from 'node:diagnostics_channel'
import type { Channel } from 'node:diagnostics_channel'
import type { ErrorCode } from './errors.ts'
import { hashKey } from './key.ts'
import type { Key } from './key.ts'
import type { StepState } from './operations.ts'
import type { MendingName } from './store.ts'

export interface Events {
  claimed: { attempt: number; how: 'fresh' | 'reopened' | 'taken-over'; durationMs: number }
  /** Published beside `claimed` when the lease of an earlier attempt had ended. */
  'taken-over': { attempt: number }
  replayed: { attempt: number; durationMs: number }
  settled: { attempt: number; kind: 'value' | 'failure' | 'not-stored'; durationMs: number }
  released: { attempt: number; how: 'open' | 'forget' | 'left-to-lease'; durationMs: number }
  /** Another attempt holds the key, or the store did not answer while the lease ran out. */
  lost: { attempt: number; durationMs: number }
  mismatched: Record<never, never>
  expired: Record<never, never>
  /** A duplicate that came while the effect ran: how long it waited, and what for. */
  waited: { durationMs: number; ended: 'verdict' | 'in-flight' }
  doubted: { attempt: number }
  /** The store was down, and an HTTP request ran without protection (`onStoreDown: 'run'`). `code` is why. */
  unprotected: { code: ErrorCode }
  /**
   * The store failed. `during` says what was being asked of it, `cause` is the driver's own code where it has one (ECONNREFUSED,
   * 57P01). No message: it would name the key.
   */
  'store-failed': {
    during: 'claim' | 'extend' | 'settle' | 'release' | 'advance' | 'recover' | 'sweep' | 'inspect' | 'mend' | 'session'
    code: ErrorCode
    cause?: string
  }
  /**
   * No retry can cure what the store answers: its tables are missing, its settings void the promise, it refuses this user. Published with
   * a process warning that names the cure, once per hour and cause.
   */
  'store-unfit': { store: string; code: ErrorCode; cause?: string }
  /** The store lost what it had acknowledged, and noticed. `quarantined`: it refuses new keys until a person has looked. */
  'data-loss': { store: string; register: string; evidence: 'emptied' | 'replaced' | 'went-back'; quarantined: boolean }
  swept: { tombstoned: number; forgotten: number }
  /**
   * A manual change of an entry, of a message that waited for a person (`redrive`, `discard`), of a webhook (`replay`), of an endpoint
   * (`disable`, `enable`) or of a session (`close`).
   */
  mended: { action: MendingName | 'redrive' | 'discard' | 'replay' | 'disable' | 'enable' | 'close' }
  /** A step of an operation ended like this. Its name is the code's, not the caller's. */
  step: { operation: string; step: string; state: StepState; attempt: number }
  /** What is stored of an operation does not fit the code that runs it. */
  drifted: { operation: string; what: 'step-not-asked-for' | 'newer-version'; step?: string }
  /** An operation waits for a person. */
  parked: { operation: string; why: 'in-doubt' | 'undo-stuck' | 'past-pivot' }
  /** An operation goes back. */
  compensating: { operation: string; why: 'final' | 'exhausted' | 'cancelled' }
  /**
   * A broker failed a consumer, which goes on. `during` says what was being asked of it, `cause` is the client's own code where it has
   * one. What became of a message is told by the inbox.
   */
  'consumer-failed': { broker: string; consumer: string; during: 'receive' | 'extend' | 'return'; cause?: string }
  /** A message came to an inbox and ended like this. The scope names its consumer. `code` is why it was refused. */
  message: {
    is: 'handled' | 'duplicate' | 'refused' | 'busy' | 'failed'
    code?: 'PARKED' | 'STALE' | 'TOO_OLD' | 'MISMATCH' | 'NO_ID'
    attempts?: number
  }
  /** A relay published rows of an outbox. `lagMs` is the age of the oldest. */
  relayed: { shard: number; publisher: string; count: number; lagMs: number }
  /** A row could not be published, and the later ones of its key wait behind it. */
  'relay-blocked': { shard: number; tries: number; ageMs: number }
  /** A row was given up. `parked`: its key waits for a person. `dead`: its key goes on without it. */
  'dead-lettered': { shard: number; tries: number; how: 'parked' | 'dead' }
  /** The publisher took no message at all, or the database failed. The relay tries again. */
  'relay-failed': { shard?: number; publisher: string; reason: string }
  /** A relay works on a shard from now on, or no longer. `lost`: another relay has taken it. */
  'relay-shard': { shard: number; epoch: number; how: 'taken' | 'given' | 'lost' }
  /** How far behind the relays are, every ten seconds, from one of them. */
  'relay-lag': {
    unsent: number
    lagMs: number
    blockedKeys: number
    headOfLineMs: number
    parked: number
    dead: number
  }
  /**
   * A relay with logical decoding hears of commits from its slot from now on, or has to poll. `reason` is the code of the error: 55006 when
   * another connection streams the slot, 42704 when there is none, SILENT when its connection says nothing.
   */
  'relay-decoding': { slot: string; how: 'streaming' | 'polling'; reason?: string }
  /** Messages that were never done with are gone: the broker has trimmed them. */
  'messages-trimmed': { broker: string; consumer: string; count: number }
  /** An attempt to deliver a webhook. `gone`: the endpoint answered 410, and is disabled. `lost`: another sender has the endpoint by now. */
  'webhook-sent': {
    endpoint: string
    is: 'delivered' | 'again' | 'exhausted' | 'gone' | 'lost'
    status?: number
    tries: number
    durationMs: number
  }
  /** An endpoint gets nothing any more until a person enables it. */
  'webhook-disabled': { endpoint: string; why: 'gone' | 'failing' }
  /** The database failed a webhook sender, which goes on. `cause` is the code of the error. */
  'webhooks-failed': { cause?: string }
}

export type EventName = keyof Events
/** `swept`, `store-unfit`, `data-loss`, `consumer-failed`, `messages-trimmed` and most events of relays and webhooks concern no single key and have neither. */
export type PublishedEvent<Name extends EventName> = Events[Name] & {
  readonly scope?: string
  readonly keyHash?: string
}

export const eventNames: readonly EventName[] = [
  'claimed',
  'taken-over',
  'replayed',
  'settled',
  'released',
  'lost',
  'mismatched',
  'expired',
  'waited',
  'doubted',
  'unprotected',
  'store-failed',
  'store-unfit',
  'data-loss',
  'swept',
  'mended',
  'step',
  'drifted',
  'parked',
  'compensating',
  'consumer-failed',
  'message',
  'relayed',
  'relay-blocked',
  'dead-lettered',
  'relay-failed',
  'relay-shard',
  'relay-lag',
  'relay-decoding',
  'messages-trimmed',
  'webhook-sent',
  'webhook-disabled',
  'webhooks-failed',
]

const channels = Object.fromEntries(eventNames.map((name) => [name, channel(`onceonly:${name}`)])) as Record<
  EventName,
  Channel
>

/** Ask before an event is put together where every call would. */
export function isHeard(name: EventName): boolean {
  return channels[name].hasSubscribers
}

export function publish<Name extends EventName>(name: Name, key: Key | undefined, event: Events[Name]): void {
  const target = channels[name]
  if (!target.hasSubscribers) return
  target.publish({ scope: key?.scope, keyHash: key && hashKey(key), ...event })
}
