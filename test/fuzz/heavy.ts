// Goes through the heaviest shapes that are known of each parser, two megabytes each, and names each before it begins. No clock:
// what is linear is done in a moment, what is quadratic takes 10¹² steps, and what backtracks never ends. A process of its
// own, as a parser that hangs cannot be stopped otherwise.

import { parsers } from './parsers.ts'

const length = 2 * 2 ** 20

for (const { name, parse, heavy = [] } of parsers) {
  for (const shape of heavy) {
    process.stdout.write(`${name}: ${JSON.stringify(shape(24).slice(0, 24))}\n`)
    try {
      parse(Buffer.from(shape(length)))
    } catch {} // refused is as good as read
  }
}
