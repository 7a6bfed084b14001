// How native commands go out: one after the other on one connection, as one call with one time-out. Whoever sends makes of the replies what it
// tells, without a promise in between.

import { BoundedCall } from '../../../core/timed-call.ts'
import type { RedisArgument } from '../../../clients/redis.ts'
import type { NativeGround } from '../native.ts'
import { errorOf, isServerError } from '../scripts.ts'
import type { RedisContext } from '../scripts.ts'

export interface Hearing<Heard> {
  /** Makes of the replies what the sender gets. An error of the server stands in the place of its reply. */
  heard(replies: readonly unknown[]): Heard | Promise<Heard>
  /** Replies that came too late: a write that was counted must be known, and a claim that was granted is taken back. */
  late(replies: readonly unknown[]): void
  /** The connection failed, or there was no reply in time. */
  failed(error: Error): Heard | Promise<Heard>
}

/** One after the other on one connection. */
export function sendAll<Heard>(
  ground: NativeGround,
  commands: readonly Command[],
  hearing: Hearing<Heard>,
): Promise<Heard> {
  return new Sending(ground, commands, hearing).begin()
}

type Command = readonly RedisArgument[]

/** What goes out on one connection. When that fails, a script comes first on the next. */
class Sending<Heard> extends BoundedCall<unknown, Heard> {
  readonly #ground: NativeGround
  readonly #commands: readonly Command[]
  readonly #hearing: Hearing<Heard>

  constructor(ground: NativeGround, commands: readonly Command[], hearing: Hearing<Heard>) {
    super(ground.context.calls, undefined)
    this.#ground = ground
    this.#commands = commands
    this.#hearing = hearing
  }

  begin(): Promise<Heard> {
    return this.start(() => this.#send())
  }

  #send(): Promise<unknown> {
    const { context } = this.#ground
    if (this.#commands.length === 1) return context.link.sendHere!(this.#commands[0]!)
    return sendEach(context, this.#commands, (replies) => this.#hearing.late(replies))
  }

  #repliesIn(answer: unknown): readonly unknown[] {
    return this.#commands.length === 1 ? [answer] : (answer as readonly unknown[])
  }

  protected override heard(answer: unknown): Heard | Promise<Heard> {
    return this.#hearing.heard(this.#repliesIn(answer))
  }

  protected override late(answer: unknown): void {
    this.#hearing.late(this.#repliesIn(answer))
  }

  protected override failed(cause: unknown): void {
    const isReply = this.#commands.length === 1 && isServerError(cause)
    if (isReply) this.answered(refused(this.#ground.context, cause as Error))
    else super.failed(cause)
  }

  protected override heardOf(cause: unknown): Heard | Promise<Heard> {
    this.#ground.trusted.is = undefined
    return this.#hearing.failed(errorOf(cause))
  }
}

function sendEach(
  context: RedisContext,
  commands: readonly Command[],
  late: (replies: readonly unknown[]) => void,
): Promise<readonly unknown[]> {
  return new Promise((resolve, reject) => {
    const replies = Array.from<unknown>({ length: commands.length })
    let left = commands.length
    let failure: Error | undefined
    const take = (index: number, reply: unknown): void => {
      replies[index] = reply
      if (--left > 0) return
      if (!failure) return resolve(replies)
      late(replies)
      reject(failure)
    }
    commands.forEach((command, index) => {
      context.link.sendHere!(command).then(
        (reply) => take(index, reply),
        (error: unknown) => {
          if (isServerError(error)) return take(index, refused(context, error as Error))
          failure ??= error as Error
          take(index, failure)
        },
      )
    })
  })
}

/** A server that does not know a command, or does not allow it, is asked by script until the client connects anew. */
function refused({ commands }: RedisContext, error: Error): Error {
  // The last two are said of a command in a script, by Valkey and by Redis.
  if (/^(NOPERM|ERR (syntax|unknown|wrong number|ACL failure|the user executing))/i.test(error.message)) commands.none()
  return error
}
