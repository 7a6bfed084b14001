// What has happened in this process, as Prometheus text: the events of core, of inboxes and relays, and the requests of the gateway.
// Labels come from small fixed sets, so the number of series is bounded whatever clients send. No key, tenant or path is a label.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { systemClock } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import type { EventName, PublishedEvent } from '../core/events.ts'
import type { RequestRecord } from './request-log.ts'

export interface Metrics {
  /** Prometheus text, version 0.0.4. */
  text(): string
  request(record: RequestRecord): void
  /** A figure that is read per scrape. */
  gauge(name: string, help: string, read: () => number): void
  close(): void
}

type Labels = Readonly<Record<string, string | number>>

export function createMetrics(clock: Clock = systemClock): Metrics {
  const counters = createCounters()
  const lags = createLags(clock)
  const durations = createHistograms()
  const gauges = new Map<string, { help: string; read: () => number }>()
  const stops = (Object.keys(counted) as (keyof typeof counted)[]).map((name) => {
    const listener = (event: unknown): void => counted[name]!(event as never, counters.add, durations.observe, lags.set)
    subscribe(`onceonly:${name}`, listener)
    return () => unsubscribe(`onceonly:${name}`, listener)
  })
  return {
    request({ result, status, durationMs }) {
      counters.add('onceonly_gateway_requests_total', { result, status: `${Math.floor(status / 100)}xx` })
      durations.observe('onceonly_gateway_request_seconds', { result }, durationMs)
    },
    gauge: (name, help, read) => void gauges.set(name, { help, read }),
    text() {
      const shown = [...gauges].map(([name, { help, read }]) => family(name, 'gauge', help, [`${name} ${read()}`]))
      const memory = process.memoryUsage.rss()
      const resident = 'process_resident_memory_bytes'
      shown.push(family(resident, 'gauge', 'Memory of the process.', [`${resident} ${memory}`]))
      return [...counters.families(), ...durations.families(), ...lags.families(), ...shown].join('')
    },
    close: () => stops.forEach((stop) => void stop()),
  }
}

type Add = (name: string, labels?: Labels, by?: number) => void
type Observe = (name: string, labels: Labels, durationMs: number) => void
type SetLag = (figures: Readonly<Record<keyof typeof lagHelps, number>>) => void
type Count<Name extends EventName> = (event: PublishedEvent<Name>, add: Add, observe: Observe, setLag: SetLag) => void

/** What each event adds. */
const counted: { readonly [Name in EventName]?: Count<Name> } = {
  claimed({ how, durationMs }, add, observe) {
    add('onceonly_claims_total', { how })
    observe('onceonly_claim_seconds', {}, durationMs)
  },
  replayed: (_event, add) => add('onceonly_replays_total'),
  settled({ kind, durationMs }, add, observe) {
    add('onceonly_settles_total', { kind })
    observe('onceonly_settle_seconds', {}, durationMs)
  },
  released: ({ how }, add) => add('onceonly_releases_total', { how }),
  lost: (_event, add) => add('onceonly_claims_lost_total'),
  mismatched: (_event, add) => add('onceonly_mismatches_total'),
  expired: (_event, add) => add('onceonly_expired_total'),
  waited: ({ ended }, add) => add('onceonly_waits_total', { ended }),
  doubted: (_event, add) => add('onceonly_doubts_total'),
  unprotected: ({ code }, add) => add('onceonly_unprotected_total', { code }),
  'store-failed': ({ during, code }, add) => add('onceonly_store_failures_total', { during, code }),
  'store-unfit': ({ store, code }, add) => add('onceonly_store_unfit_total', { store, code }),
  'data-loss': ({ evidence }, add) => add('onceonly_data_loss_total', { evidence }),
  swept({ tombstoned, forgotten }, add) {
    add('onceonly_swept_total', { what: 'tombstoned' }, tombstoned)
    add('onceonly_swept_total', { what: 'forgotten' }, forgotten)
  },
  mended: ({ action }, add) => add('onceonly_mended_total', { action }),
  message: ({ is, code = '' }, add) => add('onceonly_messages_total', { is, code }),
  'consumer-failed': ({ broker, during }, add) => add('onceonly_consumer_failures_total', { broker, during }),
  'messages-trimmed': ({ broker, count }, add) => add('onceonly_messages_trimmed_total', { broker }, count),
  relayed: ({ count }, add) => add('onceonly_relayed_total', {}, count),
  'relay-blocked': (_event, add) => add('onceonly_relay_blocked_total'),
  'dead-lettered': ({ how }, add) => add('onceonly_dead_letters_total', { how }),
  'relay-failed': (_event, add) => add('onceonly_relay_failures_total'),
  'relay-shard': ({ how }, add) => add('onceonly_relay_shards_total', { how }),
  'relay-decoding': ({ how }, add) => add('onceonly_relay_decoding_total', { how }),
  'relay-lag': ({ unsent, lagMs, blockedKeys, headOfLineMs, parked, dead }, _add, _observe, setLag) =>
    setLag({
      onceonly_outbox_unsent: unsent,
      onceonly_outbox_lag_seconds: lagMs / 1_000,
      onceonly_outbox_blocked_keys: blockedKeys,
      onceonly_outbox_head_of_line_seconds: headOfLineMs / 1_000,
      onceonly_outbox_parked: parked,
      onceonly_outbox_dead: dead,
    }),
}

