import { expect, test } from 'vitest'
import { sharesOf } from './shares.ts'
import type { Standing } from './shares.ts'

const standing = (owners: readonly string[], changes: Partial<Standing> = {}): Standing => ({
  owner: 'we',
  ours: owners.flatMap((owner, shard) => (owner === 'we' ? [shard] : [])),
  shards: owners.map((owner, shard) => ({ shard, owner, isFree: owner === '' })),
  relays: 1,
  shardsMax: 100,
  fraction: 0,
  ...changes,
})

test('a relay alone takes everything that is free', () => {
  expect(sharesOf(standing(['', '', '', '']))).toEqual({ take: [0, 1, 2, 3], lost: [], give: [] })
})

test('beside others it takes its fair share, and gives back what it has beyond it', () => {
  expect(sharesOf(standing(['', '', '', ''], { relays: 2 })).take).toEqual([0, 1])
  expect(sharesOf(standing(['we', 'we', 'we', 'we'], { relays: 2 })).give).toEqual([2, 3])
  expect(sharesOf(standing(['we', 'we', 'we', ''], { relays: 3 }))).toEqual({ take: [], lost: [], give: [2] })
})

test('the shares of all relays are all shards', () => {
  for (const relays of [1, 2, 3, 5, 8, 9]) {
    const fair = sharesOf(
      standing(
        Array.from({ length: 8 }, () => ''),
        { relays },
      ),
    ).take.length
    expect(fair * relays).toBeGreaterThanOrEqual(8)
  }
})

test('it takes no more than it may', () => {
  expect(sharesOf(standing(['we', '', ''], { shardsMax: 1 }))).toEqual({ take: [], lost: [], give: [] })
})

test('what is another relay’s by now is lost, and is not taken back while its lease lives', () => {
  expect(sharesOf(standing(['they', 'we'], { ours: [0, 1] }))).toEqual({ take: [], lost: [0], give: [] })
})

test('its own shard without a worker is taken anew, and relays begin at different ones', () => {
  expect(sharesOf(standing(['we', 'they'], { ours: [] })).take).toEqual([0])
  expect(sharesOf(standing(['', '', '', ''], { fraction: 0.6 })).take).toEqual([2, 3, 0, 1])
})
