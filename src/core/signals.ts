// A signal that follows another one for as long as it is needed. `AbortSignal.any` is not used: Node keeps the signal that it
// returns while that has a listener and one of its sources is alive. A listener whose code can reach a source keeps all of them
// for the life of the process.

export interface Following {
  /** Its signal aborts with the signal that it follows. It may be aborted by itself. */
  readonly controller: AbortController
  /** Follows no more, so that the signal it followed does not keep it. */
  unfollow(): void
}

export function follow(signal: AbortSignal): Following {
  const controller = new AbortController()
  const abort = (): void => controller.abort(signal.reason)
  if (signal.aborted) abort()
  else signal.addEventListener('abort', abort, { once: true })
  return { controller, unfollow: () => signal.removeEventListener('abort', abort) }
}
