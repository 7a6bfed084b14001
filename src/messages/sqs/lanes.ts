// What must stay in order is a lane: a message group of a FIFO queue. Lanes go on beside each other, and the first of a lane that
// fails ends it.

/** The positions of each lane, in their order. An item that has no lane is one by itself. */
export function lanesOf<Item>(items: readonly Item[], laneOf: (item: Item) => string | undefined): number[][] {
  const lanes: number[][] = []
  const named = new Map<string, number[]>()
  items.forEach((item, position) => {
    const name = laneOf(item)
    const known = name === undefined ? undefined : named.get(name)
    if (known) return void known.push(position)
    const lane = [position]
    lanes.push(lane)
    if (name !== undefined) named.set(name, lane)
  })
  return lanes
}

/** Hands over the first of every lane, then the second of those whose first is done, and so on. */
export async function inRounds(
  lanes: readonly (readonly number[])[],
  handle: (positions: readonly number[]) => Promise<readonly boolean[]>,
): Promise<void> {
  let left = lanes
  for (let round = 0; left.length > 0; round++) {
    const done = await handle(left.map((lane) => lane[round]!))
    left = left.filter((lane, index) => done[index] && lane.length > round + 1)
  }
}