/** Every family of keys and requests, so that it is there with 0 before anything has happened. */
const helps: Readonly<Record<string, string>> = {
  onceonly_claims_total: 'Effects that began, by how their key was had.',
  onceonly_replays_total: 'Duplicates that were given a stored outcome.',
  onceonly_settles_total: 'Outcomes that were stored.',
  onceonly_releases_total: 'Keys that were released, or left to their lease because the outcome is unknown.',
  onceonly_claims_lost_total: 'Attempts that found another one holding their key.',
  onceonly_mismatches_total: 'Keys that came again with another request.',
  onceonly_expired_total: 'Retries that came after their outcome was gone.',
  onceonly_waits_total: 'Duplicates that waited for a running effect, by what ended the wait.',
  onceonly_doubts_total: 'Requests that were refused because an attempt never reported.',
  onceonly_unprotected_total: 'Requests that ran without protection, because the store was down and the rules say run.',
  onceonly_store_failures_total: 'Calls to the store that failed.',
  onceonly_store_unfit_total: 'Faults of the store that no retry can cure, once per hour and cause.',
  onceonly_data_loss_total: 'Times the store was found to have lost what it had acknowledged.',
  onceonly_swept_total: 'Entries that were swept.',
  onceonly_mended_total: 'Entries and messages that were changed manually.',
  onceonly_gateway_requests_total: 'Requests through the gateway, by what became of them.',
}

/** Of inboxes and relays. They are there when this process has one: a 0 of a process that has none would look like health. */
const messageHelps: Readonly<Record<string, string>> = {
  onceonly_messages_total: 'Messages that came to an inbox, by how they ended.',
  onceonly_consumer_failures_total: 'Times a broker failed a consumer, which went on.',
  onceonly_messages_trimmed_total: 'Messages that were never done with, and that the broker has trimmed.',
  onceonly_relayed_total: 'Rows of an outbox that were published.',
  onceonly_relay_blocked_total: 'Times a row could not be published, and its key waited behind it.',
  onceonly_dead_letters_total: 'Rows that were given up.',
  onceonly_relay_failures_total: 'Times the broker took no message at all, or the database failed a relay.',
  onceonly_relay_decoding_total: 'Times a relay with logical decoding began to stream, or had to poll.',
  onceonly_relay_shards_total: 'Shards that a relay has taken, given back or lost.',
}

