// Seeds that a search once failed at. Plans are only ever widened, so each still tells its story, and must come to a good end.

import { expect, test } from 'vitest'
import { simulations } from './simulations.ts'

const found: Readonly<Record<string, readonly number[]>> = {
  keys: [1_895_765_306, 1_223_091_292, 1_304_571_918],
  operations: [
    25_234_511, 25_233_161, 25_257_388, 77_134_681, 904_410_140, 77_111_373, 1_477_093_878, 1_719_397_972,
    1_023_287_342, 1_324_128_293, 1_046_226_502, 1_140_087_336, 1_287_962_081, 1_693_058_702, 1_987_340_805,
    1_184_410_921, 1_066_278_686, 1_924_441_586, 1_355_453_217, 13_084,
  ],
  redis: [
    1_555_367_250, 616_170_405, 930_103_663, 1_155_269_070, 17_205, 1_877_239_167, 1_617_122_662, 1_681_326_580,
    1_847_269_174, 1_544_340_324,
  ],
}

const seeds = Object.entries(found).flatMap(([what, all]) => all.map((seed) => ({ what, seed })))

test.each(seeds)('$what: what was found with seed $seed is found no more', async ({ what, seed }) => {
  const { planFor, judgePlan } = simulations[what]!
  expect((await judgePlan(planFor(seed))).violations).toEqual([])
})
