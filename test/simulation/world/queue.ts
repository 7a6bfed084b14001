// What is to happen, by time. What was asked for first comes first among equals. A binary heap.

export interface Timed {
  atMs: number
  /** Given by `push`. */
  order: number
}

export interface TimeQueue<T extends Timed> {
  push(item: T): void
  pop(): T | undefined
}

export function timeQueue<T extends Timed>(): TimeQueue<T> {
  const heap: T[] = []
  let pushed = 0
  const before = (a: T, b: T): boolean => a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order)

  function rise(item: T): void {
    let index = heap.push(item) - 1
    while (index > 0) {
      const parent = (index - 1) >> 1
      if (!before(item, heap[parent]!)) break
      heap[index] = heap[parent]!
      index = parent
    }
    heap[index] = item
  }

  function sink(item: T): void {
    let index = 0
    for (;;) {
      let child = 2 * index + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && before(heap[child + 1]!, heap[child]!)) child++
      if (!before(heap[child]!, item)) break
      heap[index] = heap[child]!
      index = child
    }
    heap[index] = item
  }

  return {
    push(item) {
      item.order = pushed++
      rise(item)
    },
    pop() {
      const top = heap[0]
      const last = heap.pop()
      if (last !== undefined && last !== top) sink(last)
      return top
    },
  }
}
