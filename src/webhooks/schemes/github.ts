// GitHub: HMAC-SHA256 of the body in `X-Hub-Signature-256`. The id is `X-GitHub-Delivery`, which a redelivery keeps.

import { checkOptions } from '../../core/options.ts'
import { onlyHeader } from '../request.ts'
import type { WebhookScheme } from '../request.ts'
import { hmacWebhooks, schemeRules } from './hmac.ts'
import type { WebhookSchemeOptions } from './hmac.ts'

/**
 * The scheme of GitHub. Its signature covers the body alone: neither the id nor a time.
 *
 * @example
 * import { githubWebhooks } from 'onceonly/webhooks'
 *
 * const scheme = githubWebhooks({ secrets: 'the secret of the webhook' })
 */
export function githubWebhooks(options: WebhookSchemeOptions): WebhookScheme {
  checkOptions('githubWebhooks', options, schemeRules)
  return hmacWebhooks({
    idOf: (request) => onlyHeader(request, 'x-github-delivery'),
    ...options,
    name: 'github',
    header: 'x-hub-signature-256',
    encoding: 'hex',
    prefix: 'sha256=',
  })
}
