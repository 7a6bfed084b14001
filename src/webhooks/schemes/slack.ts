// Slack: `X-Slack-Signature: v0=HEX` signs the time and the body. The id is the `event_id` of the body. Slack asks once whether an
// endpoint is ours (`url_verification`) and wants its challenge back.

import { checkOptions } from '../../core/options.ts'
import { onlyHeader, rawBody } from '../request.ts'
import type { WebhookScheme } from '../request.ts'
import { bodyMember, idIn, isHmacSigned, notSigned, occurredAt, parsedBody, textSecrets } from './hmac.ts'
import { momentBy, timedRules } from './timed.ts'
import type { TimedSchemeOptions } from './timed.ts'

/**
 * The scheme of Slack's Events API, with the signing secret of the app. Commands and interactions have no `event_id`: give `idOf` for those.
 *
 * @example
 * import { slackWebhooks } from 'onceonly/webhooks'
 *
 * const scheme = slackWebhooks({ secrets: 'the signing secret of the app' })
 */
export function slackWebhooks(options: TimedSchemeOptions): WebhookScheme {
  checkOptions('slackWebhooks', options, timedRules)
  const secrets = textSecrets('slackWebhooks', options.secrets)
  const { idOf = (request) => bodyMember(request, 'event_id') } = options
  const momentOf = momentBy(options)
  return {
    name: 'slack',
    verify(request) {
      const body = rawBody(request)
      const seconds = onlyHeader(request, 'x-slack-request-timestamp')
      const signature = onlyHeader(request, 'x-slack-signature')
      const sentAtMs = momentOf(seconds, 'x-slack-request-timestamp')
      const signatures = signature.startsWith('v0=') ? [signature.slice(3)] : []
      if (!isHmacSigned(secrets, signatures, { head: `v0:${seconds}:`, body, encoding: 'hex' })) {
        throw notSigned('slack', secrets)
      }
      const challenge = bodyMember(request, 'challenge')
      if (challenge !== undefined && bodyMember(request, 'type') === 'url_verification') {
        return { id: challenge, sentAtMs, handshake: challenge }
      }
      return { id: idIn(request, 'slack', idOf), sentAtMs, ...occurredAt(parsedBody(body)?.['event_time']) }
    },
  }
}
