// The parts of a timeline's drawing. Each gets the scale {x, from, to, start, space}: `x` places a moment, of which `from` to `to` are shown.

import { svg } from './dom.js'

export const LANE = 34
export const CALL = 22
const COLUMN = 3
const MOST_CALL_LANES = 4

// How events are told apart, in the order in which they are stacked.
export const TONES = [
  ['text', 'series-1', 'Text'],
  ['thought', 'series-4', 'Thoughts'],
  ['call', 'series-3', 'Calls'],
  ['other', 'series-6', 'Others'],
]

/** Rows per column, stacked by tone; the height grows with the root, so that one row is still seen beside a thousand. */
export function columns(into, lane, y, { x, from, to, start, space }) {
  const count = Math.max(1, Math.floor(space / COLUMN))
  const stacks = new Map()
  let most = 1
  for (let at = 0; at < lane.at.length; at += 1) {
    if (lane.at[at] < from || lane.at[at] > to) continue
    const column = Math.min(count - 1, Math.floor(((x(lane.at[at]) - start) / space) * count))
    let stack = stacks.get(column)
    if (!stack) stacks.set(column, (stack = [0, 0, 0, 0, 0]))
    stack[lane.tone[at]] += 1
    stack[4] += 1
    if (stack[4] > most) most = stack[4]
  }
  const paths = ['', '', '', '']
  for (const [column, stack] of stacks) {
    const height = 4 + (LANE - 8) * Math.sqrt(stack[4] / most)
    let base = y + LANE - 2
    for (let tone = 0; tone < 4; tone += 1) {
      if (!stack[tone]) continue
      const part = height * (stack[tone] / stack[4])
      paths[tone] +=
        `M${start + column * COLUMN} ${base.toFixed(1)}h${COLUMN - 1}v${(-part).toFixed(1)}h${1 - COLUMN}z`
      base -= part
    }
  }
  paths.forEach(
    (path, tone) => path && into.append(svg('path', { class: `fill ${TONES[tone][1]}`, d: path })),
  )
}

/** The calls from their beginning to their end, those that overlap below each other. Gives where they end. */
export function bars(into, calls, y, { x, to, start, space }) {
  const ends = []
  for (const call of calls) {
    const a = Math.max(start, x(call.from))
    const b = x(call.to ?? to)
    let lane = ends.findIndex((taken) => taken <= a)
    if (lane < 0) lane = ends.length < MOST_CALL_LANES ? ends.length : MOST_CALL_LANES - 1
    const room = Math.min(220, call.name.length * 7 + 16)
    ends[lane] = Math.max(b + 6, a + room)
    if (b < start || a > start + space) continue
    const top = y + lane * (CALL + 3)
    into.append(
      svg('rect', {
        class: `call${call.to === null ? ' open' : ''}`,
        x: a,
        y: top,
        width: Math.max(3, b - a),
        height: CALL,
        rx: 4,
      }),
    )
    const near = b - a > room ? a + 8 : b + 6
    const flip = near + room > start + space && a - 6 - room > start
    into.append(
      svg(
        'text',
        {
          class: 'call-label',
          x: b - a > room ? near : flip ? a - 6 : near,
          y: top + 15,
          'text-anchor': flip && b - a <= room ? 'end' : 'start',
        },
        call.name.length > 30 ? `${call.name.slice(0, 29)}…` : call.name,
      ),
    )
  }
  return y + Math.max(1, ends.length) * (CALL + 3)
}

/** What was waited beside the scale, hatched. */
export function stub(canvas, at, room, top, bottom, words, more) {
  const box = { x: at, y: top, width: room - 8, height: bottom - top - 6, rx: 4 }
  const middle = at + (room - 8) / 2
  const line = (y, said) => svg('text', { class: 'waits-label', x: middle, y, 'text-anchor': 'middle' }, said)
  canvas.append(
    svg('rect', { class: 'waits', ...box }),
    svg('rect', { class: 'hatch', fill: 'url(#wire-hatch)', ...box }),
    svg('rect', {
      class: 'waits-words',
      x: at + 4,
      y: (top + bottom) / 2 - 20,
      width: room - 16,
      height: 36,
      rx: 4,
    }),
    line((top + bottom) / 2 - 5, words),
    line((top + bottom) / 2 + 10, more),
  )
}

/** The scale below. Gives where it ends. */
export function axis(canvas, y, { x, from, to, start, space }) {
  const at = y + 4
  canvas.append(svg('line', { class: 'base', x1: start, x2: start + space, y1: at + 0.5, y2: at + 0.5 }))
  const step = niceStep((to - from) / Math.max(2, Math.floor(space / 90)))
  for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) {
    const place = x(mark)
    canvas.append(svg('line', { class: 'base', x1: place, x2: place, y1: at, y2: at + 4 }))
    if (place > start + space - 24) continue
    canvas.append(
      svg(
        'text',
        { class: 'tick', x: place, y: at + 17, 'text-anchor': place - start < 12 ? 'start' : 'middle' },
        axisWords(mark, step),
      ),
    )
  }
  return at + 24
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 0.001)))
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough) ?? power * 10
}

function axisWords(at, step) {
  if (at === 0) return '0'
  return step >= 1000
    ? `${Math.round(at / 1000)} s`
    : step >= 100
      ? `${(at / 1000).toFixed(1)} s`
      : step >= 1
        ? `${Math.round(at)} ms`
        : `${at.toFixed(1)} ms`
}
