// RabbitMQ 4, unpacked from Debian trixie and run in that folder by chroot, since it starts programs of its own. Invariant: the
// server and Erlang's name server (epmd), which is its child and dies with it, are all that runs, and both listen on loopback only.
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { listensOn } from './listens-on.ts'
import { pollUntil } from './poll.ts'
import { givenServer, type Running, type Server } from './server.ts'
import { type Place, type Recipe, startServer } from './server/process.ts'
import { suiteFolder, type SuitePackages } from './suite-folder.ts'

export interface RabbitmqOptions {
  startTimeoutMs?: number
}

export interface RunningRabbitmq extends Running {
  /**
   * Waits until a quorum queue survives a crash. RabbitMQ 4.0 writes the name of a new one to disk up to a second after it was
   * declared, and after a crash before that the queue is there and empty, whatever was confirmed in it.
   */
  queueKept(queue: string): Promise<void>
}

const nodeName = 'onceonly@localhost'
const urlVariable = 'ONCEONLY_RABBITMQ_URL'
// Its start script is sh and calls the others.
const tools = ['base-files', 'dash', 'bash', 'coreutils', 'sed', 'grep', 'gawk', 'hostname', 'procps', 'findutils']
const suitePackages: SuitePackages = {
  suite: 'trixie',
  packages: ['rabbitmq-server', ...tools, 'util-linux'],
  finish(folder) {
    mkdirSync(join(folder, 'srv'), { recursive: true })
    const awk = join(folder, 'usr/bin/awk')
    rmSync(awk, { force: true })
    symlinkSync('gawk', awk)
    writeFileSync(join(folder, 'etc/passwd'), 'root:x:0:0:root:/root:/bin/sh\n')
    writeFileSync(join(folder, 'etc/hosts'), '127.0.0.1 localhost\n')
  },
}
const root = suiteFolder(suitePackages)

export const rabbitmq: Server<RabbitmqOptions, RunningRabbitmq> = {
  name: 'rabbitmq',
  aptPackages: [],
  suitePackages,
  urlVariable,
  find() {
    const url = process.env[urlVariable]
    if (url) return { found: true, where: url, ours: false }
    const lack = whatIsMissing()
    if (!lack) return { found: true, where: root, ours: true }
    return { found: false, ...lack }
  },
  start: startRabbitmq,
}

function whatIsMissing(): { reason: string; cure: string } | undefined {
  if (process.getuid?.() !== 0)
    return { reason: 'RabbitMQ runs in a chroot, which needs root', cure: `set ${urlVariable}` }
  if (existsSync(root)) return undefined
  return { reason: 'RabbitMQ was not found in .servers', cure: `npm run servers, or set ${urlVariable}` }
}

export async function startRabbitmq(options: RabbitmqOptions = {}): Promise<RunningRabbitmq> {
  const server = given() ?? (await startServer(recipeOf(options)))
  return Object.assign(server, { queueKept: (queue: string) => queueKept(server, queue) })
}

async function queueKept({ dataDir }: Running, queue: string): Promise<void> {
  if (dataDir === undefined) return
  const names = join(dataDir, nodeName, 'quorum', nodeName, 'names.dets')
  await pollUntil(`${queue} to be on disk`, () => existsSync(names) && readFileSync(names, 'latin1').includes(queue))
}

function given(): Running | undefined {
  const url = process.env[urlVariable]
  return url ? givenServer({ name: 'rabbitmq', url, urlVariable, stop: async () => {} }) : undefined
}

function recipeOf(options: RabbitmqOptions): Recipe {
  const lack = whatIsMissing()
  if (lack) throw new Error(`${lack.reason}; cure: ${lack.cure}`)
  return {
    name: 'rabbitmq',
    command: (place) => {
      writeFileSync(join(place.folder, 'rabbitmq.conf'), `${configuration(place).join('\n')}\n`)
      writeFileSync(join(place.folder, 'plugins'), '[].\n')
      const variables = Object.entries(environment(place)).map(([name, value]) => `${name}=${value}`)
      return { file: '/usr/bin/unshare', args: ['-m', 'sh', '-c', enter, 'enter', root, place.folder, ...variables] }
    },
    ready: ({ port }, pid) => listensOn(pid, port),
    url: ({ port }) => `amqp://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    portTaken: /eaddrinuse|dist_port_already_used|epmd has no port/,
    startTimeoutMs: options.startTimeoutMs,
  }
}

// The mounts are seen by this process only, and end with it. Without a name server of its own RabbitMQ would start one as a daemon.
const enter = `
root=$1 folder=$2; shift 2
mount --bind "$folder" "$root/srv" && mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || exit 1
exec chroot "$root" env -i "$@" sh -c '
  setpriv --pdeathsig KILL epmd -port "$ERL_EPMD_PORT" &
  until epmd -port "$ERL_EPMD_PORT" -names >/dev/null 2>&1 && kill -0 $!; do
    kill -0 $! 2>/dev/null || { echo "epmd has no port"; exit 1; }
  done
  exec /usr/lib/rabbitmq/bin/rabbitmq-server'
`

function configuration({ port }: Place): string[] {
  return [
    `listeners.tcp.1 = 127.0.0.1:${port}`,
    'loopback_users = none',
    'log.console = true',
    'log.file = false',
    'disk_free_limit.absolute = 50MB',
  ]
}

// All that it has. RABBITMQ_ALLOW_INPUT keeps the number of the process that was spawned.
function environment({ secondPort, thirdPort }: Place): Record<string, string | number> {
  return {
    PATH: '/usr/bin:/usr/sbin',
    HOME: '/srv',
    LC_ALL: 'C.UTF-8',
    RABBITMQ_NODENAME: nodeName,
    RABBITMQ_DIST_PORT: secondPort,
    ERL_EPMD_PORT: thirdPort,
    ERL_EPMD_ADDRESS: '127.0.0.1',
    RABBITMQ_MNESIA_BASE: '/srv/data',
    RABBITMQ_LOG_BASE: '/srv/data',
    RABBITMQ_PID_FILE: '/srv/pid',
    RABBITMQ_ENABLED_PLUGINS_FILE: '/srv/plugins',
    RABBITMQ_CONFIG_FILE: '/srv/rabbitmq.conf',
    RABBITMQ_CONF_ENV_FILE: '/dev/null',
    RABBITMQ_ALLOW_INPUT: 1,
    // What it turns on by itself, and khepri_db: without it a queue is on disk seconds after it was declared.
    RABBITMQ_FEATURE_FLAGS: 'khepri_db,quorum_queue_non_voters,rabbitmq_4.0.0,message_containers_deaths_v2',
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: '-noinput -kernel inet_dist_use_interface {127,0,0,1}',
  }
}
