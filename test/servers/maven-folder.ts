// Java programs from Maven: `npm run servers` copies the artefacts and all that they need to a folder in the repository that
// git ignores. Invariant: the folder is complete when it is there, and another version has another folder.
import { spawnSync } from 'node:child_process'
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const root = join(import.meta.dirname, '../../.servers')

export function mavenFolder(artefacts: readonly string[]): string {
  return join(root, artefacts.map((artefact) => artefact.split(':').slice(1).join('-')).join('+'))
}

// Throws with what Maven said. Its own cache stays where Maven has it.
export function copyFromMaven(mvn: string, artefacts: readonly string[]): void {
  const folder = mavenFolder(artefacts)
  const draft = `${folder}.${process.pid}`
  mkdirSync(draft, { recursive: true })
  try {
    writeFileSync(join(draft, 'pom.xml'), pomOf(artefacts))
    const args = ['-q', '-B', '-f', join(draft, 'pom.xml'), copyGoal, '-DincludeScope=runtime', '-DoutputDirectory=.']
    const { status, stdout, stderr } = spawnSync(mvn, args, { cwd: draft, encoding: 'utf8' })
    if (status !== 0) throw new Error(`${mvn} could not copy ${artefacts.join(', ')}:\n${stdout}${stderr}`)
    rmSync(folder, { recursive: true, force: true })
    renameSync(draft, folder)
  } finally {
    rmSync(draft, { recursive: true, force: true })
  }
}

// Named with its version: Maven would otherwise take whichever is the default of its own release.
const copyGoal = 'org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies'

function pomOf(artefacts: readonly string[]): string {
  const dependencies = artefacts.map((artefact) => {
    const [group, name, version] = artefact.split(':')
    return `<dependency><groupId>${group}</groupId><artifactId>${name}</artifactId><version>${version}</version></dependency>`
  })
  return `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>onceonly</groupId>
  <artifactId>servers</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>${dependencies.join('')}</dependencies>
</project>
`
}
