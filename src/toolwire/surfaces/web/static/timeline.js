// The timeline of a turn: its phases, the backend's output, the events, what the client received, and the
// calls.
//
// Three lanes show how many rows there were at each moment, and another lane shows the calls. The time that
// the run was parked is drawn beside the time axis: on the axis, a person's minutes would hide the model's
// milliseconds. A table below the drawing contains the same phases and calls.

/** @import { CallBar, Lane, Row, RowKind, Scale, Turn } from '../types' */
/** @import { Span } from './timeline-phases.js' */
/** @import { RowSource } from './wire-source.js' */

import { clear, h, icon, ms, svg, text } from './dom.js'
import { momentText, parkedAfter, parkedBefore, phases, spans, spoken } from './timeline-phases.js'
import { followPointer } from './timeline-pointer.js'
import { axis, bars, CALL, columns, LANE, parkedBox, TONES } from './wire-lanes.js'
import { ROW_KINDS, ROWS } from './wire-words.js'

const PHASE = 22
const MOST_PAGES = 40
const LOADING_MS = 250
const OTHER = 3
/** By event: the index in TONES. */
const TONE_OF = new Map([
  ['Text', 0],
  ['Refusal', 0],
  ['Thought', 1],
  ['CallBegin', 2],
  ['CallArgs', 2],
  ['CallEnd', 2],
  ['McpAsk', 2],
  ['McpCall', 2],
  ['McpResult', 2],
])
/** The events that begin a call, and those that end one. */
const BEGINS = new Set(['CallBegin', 'McpCall'])
const ENDS = new Set(['CallEnd', 'McpResult'])

/** @typedef {Scale & { lanes: { kind: RowKind, top: number, bottom: number }[] }} Layout */
/** @typedef {{ [Kind in RowKind]: RowSource }} Sources */

/** @returns {Lane} */
const emptyLane = () => ({ at: [], tone: [], index: [], whole: false })

export class Timeline {
  lanes = { frames: emptyLane(), events: emptyLane(), wire: emptyLane() }
  /** @type {CallBar[]} */
  calls = []
  /** @type {[number, number] | null} the zoom; null shows the whole turn */
  view = null
  /** @type {number | null} the selected moment */
  marked = null
  /** @type {Layout | null} */
  layout = null
  width = 0
  #frame = 0
  #timer = 0
  #closed = false

