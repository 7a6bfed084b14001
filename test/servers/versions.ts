/** Set by `npm run test:versions`: what is tried there once, and not in every run. */
export const versionsVariable = 'ONCEONLY_VERSIONS'
