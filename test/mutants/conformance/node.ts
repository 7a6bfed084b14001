import { conformanceOf } from '../conformance.ts'

conformanceOf('node')
