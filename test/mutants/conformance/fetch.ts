import { conformanceOf } from '../conformance.ts'

conformanceOf('fetch')
