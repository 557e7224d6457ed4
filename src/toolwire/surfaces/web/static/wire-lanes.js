// The parts of a timeline's drawing: columns, call bars, parked times, and the axis.

/** @import { CallBar, Lane, Scale } from '../types' */

import { svg } from './dom.js'
import { niceStep } from './numbers.js'

export const LANE = 34
export const CALL = 22
const COLUMN = 3
const MOST_CALL_LANES = 4

/** The kinds of events, in the order in which they are stacked. */
export const TONES = [
  { tone: 'series-1', name: 'Text' },
  { tone: 'series-4', name: 'Thoughts' },
  { tone: 'series-3', name: 'Calls' },
  { tone: 'series-6', name: 'Other' },
]

/**
 * The number of rows in each column of a lane, by tone.
 *
 * @param {Lane} lane
 * @param {Scale} scale
 * @returns {Map<number, number[]>}
 */
export function stacks(lane, { x, from, to, start, space }) {
  const count = Math.max(1, Math.floor(space / COLUMN))
  /** @type {Map<number, number[]>} */
  const out = new Map()
  lane.at.forEach((at, index) => {
    if (at < from || at > to) return
    const column = Math.min(count - 1, Math.floor(((x(at) - start) / space) * count))
    const stack = out.get(column) ?? TONES.map(() => 0)
    stack[lane.tone[index]] += 1
    out.set(column, stack)
  })
  return out
}

/** @param {number[]} stack */
const total = (stack) => stack.reduce((sum, count) => sum + count, 0)

/**
 * Draws the columns of a lane. A column's height grows with the square root of the number of its rows, so
 * that a column with one row is visible beside a column with a thousand.
 *
 * @param {SVGElement} into
 * @param {Lane} lane
 * @param {number} y
 * @param {Scale} scale
 */
export function columns(into, lane, y, scale) {
  const found = stacks(lane, scale)
  let most = 1
  for (const stack of found.values()) most = Math.max(most, total(stack))
  const paths = TONES.map(() => '')
  for (const [column, stack] of found) {
    const all = total(stack)
    const height = 4 + (LANE - 8) * Math.sqrt(all / most)
    let base = y + LANE - 2
    stack.forEach((count, tone) => {
      if (!count) return
      const part = height * (count / all)
      const x = scale.start + column * COLUMN
      paths[tone] += `M${x} ${base.toFixed(1)}h${COLUMN - 1}v${(-part).toFixed(1)}h${1 - COLUMN}z`
      base -= part
    })
  }
  paths.forEach((path, at) => {
    if (path) into.append(svg('path', { class: `fill ${TONES[at].tone}`, d: path }))
  })
}

/**
 * Draws each call from its start to its end. Calls that overlap are drawn one below the other. Returns the y
 * coordinate below all calls.
 *
 * @param {SVGElement} into
 * @param {CallBar[]} calls
 * @param {number} y
 * @param {Scale} scale
 */
export function bars(into, calls, y, { x, to, start, space }) {
  /** @type {number[]} */
  const ends = []
  for (const call of calls) {
    const a = Math.max(start, x(call.from))
    const b = x(call.to ?? to)
    let lane = ends.findIndex((end) => end <= a)
    if (lane < 0) lane = Math.min(ends.length, MOST_CALL_LANES - 1)
    const room = Math.min(220, call.name.length * 7 + 16)
    ends[lane] = Math.max(b + 6, a + room)
    if (b < start || a > start + space) continue
    const top = y + lane * (CALL + 3)
    const open = call.to === null ? ' open' : ''
    into.append(
      svg('rect', { class: `call${open}`, x: a, y: top, width: Math.max(3, b - a), height: CALL, rx: 4 }),
    )
    const inside = b - a > room
    const before = !inside && b + 6 + room > start + space && a - 6 - room > start
    const label = {
      class: 'call-label',
      x: inside ? a + 8 : before ? a - 6 : b + 6,
      y: top + 15,
      'text-anchor': before ? 'end' : 'start',
    }
    into.append(svg('text', label, call.name.length > 30 ? `${call.name.slice(0, 29)}…` : call.name))
  }
  return y + Math.max(1, ends.length) * (CALL + 3)
}

/**
 * Draws a hatched box beside the time axis, for a time during which the run was parked.
 *
 * @param {SVGElement} canvas
 * @param {number} x
 * @param {number} room
 * @param {number} top
 * @param {number} bottom
 * @param {string} time
 */
export function parkedBox(canvas, x, room, top, bottom, time) {
  const box = { x, y: top, width: room - 8, height: bottom - top - 6, rx: 4 }
  const middle = (top + bottom) / 2
  /** @param {number} y @param {string} words */
  const line = (y, words) =>
    svg('text', { class: 'waits-label', x: x + (room - 8) / 2, y, 'text-anchor': 'middle' }, words)
  canvas.append(
    svg('rect', { class: 'waits', ...box }),
    svg('rect', { class: 'hatch', fill: 'url(#wire-hatch)', ...box }),
    svg('rect', { class: 'waits-background', x: x + 4, y: middle - 20, width: room - 16, height: 36, rx: 4 }),
    line(middle - 5, 'parked'),
    line(middle + 10, time),
  )
}

/**
 * Draws the time axis. Returns the y coordinate below the axis.
 *
 * @param {SVGElement} canvas
 * @param {number} y
 * @param {Scale} scale
 */
export function axis(canvas, y, { x, from, to, start, space }) {
  const top = y + 4
  canvas.append(svg('line', { class: 'base', x1: start, x2: start + space, y1: top + 0.5, y2: top + 0.5 }))
  const step = niceStep((to - from) / Math.max(2, Math.floor(space / 90)))
  for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) {
    const at = x(mark)
    canvas.append(svg('line', { class: 'base', x1: at, x2: at, y1: top, y2: top + 4 }))
    if (at > start + space - 24) continue
    const anchor = at - start < 12 ? 'start' : 'middle'
    const label = { class: 'tick', x: at, y: top + 17, 'text-anchor': anchor }
    canvas.append(svg('text', label, axisTime(mark, step)))
  }
  return top + 24
}

/** A time at the axis, as exact as the step needs. @param {number} at @param {number} step */
export function axisTime(at, step) {
  if (at === 0) return '0'
  if (step >= 1000) return `${Math.round(at / 1000)} s`
  if (step >= 100) return `${(at / 1000).toFixed(1)} s`
  return step >= 1 ? `${Math.round(at)} ms` : `${at.toFixed(1)} ms`
}
