// The one shape of a server file: where its program may be, how to get it, how it starts, and what can be done to it while
// it runs. Invariant: a test that stops what it started leaves nothing behind; one that does not, neither.
import type { SuitePackages } from './suite-folder.ts'

export interface Found {
  found: true
  // The program, or the URL of a server that is already there.
  where: string
  // False for a server given by URL: it is somebody else's, and cannot be crashed, stopped, paused or configured.
  ours: boolean
}

export interface Missing {
  found: false
  reason: string
  cure: string
}

export interface Server<Options = never, Started extends Running = Running> {
  name: string
  // Debian packages that provide it, or what it runs on; those that are missing.
  aptPackages: string[]
  // Maven artefacts, 'group:artefact:version'; they and what they need are copied to `mavenFolder` (maven-folder.ts).
  mavenArtefacts?: string[]
  // An npm package of its own, too heavy for everybody's `npm ci`: test/servers/packages/<npmPackage>/package.json.
  npmPackage?: string
  // Packages of another Debian suite, unpacked into .servers and not installed (suite-folder.ts).
  suitePackages?: SuitePackages
  // What is left to do when all of that is there: something to compile, something to prepare once and for all.
  finishInstall?(): Promise<void>
  // Why it may not be had anywhere some day. Its tests are then skipped even if ONCEONLY_REQUIRE=all.
  optional?: string
  // The environment variable that names a server which is already there; undefined where only our own will do.
  urlVariable?: string
  find(): Found | Missing
  start(options?: Options): Promise<Started>
}

export interface Running extends AsyncDisposable {
  name: string
  url: string
  host: string
  port: number
  // Where its data is; undefined for a server given by URL.
  dataDir: string | undefined
  // The main process; undefined while there is none, and for a server given by URL.
  readonly pid: number | undefined
  // Ends it for good and removes its data. May be called twice.
  stop(): Promise<void>
  // An orderly end that keeps the data, as an administrator would do it; `restart` brings it back.
  shutDown(): Promise<void>
  // kill -9 of all of its processes at once; the data stays as it is; `restart` brings it back.
  crash(): Promise<void>
  // Comes back on the same data and port, after an orderly end if it still runs.
  restart(): Promise<void>
  // SIGSTOP and SIGCONT: connections stay open and nobody answers.
  pause(): void
  resume(): void
  // The last lines it wrote.
  logTail(): string
}

// What a server given by URL can do: nothing but end our use of it.
export function givenServer(given: { name: string; url: string; urlVariable: string; stop(): Promise<void> }): Running {
  const { name, url, urlVariable, stop } = given
  const refuse = (verb: string) => (): never => {
    throw new Error(
      `${name} is given by ${urlVariable} and cannot be ${verb}; unset it to let the tests start their own`,
    )
  }
  const { hostname, port } = new URL(url)
  // The fault proxy must know it, and a default would be a guess.
  if (!port) throw new Error(`expected ${urlVariable} to name host and port, got no port`)
  return {
    name,
    url,
    host: hostname,
    port: Number(port),
    dataDir: undefined,
    pid: undefined,
    stop,
    shutDown: async () => refuse('shut down')(),
    crash: async () => refuse('crashed')(),
    restart: async () => refuse('restarted')(),
    pause: refuse('paused'),
    resume: refuse('resumed'),
    logTail: () => '',
    [Symbol.asyncDispose]: stop,
  }
}
