// The phases of a turn: waiting for the backend, streaming, closing. Pure functions.

/** @import { CallBar, Turn } from '../types' */

import { counted, ms } from './dom.js'

/**
 * `short` is the label in the drawing.
 *
 * @typedef {'wait' | 'held' | 'stream' | 'bad'} PhaseTone
 * @typedef {{ name: string, short: string, tone: PhaseTone, from: number, to: number }} Phase
 */
/**
 * `to` is null while the period has not ended.
 *
 * @typedef {{ name: string, from: number, to: number | null }} Span
 */

/**
 * When the first and last rows of a turn came, in milliseconds since the request; null if there is no such
 * row.
 *
 * @typedef {object} Times
 * @property {number | null} firstFrame from the backend
 * @property {number | null} firstSent to the client
 * @property {number | null} lastSent to the client; null also while not all rows are loaded
 * @property {number} end
 * @property {boolean} running
 */

/** @param {Times} times @returns {Phase[]} */
export function phases({ firstFrame, firstSent, lastSent, end, running }) {
  if (firstFrame === null) {
    const name = running ? 'Waiting for the backend' : 'No answer from the backend'
    const short = running ? 'waiting for the backend' : 'no answer'
    return [{ name, short, tone: running ? 'wait' : 'bad', from: 0, to: end }]
  }
  /** Whether a time is long enough to be drawn. @param {number} length */
  const matters = (length) => length > end / 200
  /** @type {Phase[]} */
  const out = [
    {
      name: 'Request decoded, waiting for the backend’s first output',
      short: 'waiting for the backend',
      tone: 'wait',
      from: 0,
      to: firstFrame,
    },
  ]
  let start = firstFrame
  if (firstSent !== null && matters(firstSent - firstFrame)) {
    const name = 'First output received, nothing sent to the client yet'
    out.push({ name, short: 'held back', tone: 'held', from: firstFrame, to: firstSent })
    start = firstSent
  }
  const done = running || lastSent === null ? end : Math.max(start, lastSent)
  const short = running ? 'streaming now' : 'streaming'
  out.push({ name: 'Streaming to the client', short, tone: 'stream', from: start, to: done })
  if (matters(end - done))
    out.push({ name: 'Ending the turn', short: 'ending', tone: 'wait', from: done, to: end })
  return out
}

/** How long the run was parked before this turn. @param {Turn} turn */
export const parkedBefore = (turn) => turn.parked_ms ?? 0

/**
 * How long the run was parked after this turn; null if it was not parked, or is still parked.
 *
 * @param {Turn} turn
 */
export function parkedAfter({ parked_after: parked }) {
  return parked && parked.to_ms !== null ? parked.to_ms - parked.from_ms : null
}

/**
 * The whole timeline as rows of a table.
 *
 * @param {Turn} turn
 * @param {Phase[]} phases
 * @param {CallBar[]} calls
 * @returns {Span[]}
 */
export function spans(turn, phases, calls) {
  const before = parkedBefore(turn)
  const after = turn.parked_after
  return [
    ...(before ? [{ name: 'Run parked until this request brought the results', from: -before, to: 0 }] : []),
    ...phases,
    ...calls.map((call) => ({ name: `Call ${call.index + 1}: ${call.name}`, from: call.from, to: call.to })),
    ...(after
      ? [
          {
            name: 'Run parked until another request brings the results',
            from: after.from_ms,
            to: after.to_ms,
          },
        ]
      : []),
  ]
}

/**
 * The timeline in one paragraph, for screen readers.
 *
 * @param {Turn} turn
 * @param {Phase[]} phases
 * @param {number} calls
 * @param {number} end
 */
export function spoken(turn, phases, calls, end) {
  const parts = phases.map((phase) => `${phase.name}: ${ms(phase.to - phase.from)}`)
  const before = parkedBefore(turn)
  const after = parkedAfter(turn)
  const parked = [
    before ? `for ${ms(before)} before this turn` : '',
    after === null ? '' : `for ${ms(after)} after this turn`,
  ]
  const waited = parked.filter(Boolean).join(', and ')
  parts.push(counted(calls, 'call'))
  if (waited) parts.push(`Run parked ${waited}`)
  if (turn.waits) parts.push('The run waits for results')
  return `Timeline of ${ms(end)}. ${parts.join('. ')}.`
}

/** A moment relative to the request. @param {number} at */
export const momentText = (at) => `${at < 0 ? '−' : ''}${ms(Math.abs(at)) || '0 ms'}`
