// Headers that a broker has no room or no name for travel as JSON in one field.

/** Another sender may have a field of the same name: then it is a header like any other. */
export function unpackedHeaders(field: string, text: string | undefined): Record<string, string> {
  if (text === undefined) return {}
  try {
    const entries = Object.entries(JSON.parse(text) as object)
    if (entries.every(([, value]) => typeof value === 'string'))
      return Object.fromEntries(entries) as Record<string, string>
  } catch {
    // It is no JSON.
  }
  return { [field]: text }
}
