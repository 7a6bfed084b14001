// Outbox, relay, broker, inbox, with all of them but the database killed again and again: every committed event has its effect once,
// an aborted one none, and the effects of a key are in the order of its commits. ONCEONLY_LONG=1 kills ten times as often.
import { expect, test } from 'vitest'
import { isLong, tellRun } from '../long-run.ts'
import { needs } from '../servers/needs.ts'
import { type BrokerName, brokers, type BrokerRow } from './chain/brokers.ts'
import { runChain } from './chain/campaign.ts'

const kills = isLong ? 200 : 20

for (const [name, broker] of Object.entries<BrokerRow>(brokers)) {
  const { noOrder } = broker
  needs(['postgres', ...broker.needs], { ours: true }).describe(`outbox, ${name}, inbox`, () => {
    const order = noOrder === undefined ? ', in the order of its key' : ` (in no order: ${noOrder})`
    test(`every committed event has one effect, whatever is killed${order}`, async () => {
      const report = await runChain(name as BrokerName, kills)
      const { committed, effects, aborted } = report
      const sorted = (ids: readonly string[]): readonly string[] => (noOrder === undefined ? ids : ids.toSorted())
      for (const [key, ids] of committed) expect(sorted(effects.get(key)!), key).toEqual(sorted(ids))
      const all = new Set([...effects.values()].flat())
      expect(aborted.filter((id) => all.has(id))).toEqual([])
      // A run without these proves nothing.
      expect(report.kills.relay + report.kills.consumer + report.kills.broker).toBe(kills)
      expect(all.size).toBeGreaterThan(150 + kills)
      expect(aborted.length).toBeGreaterThan(20)
      expect(report.publishedAgain).toBeGreaterThan(0)
      expect(report.deliveredAgain).toBeGreaterThan(report.kills.consumer / 3)
      tellRun(name, describeReport(report))
    }, 1_800_000)
  })
}

function describeReport({
  kills: { relay, consumer, broker },
  ...report
}: Awaited<ReturnType<typeof runChain>>): string {
  const events = [...report.committed.values()].flat().length
  return (
    `${events} events, killed ${relay} relays, ${consumer} consumers, the broker ${broker} times; ${report.publishedAgain} published ` +
    `again, ${report.deliveredAgain} delivered again; killing for ${(report.killedMs / 1_000).toFixed(0)} of ${(report.tookMs / 1_000).toFixed(0)} s`
  )
}
