// What RabbitMQ and amqplib say when something fails.

/** No retry cures these: the queue is not there, this user may not read it, or the server does not let this user in. */
export function isHopeless(error: Error): boolean {
  const code = (error as { readonly code?: unknown }).code
  // A queue whose node is down is NOT_FOUND, too, and comes back.
  if (code === 404) return error.message.includes('no queue')
  return code === 403 || error.message.includes('ACCESS-REFUSED') || error.message.includes('ACCESS_REFUSED')
}
