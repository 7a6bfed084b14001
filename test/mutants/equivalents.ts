// Mutants that change nothing that can be observed, each with the reason. Whoever finds a way to observe one writes the test
// and takes its row out.

export interface Equivalent {
  readonly file: string
  /** Part of the line in which it stands. */
  readonly line: string
  /** What is replaced, or its beginning, and by what. */
  readonly from: string
  readonly to: string
  readonly why: string
}

/** Rows of one file with one reason: part of the line, what is replaced, and by what. */
const rows = (
  file: string,
  why: string,
  ...replaced: readonly (readonly [line: string, from: string, ...to: string[]])[]
): readonly Equivalent[] => replaced.flatMap(([line, from, ...all]) => all.map((to) => ({ file, line, from, to, why })))

export const equivalents: readonly Equivalent[] = [
  {
    file: 'src/core/key.ts',
    line: `!(kind === 'number' && Number.isFinite(part))`,
    from: `kind === 'number'`,
    to: 'true',
    why: 'Number.isFinite is false for everything but a number.',
  },
  {
    file: 'src/core/key.ts',
    line: 'part.length > keyPartBytesMax ||',
    from: 'part.length > keyPartBytesMax',
    to: 'false',
    why: 'A text has at least as many bytes as characters, so the next condition refuses it, too. This one only makes that cheap.',
  },
  ...rows('src/core/canonical-json.ts', 'No two members of an object have the same name.', [
    '.sort(([a], [b]) =>',
    'a < b',
    'a <= b',
  ]),
  ...rows('src/http/exchange/key-header.ts', 'Beyond the end there is no character, and none is no blank.', [
    'while (start < end && isBlank',
    'start < end',
    'start <= end',
    'true',
  ]),
  ...rows('src/http/exchange/sessions.ts', "A format that is neither 'uuid' nor a function is not asked of anything.", [
    "keyFormat: 'any'",
    "'any'",
    '""',
  ]),
  ...rows(
    'src/http/exchange/strict-json.ts',
    'This only makes short integers cheap. What it does not let pass is compared by its digits, with the same result.',
    ['if (text.length <= 15 &&', 'text.length <= 15', 'text.length < 15'],
    ['if (text.length <= 15 &&', '/^-?(?:0|[1-9][0-9]*)$/', '/^-(?:0|[1-9][0-9]*)$/'],
  ),
  ...rows('src/stores/dynamodb/entries.ts', 'Every item has its key: it is the primary key of the table.', [
    `(item['key']?.S ?? '').split`,
    `''`,
    '"Stryker was here!"',
  ]),
  ...rows(
    'src/stores/postgres/batches.ts',
    'It only spares the sorting: with calls of one kind the answers are in the order of the calls.',
    ['if (firsts === 0 || firsts === calls.length) return answers', 'firsts === calls.length', 'false'],
    ['if (firsts === 0 || firsts === calls.length) return answers', 'firsts === 0', 'false'],
  ),
  ...rows('src/stores/redis/batches.ts', 'Durations that are sent a second time are found by their own number.', [
    'if (at < 0) at = durations.push',
    'at < 0',
    'at <= 0',
  ]),
  ...rows('src/http/nest.ts', 'The exchange answers by itself what manages a session, and goes on to nobody.', [
    'servePublished(exchange, { request, req, res, target',
    '() => next()',
    '() => undefined',
  ]),
  ...rows('src/stores/redis/names.ts', 'The first place of what was found is not read.', [
    'entryName.exec(name) ?? []',
    '[]',
    '["Stryker was here"]',
  ]),
  ...rows('src/stores/redis/native.ts', 'Whatever is counted then is not believed: the script decides all the same.', [
    'known.mark === 0 || known.mark === missing',
    'known.mark === missing',
    'false',
  ]),
  ...rows('src/stores/redis/native.ts', 'The same text is made once more.', [
    'last?.nowMs === nowMs &&',
    'last?.nowMs === nowMs && last.leaseMs === leaseMs && last.keepMs === keepMs && last.tombstoneMs === tombstoneMs',
    'false',
  ]),
  ...['sweep', 'writes'].flatMap((file) =>
    rows(`src/stores/mongodb/${file}.ts`, 'MongoDB does not look at the value of what is unset.', [
      `$unset: { outcome: '', input: '' }`,
      `''`,
      '"Stryker was here!"',
    ]),
  ),
  ...rows(
    'src/stores/mongodb/sweep.ts',
    'What did nothing is counted and not told.',
    [`return 'nothing'`, `'nothing'`, '""'],
    [`entry.wrote !== 'forget' ? 'forgotten' : 'nothing'`, `'nothing'`, '""'],
  ),
  ...rows(
    'src/core/lane.ts',
    'Without it every call queues a microtask: the first one dispatches, and the others find nothing waiting.',
    ['if (isScheduled || !isEnough()) return', 'isScheduled', 'false'],
    ['isScheduled = true', 'true', 'false'],
  ),
  ...rows('src/http/on-node/request.ts', 'Where another one intercepts already, push is that very function.', [
    'if (!this.#earlier) req.push',
    '!this.#earlier',
    'true',
  ]),
  ...rows(
    'src/http/on-node/request.ts',
    'A request of Node that ends early emits both, as long as somebody listens for errors, and closes in any case.',
    ["req.on('error', onGone).on('close', onGone)", "'error'", '""'],
    ["req.on('error', onGone).on('close', onGone)", "'close'", '""'],
  ),
  ...rows('src/http/on-node/response.ts', 'What was produced is known already, and a second resolve changes nothing.', [
    "if (hold.is === 'whole') hold.resolve(",
    "hold.is === 'whole'",
    'true',
  ]),
  ...rows('src/http/on-node/response.ts', 'The head in one object is only cheaper.', [
    'if (isPlainHead(res, given)) {',
    'isPlainHead(res, given)',
    'false',
  ]),
  ...rows(
    'src/http/on-node/response.ts',
    'The answer in the place of another has ended, so its head is there and nothing is flushed.',
    ["if (hold.phase === 'replaced') return", "hold.phase === 'replaced'", 'false'],
  ),
  ...rows(
    'src/http/on-node/send.ts',
    'Head and body in one piece are only cheaper: send.test.ts compares the octets of both ways.',
    [
      'if (body.length === 0 || body.length > textBytesMax',
      'body.length === 0 || body.length > textBytesMax || !hasBody(status)',
      'true',
    ],
  ),
]
