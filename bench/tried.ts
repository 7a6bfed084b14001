// What was tried for speed and not kept, or kept for a reason that a reader would not guess. Each ratio comes from an interleaved run of a
// prototype and was written down then: `npm run bench` does not measure it again. docs/performance.md shows the table.

export interface Tried {
  readonly where: string
  readonly what: string
  /** What it gave. */
  readonly gave: string
  readonly verdict: string
}

export const tried: readonly Tried[] = [
  {
    where: 'all stores',
    what: 'Collecting a batch with a timer of 1 ms',
    gave: 'one caller waits 3 to 4 times as long',
    verdict: 'No timer. An idle lane dispatches at once, and what arrives meanwhile is the next batch.',
  },
  {
    where: 'core',
    what: 'Fewer promises and a shortcut for settings, without another path',
    gave: '3 to 10 % of a fresh call',
    verdict: 'Too little by itself. The plain case got a straight path.',
  },
  {
    where: 'core',
    what: 'A write of a held key as one object that tells its holder, in place of an async function around the store call',
    gave: '2 to 3 % of a call in memory by its best rounds, nothing by the median (1.01). Not measured over HTTP',
    verdict: 'Taken back. It was 45 lines where fencing is decided.',
  },
  {
    where: 'core',
    what: 'Drawing the text of 128 tokens at once, each a part of it',
    gave: '200 ns per token in place of 350, and nothing by the median of a replay in memory',
    verdict: 'Taken back. It was 25 lines.',
  },
  {
    where: 'core',
    what: 'Text of a stored outcome by `isUtf8` and `toString` in place of a TextDecoder; one closure less per call of `once.run`',
    gave: 'nothing: 1.01 to 1.10 of the processor time of a replay in memory, and 1.00 of a request',
    verdict: 'Taken back.',
  },
  {
    where: 'PostgreSQL',
    what: 'More batches under way at once',
    gave: 'nothing, also where the calls that wait are shared among them (three or four in place of two: 0.87 to 1.09)',
    verdict: 'Two: one on its way back while the server works on the next. More makes batches smaller.',
  },
  {
    where: 'PostgreSQL',
    what: '`ON CONFLICT` in place of look and lock; plain statements in place of functions; functions in SQL before version 18',
    gave: 'nothing',
    verdict: 'Left as it was.',
  },
  {
    where: 'PostgreSQL',
    what: 'An `UPDATE … FROM unnest(…)` whose plan is left to the server',
    gave: 'the batch wins 1.1 to 2 times: without fresh statistics it is a hash join over the whole table',
    verdict: 'The nested loop is pinned: 4.3 to 4.8 times.',
  },
  {
    where: 'PostgreSQL',
    what: 'Plans made anew for every small batch (the default of the plan cache below ten rows)',
    gave: '20 to 29 % of a claim in batches of 2 to 8',
    verdict: 'Generic plans are forced in the functions.',
  },
  {
    where: 'PostgreSQL',
    what: 'fillfactor 90',
    gave: '9 % of the updates stay on their page, and a fifth more WAL',
    verdict: 'fillfactor 30: all of them do, and the table is no larger.',
  },
  {
    where: 'PostgreSQL',
    what: 'Random ids among 10 million entries',
    gave: '6 kB of WAL per claim against 0.27 kB, and a claim costs 2.3 times as much against 1.06',
    verdict: '`newId()` is ordered by time. Use it, or another UUIDv7 or ULID.',
  },
  {
    where: 'PostgreSQL',
    what: 'One statement that looks, locks and inserts, also for a lone claim',
    gave: '73 µs in the server against 32 in three small ones: setting up the large one is what costs',
    verdict: 'One statement for a batch, where it takes 0.58 of the processor time. Small ones for a lone call.',
  },
  {
    where: 'PostgreSQL',
    what: 'Swapping tables in place of emptying one when a period ends',
    gave: 'the pause only moves',
    verdict: 'The removal of the file is what is felt, and it is short.',
  },
  {
    where: 'PostgreSQL',
    what: '`LISTEN` and `NOTIFY` to wake a duplicate in another process',
    gave: 'a third of the fresh calls, for a waiter that hears 14 ms earlier',
    verdict: 'A duplicate in another process polls. One in the same process is woken.',
  },
  {
    where: 'PostgreSQL',
    what: 'The record of `once.transaction` as a plain prepared INSERT in place of a function; without the index of the sweep; by `call` in place of `select`',
    gave: '0.97 of the processor time of the server; 0.985 of the time (an upper bound); nothing',
    verdict:
      'A function of the schema version with one plain insert: 0.90 of the time of what was there. A transaction with a plain insert and no claim is 1.24 of the bare one.',
  },
  {
    where: 'PostgreSQL',
    what: 'The inbox: named statements in place of functions; arrays of text in place of lines; fillfactor 90; without the index of times',
    gave: '0.84 of a receive, as the functions give; 1.06; 1.01; 0.95',
    verdict: 'Functions, whose plans are kept and pinned. The sweep needs its index.',
  },
  {
    where: 'outbox',
    what: 'A row that is relayed as an array of JSON with the body behind it, in place of all of it as JSON; as plain lines',
    gave: 'a row read costs PostgreSQL 0.45, one relayed 0.86 of the processor time, and the process as much as before. As lines the process needs 1.3 times as much: what is cut out of a text keeps all of it in memory',
    verdict: 'The array and the body.',
  },
  {
    where: 'operations',
    what: 'Recording the start of an operation together with its first step',
    gave: 'not possible: which step is first is known when the function has run up to it',
    verdict: 'Left as it was.',
  },
  {
    where: 'Redis',
    what: 'Batches of 8 in place of 16, where 64 callers share four commands',
    gave: 'with 64 callers 0.55 of node-idempotency against 0.61, with 256 0.72 against 0.83',
    verdict:
      'Batches of 16 at the least. As one batch of 64, which is what it was, the server and the process wait for each other in turn: 0.40.',
  },
  {
    where: 'PostgreSQL',
    what: 'All that wait as one batch, in place of two that share them',
    gave: 'with 256 callers 6.4 times the naive way in replays against 10.9, and 4.8 against 6.7 in fresh calls: server and process wait in turn. With 16 callers two batches are 0.85 of one: two commits',
    verdict: 'Shared from 32 calls on.',
  },
  {
    where: 'Redis',
    what: 'Native commands with one check for a batch, too, in place of the short script, in batches shared as today',
    gave: 'on Valkey with 64 and 256 callers 0.72 and 0.57 of node-idempotency in fresh calls against 0.88 and 0.72; in replays 1.04 and 0.76 against 0.95 and 1.00',
    verdict: 'The short script stays: a command per call costs this process more than Lua costs the server.',
  },
  {
    where: 'Redis',
    what: 'GET and SET in the short script of settles, in place of `SET … IFEQ` inside of it, on Valkey',
    gave: 'with 64 callers 0.87 to 0.96 of the calls, with 256 0.93 to 1.00: what is there becomes a text of Lua',
    verdict: 'IFEQ inside the script where the server has it.',
  },
  {
    where: 'Redis',
    what: 'Eight commands under way in place of four; batches of 32 in place of 16',
    gave: 'eight: 1.0 to 1.15 in fresh calls, 0.87 to 1.0 in replays; batches of 32: 0.6 to 1.1',
    verdict: 'Left as it was.',
  },
  {
    where: 'Redis',
    what: 'A lone claim and a lone settle as native commands, each followed by its check, in place of the short script by its hash',
    gave: '1.10 to 1.23 of the processor time with one caller, 1.08 of a fresh request on Fastify. By its text, which the server has to read and hash each time, the script had lost',
    verdict:
      'One short script for one call, too, by its hash. A lone replay is still one command, as that writes nothing.',
  },
  {
    where: 'Redis',
    what: 'The calls of one turn of the event loop together at its end (`setImmediate`), but for the first, which goes at once',
    gave: 'of a request on Fastify with 64 callers 0.94 of the processor time fresh, and 0.92 to 1.00 in replays. With one caller nothing (1.00). Were the first held, too, a lone call would wait for the end of its turn',
    verdict: 'Done. As many as make a batch are not held.',
  },
  {
    where: 'Redis',
    what: 'The first call of a turn held as well, while another command is under way',
    gave: '0.97 to 1.00 of the processor time of a request on Fastify',
    verdict: 'Too little for a second rule.',
  },
  {
    where: 'PostgreSQL',
    what: 'The same there',
    gave: '1.16 to 1.26 of the processor time of a fresh call with 64 callers, and twice the p99',
    verdict: 'Left as it was: of two statements at once, the first call of a turn would take one alone.',
  },
  {
    where: 'Redis',
    what: 'Calls held behind the one under way until 16 wait, so that fewer commands carry more of them',
    gave: 'nothing that 11 rounds show in the processor time of a request on Fastify: 0.95 to 1.01',
    verdict: 'Left as it was.',
  },
  {
    where: 'Redis',
    what: 'A settle as a name of its own (`SET settled:<token> NX`), folded into the entry later',
    gave: 'half the processor time of Redis, but 607 to 800 bytes per entry and 0.55 to 0.62 of the peer, as Node was the limit',
    verdict: '`SET … IFEQ` where the server has it: one name, fenced by the server.',
  },
  {
    where: 'Redis',
    what: 'Heartbeats, too, by `SET IFEQ`, as claims and settles are (49ca029)',
    gave: 'nothing that can be measured, as there are few, and one violation in 17,000 simulated schedules: the news of a lost key needed a second round trip and came too late',
    verdict: 'Heartbeats stay with the script: one round trip. Claims and settles are native commands.',
  },
  {
    where: 'operations',
    what: 'No record that a plain step begins, and no row beside the entry of an operation that its first write settles (cc2df32, 6bb8769)',
    gave: '10.7 times DBOS with 64 callers in a loaded run, two round trips of three, a third less log, and a settle repeated with another record that was confirmed and dropped',
    verdict: 'Taken back until all orders and the simulation are clean.',
  },
  {
    where: 'HTTP',
    what: 'Not holding the response until its result is stored, as an upper bound',
    gave: '7 µs of 144',
    verdict: 'An answer leaves after its commit. It is not given up for that.',
  },
  {
    where: 'HTTP',
    what: 'Not giving the stored bytes of a fresh response back to the exchange, which does not read them',
    gave: 'nothing that 24 rounds under load can show (1.01 with quartiles of 0.95 and 1.06), though the copy is 1 % of the profile',
    verdict: 'Left as it was: the first caller gets what every replay gets.',
  },
  {
    where: 'HTTP',
    what: 'Recording the body as it arrives, by an override of `req.push`, against not recording it',
    gave: 'nothing: 0.99. Recording and hashing together are 3 % of a request with two empty hooks',
    verdict:
      'Left as it was. What costs is `once.run` (25 of 55 µs) and holding the response (17), and by CPU time no function of ours has 1 % of a request.',
  },
  {
    where: 'HTTP',
    what: 'Leaving out one part of a fresh request on Fastify and memory at a time, in copies of the source',
    gave:
      'of the processor time: without recording the body 0.99, holding the connection 0.99, holding the response 0.95, a store that keeps nothing 0.95, ' +
      'no time limits besides 0.92, no `once.run` at all 0.74 to 0.80. Node-idempotency is at 0.87 and bare Fastify at 0.57',
    verdict:
      'No part is dispensable, and no function is above 1 % but the two hashes of the fingerprint (4 %). To pass the peer, core and exchange would each have to do ' +
      'with half of their objects.',
  },
  {
    where: 'HTTP',
    what: "The functions of a request's context (`release`, `store`, `keyFor`) made only when they are read; an entry in memory that is settled in place; one hash of the fingerprint in place of two",
    gave: 'nothing, 1 % and 1 to 2 % of a fresh request on Fastify and memory',
    verdict: 'Taken back: what is left of the cost is spread over some hundred functions, none of them above 1 %.',
  },
  {
    where: 'HTTP',
    what: 'Canonical JSON for every fingerprint of a body',
    gave: '1 to 4.3 ms for 100 KB, against 68 µs for its raw bytes',
    verdict: 'Raw bytes are hashed. Canonical JSON is for those who ask.',
  },
  {
    where: 'HTTP',
    what: 'The bench of requests warmed up five times as long',
    gave: 'nothing: a fresh request on Redis is 2.14 and 2.16 of bare Fastify',
    verdict: 'Left as it was: what is measured is compiled.',
  },
  {
    where: 'HTTP',
    what: 'Four servers in one run of the bench in place of six, which push less of each other out of the caches',
    gave: 'a fresh request on memory is 1.00 to 1.06 of node-idempotency in place of 1.13',
    verdict: 'Left as it was: a server has neighbours. More code is felt more among them.',
  },
]
