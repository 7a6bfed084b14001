// Programs from another Debian suite (trixie, sid), unpacked and not installed. `npm run servers` downloads the packages and all that
// they need with a private state of apt, and unpacks them to a folder in the repository that git ignores. Invariants: the packages of
// the machine and apt's own state stay as they are, the folder is complete when it is there, and root is not needed.
import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface SuitePackages {
  // sid changes daily: what is only there may be absent some day.
  suite: 'trixie' | 'sid'
  packages: string[]
  // What the packages would do on installation and the program needs.
  finish?: (folder: string) => void
}

const root = join(import.meta.dirname, '../../.servers')

export function suiteFolder({ suite, packages }: SuitePackages): string {
  return join(root, [suite, ...packages].join('-'))
}

// Throws with what apt said.
export function unpackFromSuite(source: SuitePackages): void {
  const folder = suiteFolder(source)
  const draft = `${folder}.${process.pid}`
  const state = mkdtempSync(join(tmpdir(), 'onceonly-apt-'))
  try {
    const archives = download(state, source)
    mkdirSync(draft, { recursive: true })
    for (const archive of archives) run('dpkg-deb', ['-x', archive, draft])
    source.finish?.(draft)
    rmSync(folder, { recursive: true, force: true })
    renameSync(draft, folder)
  } finally {
    rmSync(state, { recursive: true, force: true })
    rmSync(draft, { recursive: true, force: true })
  }
}

const keyring = '/usr/share/keyrings/debian-archive-keyring.gpg'

// The status file is empty, so that apt also downloads what this machine has in another version: the C library above all.
function download(state: string, { suite, packages }: SuitePackages): string[] {
  const archives = join(state, 'cache/archives')
  for (const folder of ['state/lists/partial', 'cache/archives/partial'])
    mkdirSync(join(state, folder), { recursive: true })
  writeFileSync(join(state, 'status'), '')
  writeFileSync(join(state, 'sources'), `deb [signed-by=${keyring}] ${mirror()} ${suite} main\n`)
  const settings = {
    'Dir::State': join(state, 'state'),
    'Dir::State::status': join(state, 'status'),
    'Dir::Cache': join(state, 'cache'),
    'Dir::Etc::sourcelist': join(state, 'sources'),
    'Dir::Etc::sourceparts': '-',
    'Acquire::Languages': 'none',
    'APT::Sandbox::User': 'root',
    'Debug::NoLocking': '1',
  }
  const options = Object.entries(settings).flatMap(([name, value]) => ['-o', `${name}=${value}`])
  run('apt-get', [...options, '-q', 'update'])
  run('apt-get', [...options, '-q', '-y', '--download-only', '--no-install-recommends', 'install', ...packages])
  return readdirSync(archives)
    .filter((name) => name.endsWith('.deb'))
    .map((name) => join(archives, name))
}

// Where this machine has its own Debian packages from.
function mirror(): string {
  const format = '$(ORIGIN) $(LABEL) $(REPO_URI)'
  const lines = run('apt-get', ['indextargets', '--format', format, 'Created-By: Packages']).split('\n')
  const found = lines.find((line) => line.startsWith('Debian Debian '))
  if (!found) throw new Error('this machine has no Debian mirror, or apt-get update was never run')
  return found.slice('Debian Debian '.length)
}

function run(file: string, args: string[]): string {
  const { status, stdout, stderr, error } = spawnSync(file, args, { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 })
  if (status === 0) return stdout
  throw new Error(`${file} ${args.at(-1)} ended with ${status ?? error?.message}:\n${stdout}${stderr}`)
}

const loaders: Partial<Record<NodeJS.Architecture, { libraries: string; loader: string }>> = {
  x64: { libraries: 'usr/lib/x86_64-linux-gnu', loader: 'ld-linux-x86-64.so.2' },
  arm64: { libraries: 'usr/lib/aarch64-linux-gnu', loader: 'ld-linux-aarch64.so.1' },
}

// A program of the folder with the loader and the libraries of the folder, as those of this machine may be too old for it.
export function suiteCommand(
  folder: string,
  program: string,
  args: string[],
  moreLibraries: string[] = [],
): { file: string; args: string[] } {
  const platform = loaders[process.arch]
  if (!platform) throw new Error(`expected an x64 or arm64 machine, got ${process.arch}`)
  const libraries = [platform.libraries, ...moreLibraries].map((path) => join(folder, path)).join(':')
  return {
    file: join(folder, platform.libraries, platform.loader),
    args: ['--library-path', libraries, join(folder, program), ...args],
  }
}
