// Pure functions that turn rows of a turn into text.

import { ms } from './dom.js'
import { escaped } from './invisible.js'

const LONGEST_JSON = 400_000
const LONGEST_CHUNK = 8_000

/** The text on one line. @param {string} text */
export const oneLine = (text) => escaped(text.replace(/\s*[\r\n]+\s*/g, ' ⏎ '))

/** The time between two rows. @param {number} count in milliseconds */
export function gapText(count) {
  if (count < 0.05) return '0'
  return count < 10 ? `${count.toFixed(1)} ms` : ms(count)
}

/** The kind of content that a row has, found from its label. @param {string} label */
export function toneOf(label) {
  if (/^Call|tool_call|function_call/.test(label)) return 'call'
  if (/^Thought|reasoning/.test(label)) return 'thought'
  if (/^(Text|Refusal)\b|output_text/.test(label)) return 'text'
  if (/^Failure|error|failed/i.test(label)) return 'bad'
  return 'other'
}

/**
 * The part of a chat completions chunk that differs from other chunks, such as its delta. Returns other text
 * unchanged.
 *
 * @param {string} text
 */
export function gist(text) {
  const at = text.indexOf('{')
  if (at < 0 || at > 12 || text.length > LONGEST_CHUNK || !text.includes('"choices"')) return text
  try {
    const { choices, usage } = JSON.parse(text.slice(at))
    const [{ index, delta, message, finish_reason: finish }] = choices
    const parts = [
      JSON.stringify(delta ?? message),
      index ? `index ${index}` : '',
      finish ? `finish ${finish}` : '',
      usage ? `usage ${JSON.stringify(usage)}` : '',
    ]
    return `${text.slice(0, at)}… ${parts.filter(Boolean).join(' · ')}`
  } catch {
    return text
  }
}

/**
 * JSON with line breaks; for server-sent events, the data of each event. Other text is returned as it is.
 *
 * @param {string} text
 */
export function pretty(text) {
  if (text.length > LONGEST_JSON) return text
  const json = spread(text)
  if (json !== null) return json
  if (!/^(?:data|event|id|retry|:)/m.test(text)) return text
  const lines = text.split('\n').map((line) => {
    const found = /^(data: ?)([[{].*)$/.exec(line)
    const data = found ? spread(found[2]) : null
    return found && data !== null ? found[1] + data : line
  })
  return lines.join('\n')
}

/** @param {string} text */
function spread(text) {
  if (!/^\s*[[{]/.test(text)) return null
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return null
  }
}

/**
 * Where two texts differ: the start and the end that they have in common are cut off.
 *
 * @param {string} one
 * @param {string} other
 */
export function difference(one, other) {
  const shorter = Math.min(one.length, other.length)
  let from = 0
  while (from < shorter && one[from] === other[from]) from += 1
  let same = 0
  while (same < shorter - from && one.at(-1 - same) === other.at(-1 - same)) same += 1
  const end = one.length - same
  return { before: one.slice(0, from), differs: one.slice(from, end), after: one.slice(end) }
}