  /**
   * `onrow` is called when the person clicks on a row.
   *
   * @param {Turn} turn
   * @param {Sources} sources
   * @param {(kind: RowKind, index: number) => void} onrow
   */
  constructor(turn, sources, onrow) {
    this.turn = turn
    this.sources = sources
    this.onrow = onrow
    this.canvas = svg('svg', { role: 'img', class: 'timeline-canvas', 'aria-label': 'Timeline' })
    this.cursor = svg('line', { class: 'cursor chosen', visibility: 'hidden' })
    this.readout = h('p', { class: 'timeline-readout', 'aria-hidden': 'true' })
    this.range = h('span', { class: 'muted small timeline-range' })
    this.table = h('tbody')
    this.whole = h(
      'button',
      { type: 'button', class: 'button quiet small', hidden: true, onclick: () => this.zoom(0, this.end) },
      'Whole turn',
    )
    this.earlier = tool('left', 'Earlier', () => this.pan(-0.5))
    this.later = tool('right', 'Later', () => this.pan(0.5))
    const plot = h('div', { class: 'timeline-plot' }, this.canvas)
    this.element = this.#draw(plot)
    this.observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width)
      if (width === this.width) return
      this.width = width
      this.#schedule()
    })
    this.observer.observe(plot)
    followPointer(this)
    for (const kind of ROW_KINDS) this.#load(kind)
  }

  /** @param {HTMLElement} plot */
  #draw(plot) {
    const controls = h(
      'div',
      { class: 'row tight', role: 'group', 'aria-label': 'Timeline zoom' },
      this.range,
      this.whole,
      this.earlier,
      this.later,
      tool('minus', 'Zoom out', () => this.scale(2)),
      tool('plus', 'Zoom in', () => this.scale(0.5)),
    )
    const legend = h(
      'div',
      { class: 'chart-legend', 'aria-hidden': 'true', hidden: this.turn.contents === 'gone' },
      TONES.map(({ tone, name }) => h('span', { class: `key box ${tone}` }, name)),
      h('span', { class: 'key box waits' }, 'Parked'),
    )
    const heads = ['What', 'From', 'To', 'Length'].map((name, at) =>
      h('th', { scope: 'col', class: at ? 'number' : null }, name),
    )
    const details = h(
      'details',
      { class: 'chart-table' },
      h('summary', null, 'Timeline as a table'),
      h('table', { class: 'table' }, h('thead', null, h('tr', null, heads)), this.table),
    )
    return h(
      'section',
      { class: 'panel timeline', 'aria-label': 'Timeline' },
      h('div', { class: 'timeline-head' }, h('h2', null, 'Timeline'), this.readout, controls),
      plot,
      h('div', { class: 'chart-foot' }, legend, details),
    )
  }

  // --- rows ------------------------------------------------------------------------------------------------

  /** @param {RowKind} kind */
  async #load(kind) {
    const lane = this.lanes[kind]
    try {
      for await (const [first, rows] of this.sources[kind].all(MOST_PAGES)) {
        if (this.#closed) return
        const known = lane.index.at(-1) ?? -1
        rows.forEach((row, at) => {
          if (first + at > known) this.#add(kind, row, first + at)
        })
        this.#scheduleLoaded()
      }
      lane.whole = true
      this.#scheduleLoaded()
    } catch {
      // The list of rows shows the error.
    }
  }

  /** @param {RowKind} kind @param {Row} row @param {number} index */
  #add(kind, row, index) {
    const lane = this.lanes[kind]
    const [at, label] = row
    lane.at.push(at)
    lane.index.push(index)
    if (kind !== 'events') {
      lane.tone.push(0)
      return
    }
    const [name, choice] = label.split(' ') // the choice is there if the client asked for several
    lane.tone.push(TONE_OF.get(name) ?? OTHER)
    if (BEGINS.has(name) || ENDS.has(name)) this.#addCall(name, choice, row)
  }

  /** @param {string} name @param {string | undefined} choice @param {Row} row */
  #addCall(name, choice, [at, , json]) {
    const { calls, turn } = this
    const event = parsed(json)
    if (ENDS.has(name)) {
      const index = event.index ?? 0
      const open = calls.findLast((one) => one.index === index && one.choice === choice && one.to === null)
      if (open) open.to = at
    } else {
      const called = event.name ?? turn.calls[calls.length] ?? 'call'
      calls.push({ index: event.index ?? 0, choice, name: called, from: at, to: null })
    }
  }

  get end() {
    const last = ROW_KINDS.map((kind) => this.lanes[kind].at.at(-1) ?? 0)
    return Math.max(this.turn.duration_ms ?? 0, ...last, this.turn.first_byte_ms ?? 0, 1)
  }

  #schedule() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0
      if (!this.#closed && this.width > 80) this.draw()
    })
  }

  /** Draws rows that are being loaded, a few times per second. */
  #scheduleLoaded() {
    if (!this.lanes.frames.at.length) {
      this.#schedule()
      return
    }
    this.#timer ||= setTimeout(() => {
      this.#timer = 0
      this.#schedule()
    }, LOADING_MS)
  }

  // --- zoom ------------------------------------------------------------------------------------------------

  /** @param {number} from @param {number} to */
  zoom(from, to) {
    const { end } = this
    const length = Math.min(end, Math.max(to - from, end / 2000, 0.5))
    const start = Math.max(0, Math.min(from, end - length))
    this.view = length >= end * 0.999 ? null : [start, start + length]
    this.#schedule()
  }

  /** @param {number} factor */
  scale(factor) {
    const { marked } = this
    const [from, to] = this.view ?? [0, this.end]
    const middle = marked !== null && marked >= from && marked <= to ? marked : (from + to) / 2
    this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor)
  }

  /** @param {number} part */
  pan(part) {
    const [from, to] = this.view ?? [0, this.end]
    this.zoom(from + (to - from) * part, to + (to - from) * part)
  }

  // --- drawing ---------------------------------------------------------------------------------------------

  get phases() {
    const { frames, wire } = this.lanes
    const first = this.turn.first_byte_ms
    return phases({
      firstFrame: frames.at[0] ?? first,
      firstSent: wire.at[0] ?? first,
      lastSent: wire.whole ? (wire.at.at(-1) ?? null) : null,
      end: this.end,
      running: this.turn.state === 'running',
    })
  }

  draw() {
    const { turn, canvas, cursor, width, view } = this
    const narrow = width < 620
    const left = narrow ? 0 : 128
    const top = narrow ? 16 : 4
    const [from, to] = view ?? [0, this.end]
    const before = !view && parkedBefore(turn) ? (narrow ? 56 : 96) : 0
    const after = !view && turn.parked_after ? (narrow ? 48 : 80) : 0
    const start = left + before
    const space = Math.max(0, width - start - after - 2)
    /** @param {number} at */
    const x = (at) => start + ((at - from) / (to - from)) * space
    /** @type {Layout} */
    const layout = { x, start, space, from, to, lanes: [] }
    this.layout = layout
    /** @param {string} words @param {number} at @param {number} height */
    const label = (words, at, height) => {
      const position = narrow ? { x: start, y: at - 4 } : { x: 0, y: at + height / 2 + 4 }
      canvas.append(svg('text', { class: 'lane-label', ...position }, words))
    }
    const clip = svg(
      'clipPath',
      { id: 'timeline-clip' },
      svg('rect', { x: start, y: 0, width: space, height: 600 }),
    )
    clear(canvas, svg('defs', null, clip))
    const group = svg('g', { 'clip-path': 'url(#timeline-clip)' })
    let y = top

    const all = this.phases
    label('Phases', y, PHASE)
    for (const phase of all) {
      const a = Math.max(start, x(phase.from))
      const b = Math.min(start + space, x(phase.to))
      if (b <= a) continue
      const box = { x: a, y, width: Math.max(1.5, b - a - 1), height: PHASE, rx: 4 }
      group.append(svg('rect', { class: `phase ${phase.tone}`, ...box }))
      const fits = b - a > phase.short.length * 6.6 + 14
      if (fits)
        group.append(svg('text', { class: `phase-label ${phase.tone}`, x: a + 8, y: y + 15 }, phase.short))
    }
    y += PHASE + (narrow ? 22 : 10)

    for (const kind of turn.contents === 'gone' ? [] : ROW_KINDS) {
      const { total } = this.sources[kind]
      label(`${ROWS[kind].title}${total ? ` ${total.toLocaleString()}` : ''}`, y, LANE)
      canvas.append(svg('rect', { class: 'lane', x: start, y, width: space, height: LANE, rx: 4 }))
      columns(group, this.lanes[kind], y, layout)
      layout.lanes.push({ kind, top: y, bottom: y + LANE })
      y += LANE + (narrow ? 20 : 6)
    }
    if (this.calls.length) {
      y += narrow ? 0 : 4
      label('Calls', y, CALL)
      y = bars(group, this.calls, y, layout)
    }
    const first = this.lanes.frames.at[0] ?? turn.first_byte_ms
    if (first !== null && first >= from && first <= to)
      group.append(svg('line', { class: 'cursor first', x1: x(first), x2: x(first), y1: 2, y2: y }))
    cursor.setAttribute('y1', '2')
    cursor.setAttribute('y2', String(y))
    group.append(cursor)
    this.#moveCursor()
    canvas.append(group)
    if (before) parkedBox(canvas, left, before, top, y, ms(parkedBefore(turn)))
    if (after)
      parkedBox(canvas, start + space + 8, after, top, y, turn.waits ? 'still waits' : ms(parkedAfter(turn)))
    y = axis(canvas, y, layout)
    canvas.setAttribute('width', String(width))
    canvas.setAttribute('height', String(y))
    canvas.setAttribute('viewBox', `0 0 ${width} ${y}`)
    canvas.setAttribute('aria-label', spoken(turn, all, this.calls.length, this.end))
    text(this.range, view ? `${momentText(from)} to ${momentText(to)}` : '')
    for (const button of [this.whole, this.earlier, this.later]) button.hidden = !view
    clear(this.table, spans(turn, all, this.calls).map(tableRow))
  }

  /** Moves the cursor to the selected moment, without drawing anything else. */
  #moveCursor() {
    const { layout, marked, cursor } = this
    const visible = layout && marked !== null && marked >= layout.from && marked <= layout.to
    cursor.setAttribute('visibility', visible ? 'visible' : 'hidden')
    if (!visible) return
    const x = String(layout.x(marked))
    cursor.setAttribute('x1', x)
    cursor.setAttribute('x2', x)
  }

  // --- from outside ----------------------------------------------------------------------------------------

  /** Points at a moment. @param {number} at */
  mark(at) {
    this.marked = at
    this.#moveCursor()
  }

  /** Shows more of a turn that is running. @param {Turn} turn */
  update(turn) {
    this.turn = turn
    for (const kind of ROW_KINDS) this.#load(kind)
    this.#schedule()
  }

  close() {
    this.#closed = true
    this.observer.disconnect()
    cancelAnimationFrame(this.#frame)
    clearTimeout(this.#timer)
  }
}

/** @param {string} picture @param {string} label @param {() => void} onclick */
function tool(picture, label, onclick) {
  const props = {
    type: 'button',
    class: 'button quiet small square',
    'aria-label': label,
    title: label,
    onclick,
  }
  return h('button', props, icon(picture, 15))
}

/** @param {Span} span */
function tableRow({ name, from, to }) {
  const cells = [
    momentText(from),
    to === null ? 'not ended' : momentText(to),
    to === null ? '' : ms(to - from),
  ]
  return h(
    'tr',
    null,
    h('td', null, name),
    cells.map((cell) => h('td', { class: 'number' }, cell)),
  )
}

/** @param {string} json @returns {{ index?: number, name?: string }} */
function parsed(json) {
  try {
    return JSON.parse(json) ?? {}
  } catch {
    return {}
  }
}
