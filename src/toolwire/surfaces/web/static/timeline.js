// A turn over time: from the decoded request over the backend's frames and the events to the client's wire.
//
// Three lanes show how many rows fell into each moment, one more the calls. What a run waited for results is drawn as a hatched stub beside the
// scale, not on it: a person's minutes would hide the model's milliseconds. The phases stand as a table below, for those who do not see the drawing.

import { clear, counted, h, icon, ms, svg, text } from './dom.js'
import { axis, bars, CALL, columns, LANE, stub, TONES } from './wire-lanes.js'
import { ROWS } from './wire-words.js'

const LANES = ['frames', 'events', 'wire']
const PHASE = 22
const MOST_PAGES = 40
const LOADING_MS = 250
const TONE_OF = { Text: 0, Thought: 1, Refusal: 0, CallBegin: 2, CallArgs: 2, CallEnd: 2 }

/**
 * `sources`: {frames, events, wire} of RowSource. `onrow(kind, index)`: somebody wants to see that row.
 * Returns {element, mark(ms), update(turn), close()}.
 */
export function timeline(turn, sources, onrow) {
  const lanes = Object.fromEntries(LANES.map((kind) => [kind, { at: [], tone: [], index: [], whole: false }]))
  const calls = []
  const canvas = svg('svg', { role: 'img', class: 'timeline-canvas', 'aria-label': 'Timeline' })
  const told = h('p', { class: 'timeline-readout', 'aria-hidden': 'true' })
  const table = h('tbody')
  const zoomed = h('span', { class: 'muted small timeline-range' })
  const tool = (name, label, fn) =>
    h(
      'button',
      { type: 'button', class: 'button quiet small square', 'aria-label': label, title: label, onclick: fn },
      icon(name, 15),
    )
  const whole = h(
    'button',
    { type: 'button', class: 'button quiet small', hidden: true, onclick: () => zoom(0, end()) },
    'Whole turn',
  )
  const earlier = tool('left', 'Earlier', () => pan(-0.5))
  const later = tool('right', 'Later', () => pan(0.5))
  const controls = h(
    'div',
    { class: 'row tight', role: 'group', 'aria-label': 'Zoom of the timeline' },
    zoomed,
    whole,
    earlier,
    later,
    tool('minus', 'Zoom out', () => scale(2)),
    tool('plus', 'Zoom in', () => scale(0.5)),
  )
  const legend = h(
    'div',
    { class: 'chart-legend', 'aria-hidden': 'true', hidden: turn.contents === 'gone' },
    TONES.map(([, tone, name]) => h('span', { class: `key box ${tone}` }, name)),
    h('span', { class: 'key box waits' }, 'Parked'),
  )
  const phases = h(
    'details',
    { class: 'chart-table' },
    h('summary', null, 'Timeline as a table'),
    h(
      'table',
      { class: 'table' },
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          ['What', 'From', 'To', 'Length'].map((name, at) =>
            h('th', { scope: 'col', class: at ? 'number' : null }, name),
          ),
        ),
      ),
      table,
    ),
  )
  const cursor = svg('line', { class: 'cursor chosen', visibility: 'hidden' })
  const plot = h('div', { class: 'timeline-plot' }, canvas)
  const element = h(
    'section',
    { class: 'panel timeline', 'aria-label': 'Timeline' },
    h('div', { class: 'timeline-head' }, h('h2', null, 'Timeline'), told, controls),
    plot,
    h('div', { class: 'chart-foot' }, legend, phases),
  )

  let width = 0
  let view = null
  let marked = null
  let asked = 0
  let timer = 0
  let alive = true
  let geometry = null
  let drag = null
  let dragged = false

  const watch = new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width)
    if (now === width) return
    width = now
    soon()
  })
  watch.observe(plot)
  for (const kind of LANES) gather(kind)

  async function gather(kind) {
    const lane = lanes[kind]
    try {
      for await (const [first, rows] of sources[kind].all(MOST_PAGES)) {
        if (!alive) return
        const known = lane.index.length ? lane.index.at(-1) : -1
        rows.forEach((row, at) => {
          if (first + at <= known) return
          lane.at.push(row[0])
          lane.index.push(first + at)
          lane.tone.push(kind === 'events' ? (TONE_OF[row[1].split(' ')[0]] ?? 3) : 0)
          if (kind === 'events') note(row)
        })
        inTime()
      }
      lane.whole = true
      inTime()
    } catch {
      // the list below says what went wrong
    }
  }

  function note([at, label, words]) {
    const [name, choice] = label.split(' ') // the choice stands there where the client wanted several
    if (name !== 'CallBegin' && name !== 'CallEnd') return
    const event = parsed(words)
    const open = calls.findLast(
      (call) => call.index === event.index && call.choice === choice && call.to === null,
    )
    if (name === 'CallEnd') {
      if (open) open.to = at
    } else {
      calls.push({
        index: event.index,
        choice,
        name: event.name ?? turn.calls?.[calls.length] ?? 'call',
        from: at,
        to: null,
      })
    }
  }

  function end() {
    const last = Math.max(0, ...LANES.map((kind) => lanes[kind].at.at(-1) ?? 0))
    return Math.max(turn.duration_ms ?? 0, last, turn.first_byte_ms ?? 0, 1)
  }

  function soon() {
    asked ||= requestAnimationFrame(() => {
      asked = 0
      if (alive && width > 80) draw()
    })
  }

  /** For rows that come in: a few times a second is enough. */
  function inTime() {
    if (!lanes.frames.at.length) return soon()
    timer ||= setTimeout(() => {
      timer = 0
      soon()
    }, LOADING_MS)
  }

  // --- zoom ------------------------------------------------------------------------------------------------------------------------------------

  function zoom(from, to) {
    const most = end()
    const length = Math.min(most, Math.max(to - from, most / 2000, 0.5))
    const start = Math.max(0, Math.min(from, most - length))
    view = length >= most * 0.999 ? null : [start, start + length]
    soon()
  }
  function scale(factor) {
    const [from, to] = view ?? [0, end()]
    const middle = marked !== null && marked >= from && marked <= to ? marked : (from + to) / 2
    zoom(middle - (middle - from) * factor, middle + (to - middle) * factor)
  }
  function pan(part) {
    const [from, to] = view ?? [0, end()]
    zoom(from + (to - from) * part, to + (to - from) * part)
  }

  // --- drawing ---------------------------------------------------------------------------------------------------------------------------------

  function draw() {
    const narrow = width < 620
    const left = narrow ? 0 : 108
    const [from, to] = view ?? [0, end()]
    const before = !view && waitedBefore(turn) ? (narrow ? 56 : 96) : 0
    const after = !view && turn.parked_after ? (narrow ? 48 : 80) : 0
    const start = left + before
    const space = width - start - after - 2
    const x = (at) => start + ((at - from) / (to - from)) * space
    const inside = (at) => at >= from && at <= to
    geometry = { x, start, space, from, to, lanes: [] }
    clear(canvas)
    let y = narrow ? 16 : 4

    const label = (words, at, height) =>
      canvas.append(
        narrow
          ? svg('text', { class: 'lane-label', x: start, y: at - 4 }, words)
          : svg('text', { class: 'lane-label', x: 0, y: at + height / 2 + 4 }, words),
      )
    const clip = svg(
      'clipPath',
      { id: 'timeline-clip' },
      svg('rect', { x: start, y: 0, width: Math.max(0, space), height: 600 }),
    )
    canvas.append(svg('defs', null, clip))
    const drawn = svg('g', { 'clip-path': 'url(#timeline-clip)' })

    label('Phases', y, PHASE)
    for (const phase of phasesOf()) {
      const a = Math.max(start, x(phase.from))
      const b = Math.min(start + space, x(phase.to))
      if (b <= a) continue
      drawn.append(
        svg('rect', {
          class: `phase ${phase.tone}`,
          x: a,
          y,
          width: Math.max(1.5, b - a - 1),
          height: PHASE,
          rx: 4,
        }),
      )
      if (b - a > phase.short.length * 6.6 + 14)
        drawn.append(svg('text', { class: `phase-label ${phase.tone}`, x: a + 8, y: y + 15 }, phase.short))
    }
    y += PHASE + (narrow ? 22 : 10)

    for (const kind of turn.contents === 'gone' ? [] : LANES) {
      label(
        `${ROWS[kind].title}${sources[kind].total ? ` ${sources[kind].total.toLocaleString()}` : ''}`,
        y,
        LANE,
      )
      canvas.append(
        svg('rect', { class: 'lane', x: start, y, width: Math.max(0, space), height: LANE, rx: 4 }),
      )
      columns(drawn, lanes[kind], y, geometry)
      geometry.lanes.push({ kind, top: y, bottom: y + LANE })
      y += LANE + (narrow ? 20 : 6)
    }
    const first = lanes.frames.at[0] ?? turn.first_byte_ms
    if (calls.length) {
      y += narrow ? 0 : 4
      label('Calls', y, CALL)
      y = bars(drawn, calls, y, geometry)
    }
    if (first !== null && first !== undefined && inside(first))
      drawn.append(svg('line', { class: 'cursor first', x1: x(first), x2: x(first), y1: 2, y2: y }))
    cursor.setAttribute('y1', 2)
    cursor.setAttribute('y2', y)
    drawn.append(cursor)
    point()
    canvas.append(drawn)
    if (before) stub(canvas, left, before, narrow ? 16 : 4, y, 'parked', ms(waitedBefore(turn)))
    if (after)
      stub(
        canvas,
        start + space + 8,
        after,
        narrow ? 16 : 4,
        y,
        'parked',
        turn.waits ? 'waits' : ms(waitedAfter(turn)),
      )
    y = axis(canvas, y, geometry)
    canvas.setAttribute('width', width)
    canvas.setAttribute('height', y)
    canvas.setAttribute('viewBox', `0 0 ${width} ${y}`)
    canvas.setAttribute('aria-label', spoken())
    text(zoomed, view ? `${offsetWords(from)} to ${offsetWords(to)}` : '')
    whole.hidden = earlier.hidden = later.hidden = !view
    clear(
      table,
      [
        ...parkedBefore(),
        ...phasesOf(),
        ...calls.map((call) => ({
          name: `Call ${call.index + 1}: ${call.name}`,
          from: call.from,
          to: call.to,
        })),
        ...parkedAfter(),
      ].map((phase) =>
        h(
          'tr',
          null,
          h('td', null, phase.name),
          h('td', { class: 'number' }, offsetWords(phase.from)),
          h('td', { class: 'number' }, phase.to === null ? 'not ended' : offsetWords(phase.to)),
          h('td', { class: 'number' }, phase.to === null ? '' : ms(phase.to - phase.from)),
        ),
      ),
    )
  }

  /** The chosen moment; moving it draws nothing else. */
  function point() {
    const seen = geometry && marked !== null && marked >= geometry.from && marked <= geometry.to
    cursor.setAttribute('visibility', seen ? 'visible' : 'hidden')
    if (!seen) return
    cursor.setAttribute('x1', geometry.x(marked))
    cursor.setAttribute('x2', geometry.x(marked))
  }

  // --- words -----------------------------------------------------------------------------------------------------------------------------------

  function parkedBefore() {
    const waited = waitedBefore(turn)
    return waited ? [{ name: 'Parked, before this request brought the results', from: -waited, to: 0 }] : []
  }

  function parkedAfter() {
    const interval = turn.parked_after
    return interval
      ? [
          {
            name: 'Parked, until another request brings the results',
            from: interval.from_ms,
            to: interval.to_ms,
          },
        ]
      : []
  }

  function phasesOf() {
    const out = []
    const first = lanes.frames.at[0] ?? turn.first_byte_ms ?? null
    const sent = lanes.wire.at[0] ?? turn.first_byte_ms ?? null
    const last = lanes.wire.at.at(-1) ?? null
    const finish = end()
    const running = turn.state === 'running'
    if (first === null)
      return [
        {
          name: running ? 'Waiting for the backend' : 'No answer from the backend',
          short: running ? 'waiting for the backend' : 'no answer',
          tone: running ? 'wait' : 'bad',
          from: 0,
          to: finish,
        },
      ]
    out.push({
      name: 'Request decoded, waiting for the backend’s first frame',
      short: 'waiting for the backend',
      tone: 'wait',
      from: 0,
      to: first,
    })
    if (sent !== null && sent - first > finish / 200)
      out.push({
        name: 'First frame, nothing sent to the client yet',
        short: 'held back',
        tone: 'held',
        from: first,
        to: sent,
      })
    const begin = sent !== null && sent - first > finish / 200 ? sent : first
    const done = running || !lanes.wire.whole ? finish : Math.max(begin, last ?? finish)
    out.push({
      name: 'Events go to the client',
      short: running ? 'streaming now' : 'streaming',
      tone: 'stream',
      from: begin,
      to: done,
    })
    if (finish - done > finish / 200)
      out.push({ name: 'Closing', short: 'closing', tone: 'wait', from: done, to: finish })
    return out
  }

  function spoken() {
    const parts = phasesOf().map((phase) => `${phase.name}: ${ms(phase.to - phase.from)}`)
    const before = waitedBefore(turn) ? `, after ${ms(waitedBefore(turn))} parked` : ''
    const after = turn.waits
      ? ', and waits for results'
      : turn.parked_after
        ? `, then parked for ${ms(waitedAfter(turn))}`
        : ''
    return `Timeline of ${ms(end())}. ${parts.join('. ')}. ${counted(calls.length, 'call')}${before}${after}.`
  }

  // --- pointer ---------------------------------------------------------------------------------------------------------------------------------

  const timeAt = (event) => {
    const at = event.clientX - canvas.getBoundingClientRect().left
    return geometry.from + ((at - geometry.start) / geometry.space) * (geometry.to - geometry.from)
  }
  const band = svg('rect', { class: 'band', y: 0 })
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button || !geometry || event.pointerType === 'touch') return
    drag = { x: event.clientX, at: timeAt(event) }
    dragged = false
  })
  canvas.addEventListener('pointermove', (event) => {
    if (!geometry) return
    const at = timeAt(event)
    text(told, at >= geometry.from && at <= geometry.to ? offsetWords(at) : '')
    if (!drag || Math.abs(event.clientX - drag.x) < 5) return
    if (!dragged) {
      dragged = true
      canvas.setPointerCapture(event.pointerId)
    }
    const box = canvas.getBoundingClientRect()
    const [a, b] = [drag.x - box.left, event.clientX - box.left].sort((one, other) => one - other)
    band.setAttribute('x', a)
    band.setAttribute('width', b - a)
    band.setAttribute('height', box.height)
    if (!band.isConnected) canvas.append(band)
  })
  canvas.addEventListener('pointerleave', () => text(told, ''))
  canvas.addEventListener('pointerup', (event) => {
    const begun = drag
    drag = null
    band.remove()
    if (!begun || !dragged) return
    const [a, b] = [begun.at, timeAt(event)].sort((one, other) => one - other)
    zoom(a, b)
  })
  canvas.addEventListener('click', (event) => {
    if (dragged || !geometry) return (dragged = false)
    const y = event.clientY - canvas.getBoundingClientRect().top
    const lane = geometry.lanes.find((one) => y >= one.top && y <= one.bottom)
    if (!lane) return
    const { at, index } = lanes[lane.kind]
    const row = nearest(at, timeAt(event))
    if (row >= 0) onrow(lane.kind, index[row])
  })

  return {
    element,
    /** A moment to point at. */
    mark(at) {
      marked = at
      point()
    },
    /** The turn went on. */
    update(now) {
      turn = now
      for (const kind of LANES) gather(kind)
      soon()
    },
    close() {
      alive = false
      watch.disconnect()
      cancelAnimationFrame(asked)
      clearTimeout(timer)
    },
  }
}

const waitedBefore = (turn) => turn.parked_ms ?? 0
const waitedAfter = (turn) => turn.parked_after.to_ms - turn.parked_after.from_ms

function parsed(words) {
  try {
    return JSON.parse(words) ?? {}
  } catch {
    return {}
  }
}

/** The place of the value that is nearest, in a sorted list. */
function nearest(values, wanted) {
  let low = 0
  let high = values.length - 1
  while (low < high) {
    const middle = (low + high) >> 1
    if (values[middle] < wanted) low = middle + 1
    else high = middle
  }
  return low > 0 && wanted - values[low - 1] < values[low] - wanted ? low - 1 : low < values.length ? low : -1
}

const offsetWords = (at) => `${at < 0 ? '−' : ''}${ms(Math.abs(at)) || '0 ms'}`
