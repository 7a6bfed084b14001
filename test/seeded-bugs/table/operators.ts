// Bugs in what operators see of sessions and webhooks.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inSessions = 'src/gateway/admin/sessions.test.ts'
const inWebhooks = 'src/gateway/admin/webhooks.test.ts'
const inBrowser = 'test/browser/operators.test.ts'
const closing = 'closing needs the token and a reason, takes the epoch that was looked at, and is audited'

export const operatorBugs: readonly SeededBug[] = [
  ...bugsIn('src/gateway/admin/sessions.ts', 'dashboard', [
    {
      id: 'the dashboard closes whatever session the client has by then',
      find: 'sessionsByHand(store).close({ scope, session, epoch }, reason)',
      replace: 'sessionsByHand(store).close({ scope, session }, reason)',
      caughtBy: byTest(inSessions, closing),
    },
    {
      id: 'the dashboard says that it closed a session which was closed before',
      find: 'if (closed.changed) return\n',
      replace: "if (closed.changed || closed.session.state === 'closed') return\n",
      caughtBy: byTest(inSessions, closing),
    },
  ]),
  ...bugsIn('src/gateway/admin.ts', 'dashboard', [
    {
      id: 'what a webhook says is shown to whoever may see the keys',
      find: `'/api/webhook-sent': reading('change',`,
      replace: `'/api/webhook-sent': reading('reading',`,
      caughtBy: byTest(
        inWebhooks,
        'a delivery is shown with its attempts, and what was sent and answered with the token alone',
      ),
    },
  ]),
  ...bugsIn('src/gateway/admin/webhooks.ts', 'dashboard', [
    {
      id: 'the log of attempts says what the endpoint answered',
      find: 'function withoutAnswer({ response: _response, ...rest }: WebhookAttempt)',
      replace: 'function withoutAnswer({ ...rest }: WebhookAttempt)',
      caughtBy: byTest(
        inWebhooks,
        'a delivery is shown with its attempts, and what was sent and answered with the token alone',
      ),
    },
    {
      id: 'a replay takes the deliveries of the event to every endpoint with it',
      find: 'deliveries.replay({ id, endpoint }, reason)',
      replace: 'deliveries.replay({ id }, reason)',
      caughtBy: byTest(
        inWebhooks,
        'of two deliveries of one event, the one that a person looked at is replayed, after a reason',
      ),
    },
  ]),
  ...bugsIn('src/gateway/dashboard/sessions.js', 'dashboard', [
    {
      id: 'a client whose window is full looks like any other',
      find: "state === 'open' && last - floor >= window",
      replace: "state === 'open' && last - floor > window",
      caughtBy: byTest(
        inBrowser,
        'a session is found and closed with the keyboard alone, after a reason, and its timeline tells why',
        'chromium',
      ),
    },
  ]),
]