const lagHelps = {
  onceonly_outbox_unsent: 'Rows that are neither sent nor held, on PostgreSQL at most 10000.',
  onceonly_outbox_lag_seconds: 'Age of the oldest row that is neither sent nor held.',
  onceonly_outbox_blocked_keys: 'Keys whose first row has failed, and is tried again.',
  onceonly_outbox_head_of_line_seconds: 'Age of the oldest row that blocks its key.',
  onceonly_outbox_parked: 'Rows that wait for a person, and their keys with them.',
  onceonly_outbox_dead: 'Rows that were skipped.',
} as const

const durationHelps: Readonly<Record<string, string>> = {
  onceonly_claim_seconds: 'From asking for a key to having it.',
  onceonly_settle_seconds: 'Storing an outcome.',
  onceonly_gateway_request_seconds: 'From the head of a request to the end of its answer.',
}

function createCounters(): { add: Add; families(): string[] } {
  const series = new Map(Object.keys({ ...helps, ...messageHelps }).map((name) => [name, new Map<string, number>()]))
  return {
    add(name, labels = {}, by = 1) {
      const values = series.get(name)!
      const label = labelText(labels)
      values.set(label, (values.get(label) ?? 0) + by)
    },
    families: () =>
      [...series].flatMap(([name, values]) => {
        const lines = [...values].map(([label, value]) => `${name}${label} ${value}`)
        if (lines.length === 0 && name in messageHelps) return []
        return [family(name, 'counter', (helps[name] ?? messageHelps[name])!, lines.length > 0 ? lines : [`${name} 0`])]
      }),
  }
}

// A relay tells its figures every ten seconds, one relay for all. What is older is of a relay that was stopped, or that another process
// has followed, and says nothing about now.
const lagFreshMs = 60_000

function createLags(clock: Clock): { set: SetLag; families(): string[] } {
  let latest: { readonly atMs: number; readonly figures: Parameters<SetLag>[0] } | undefined
  return {
    set: (figures) => void (latest = { atMs: clock.elapsed(), figures }),
    families() {
      if (!latest || clock.elapsed() - latest.atMs > lagFreshMs) return []
      return Object.entries(latest.figures).map(([name, value]) =>
        family(name, 'gauge', lagHelps[name as keyof typeof lagHelps], [`${name} ${value}`]),
      )
    },
  }
}

// From a store on this machine to a provider that takes its time.
const boundsSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]

interface Histogram {
  readonly labels: Labels
  /** Counts per bucket: below each bound and not below the one before. The last is beyond all of them. */
  readonly counts: number[]
  sumSeconds: number
}

function createHistograms(): { observe: Observe; families(): string[] } {
  const series = new Map(Object.keys(durationHelps).map((name) => [name, new Map<string, Histogram>()]))
  return {
    observe(name, labels, durationMs) {
      const label = labelText(labels)
      const histogram = series.get(name)!.get(label) ?? {
        labels,
        counts: boundsSeconds.map(() => 0).concat(0),
        sumSeconds: 0,
      }
      series.get(name)!.set(label, histogram)
      const seconds = durationMs / 1_000
      const at = boundsSeconds.findIndex((bound) => seconds <= bound)
      histogram.counts[at < 0 ? boundsSeconds.length : at]!++
      histogram.sumSeconds += seconds
    },
    families: () =>
      [...series].map(([name, histograms]) =>
        family(
          name,
          'histogram',
          durationHelps[name]!,
          [...histograms.values()].flatMap((each) => histogramLines(name, each)),
        ),
      ),
  }
}

function histogramLines(name: string, { labels, counts, sumSeconds }: Histogram): string[] {
  let below = 0
  const buckets = counts.map((count, at) => {
    below += count
    return `${name}_bucket${labelText({ ...labels, le: boundsSeconds[at] ?? '+Inf' })} ${below}`
  })
  const label = labelText(labels)
  return [...buckets, `${name}_sum${label} ${sumSeconds}`, `${name}_count${label} ${below}`]
}

function family(name: string, type: string, help: string, lines: readonly string[]): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.map((line) => `${line}\n`).join('')}`
}

/** Names and values are ours, and contain nothing that needs escaping. */
function labelText(labels: Labels): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${value}"`)
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`
}
