// A plug-in of the mutation tester: what an error or a warning says is prose, and no test should repeat it word by word. The
// codes, and what an error says about the effect, are mutated like everything else.

interface Node {
  readonly type: string
  readonly key?: { readonly name?: string }
  readonly callee?: { readonly name?: string; readonly object?: { readonly name?: string } }
}

interface NodePath {
  readonly node: Node
  readonly parentPath: NodePath | null
}

const isText = ({ type }: Node): boolean => type === 'StringLiteral' || type === 'TemplateLiteral'
const prose = /^(message|reason|cure|hint)$/
const speakers = /^(invalidArgument|Error|TypeError|describe\w*|assert)$/

/** Whether this node makes a message of what stands in it. */
function speaks({ type, key, callee }: Node): boolean {
  if (type === 'ObjectProperty') return prose.test(key?.name ?? '')
  return (
    (type === 'NewExpression' || type === 'CallExpression') && speakers.test(callee?.name ?? callee?.object?.name ?? '')
  )
}

/** Up through what only puts a text together: a sum, a template, a choice. */
function isMessage(path: NodePath): boolean {
  if (!isText(path.node)) return false
  for (let up = path.parentPath; up; up = up.parentPath) {
    if (speaks(up.node)) return true
    if (!/^(BinaryExpression|TemplateLiteral|ConditionalExpression|LogicalExpression)$/.test(up.node.type)) return false
  }
  return false
}

export const strykerPlugins = [
  {
    kind: 'Ignore',
    name: 'messages',
    value: { shouldIgnore: (path: NodePath) => (isMessage(path) ? 'the text of a message' : undefined) },
  },
]
