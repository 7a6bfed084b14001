// Bugs in the client that numbers its requests.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const caught = (name: string): ReturnType<typeof byTest> => byTest('src/client/client/session-client.test.ts', name)

const slept =
  'a client that slept while another one used its next number and settled it never sends under it, and neither does any other'
const expired = 'after SESSION_EXPIRED nothing is sent until the caller registers again, and what was sent is unknown'

export const sessionClientBugs: readonly SeededBug[] = [
  ...bugsIn('src/client/client/numbered-keys.ts', 'client', [
    {
      id: 'session client: the last number is forgotten when it is settled',
      find: 'if (epochOf(key) === known.session?.epoch && sequenceOf(key) >= known.sure) {',
      replace: 'if (epochOf(key) === 0) {',
      caughtBy: caught('a client that had settled everything counts on, however often it starts'),
    },
    {
      id: 'session client: acknowledges answers that were not settled',
      find: 'return Math.min(known.last + 1, ...open.map(sequenceOf)) - 1',
      replace: 'return Math.max(0, known.last - open.length)',
      caughtBy: caught('what is acknowledged was settled, with all below it'),
    },
    {
      id: 'session client: sends beyond the window',
      find: 'if (numbers.known.last < settled + session.window) return session',
      replace: 'if (numbers.known.last < settled + session.window * 2) return session',
      caughtBy: caught(
        'as many requests are in flight as the window has room for, and the next one waits for an answer to be settled',
      ),
    },
    {
      id: 'session client: two clients on the same keys both number',
      find: 'if (!(await hasNumbers(client, keys, token))) {',
      replace: 'if (token === "" && !(await hasNumbers(client, keys, token))) {',
      caughtBy: caught('the one that took the numbers last has them, and the other one is told'),
    },
    {
      id: 'session client: makes up a session when its counter is lost',
      find: 'const { session } = numbers.known\n  if (!session) {',
      replace:
        'const session = numbers.known.session ?? { session: numbers.client, epoch: 1, window: 1, leaseMs: 1 }\n  if (!numbers.known.session) return session\n  if (session.epoch < 0) {',
      caughtBy: caught(
        'numbers do not collide after a crash that lost the counter: nothing is guessed, and the client must register',
      ),
    },
    {
      id: 'session client: an attempt goes on with what another client wrote under its number',
      find: 'if (standing?.key === open.key && standing.windowMs !== 0) return shown(numbers, standing)',
      replace: 'if (standing && standing.windowMs !== 0) return shown(numbers, standing)',
      caughtBy: caught('an attempt goes on with its own bytes, whatever is written under its number meanwhile'),
    },
    {
      id: 'session client: what an ended session left is sent again in the new one',
      find: 'const open = [...known.open.values()].find((each) => operationOf(each) === operation && isNumbered(each.operation))',
      replace:
        'const open = [...known.open.values()].find((each) => operationOf(each) === operation && isNumbered(each.operation) && epochOf(each.operation) === known.session?.epoch)',
      caughtBy: caught(expired),
    },
  ]),
  ...bugsIn('src/client/client/number-records.ts', 'client', [
    {
      id: 'session client: sends what a client wrote that had lost the numbers',
      find: 'if (!isUnsent || sequenceOf(key) === found.last) continue',
      replace: 'if (!isUnsent || sequenceOf(key) <= found.last) continue',
      caughtBy: caught(slept),
    },
  ]),
  ...bugsIn('src/client/client/session-client.ts', 'client', [
    {
      id: 'session client: goes on after its session has ended',
      find: 'if (isEnd(code) || (isCollision(code) && numbers.known.open.has(key))) endSession(numbers, epoch, code)',
      replace: 'if (isCollision(code) && numbers.known.open.has(key)) endSession(numbers, epoch, code)',
      caughtBy: caught('after FENCED, too: those that wait for room are told that nothing was sent'),
    },
    {
      id: 'session client: goes on with numbers that the server has seen',
      find: "code === 'MISMATCH' || code === 'FORGOTTEN'",
      replace: "code === 'MISMATCH'",
      caughtBy: caught('a counter that came back older is noticed as FORGOTTEN, and ends the session'),
    },
  ]),
]
