// Charts as SVG: columns over time, lines over time, and a ranking.
//
// Every chart has a label that describes it, a table of its numbers, and patterns or dashes in addition to
// colours. A chart is drawn again for each width, so that its text is never scaled.

/** @import { Bucket } from '../types' */

import { clear, counted, h, ms, svg, text } from './dom.js'
import { clockTime, niceTop, range, short, timeMarks } from './numbers.js'

const SHORTEST = 116
const TALLEST = 220
const AXIS = 20
const LEFT = 44

/** @typedef {Exclude<keyof Bucket, 'at'>} BucketKey */
/** @typedef {{ buckets: Bucket[], bucketSeconds: number }} Buckets */
/** @typedef {{ head: string[], rows: string[][] }} Table */
/** @typedef {{ value: BucketKey, name: string, note: string, tone: string, dashed?: boolean }} Series */
/**
 * The area in which a chart is drawn; `whole` is the width with the axis.
 *
 * @typedef {object} Plot
 * @property {number} whole
 * @property {number} left
 * @property {number} width
 * @property {number} height
 * @property {(value: number) => number} y
 */

/**
 * Columns over time. `note` is shown beside the title. `unit` is the singular noun of what is counted.
 *
 * @typedef {{ title: string, note: string, value: BucketKey, unit: string, units?: string }} ColumnOptions
 * @param {Buckets & ColumnOptions & { tone?: string, hatched?: boolean }} options
 */
export function columnChart({
  title,
  note,
  buckets,
  bucketSeconds,
  value,
  tone = 'series-1',
  hatched = false,
  unit,
  units = `${unit}s`,
}) {
  const rows = buckets.map((bucket) => ({ at: bucket.at, count: bucket[value] ?? 0 }))
  const most = Math.max(0, ...rows.map((row) => row.count))
  const total = rows.reduce((sum, row) => sum + row.count, 0)
  const peak = rows.find((row) => row.count === most)
  /** @param {number} at */
  const time = (at) => clockTime(at, bucketSeconds)
  const label =
    total && peak
      ? `${title}: ${total.toLocaleString()} in all, at most ${most.toLocaleString()} at ${time(peak.at)}.`
      : `${title}: none.`
  const used = rows.filter((row) => row.count)
  return figure({
    title,
    note,
    label,
    table: { head: ['Time', units], rows: used.map((row) => [time(row.at), row.count.toLocaleString()]) },
    readout: (index) => `${time(rows[index].at)} · ${counted(rows[index].count, unit, units)}`,
    count: rows.length,
    draw(canvas, width, height) {
      const plot = axes(canvas, width, height, niceTop(most), short, periodOf(buckets, bucketSeconds))
      const step = plot.width / rows.length
      const gap = step > 5 ? 2 : step > 3 ? 1 : 0.4
      rows.forEach(({ count }, index) => {
        if (!count) return
        const tall = Math.max(2, plot.y(0) - plot.y(count))
        const box = {
          x: plot.left + index * step + gap / 2,
          y: plot.y(0) - tall,
          width: Math.max(1, step - gap),
          height: tall,
          rx: Math.min(2, step / 4),
        }
        canvas.append(svg('rect', { class: `fill ${tone}`, ...box }))
        if (hatched) canvas.append(svg('rect', { class: 'hatch', fill: 'url(#wire-hatch)', ...box }))
      })
      return plot
    },
  })
}

/**
 * Lines over time, with a gap where there is no value.
 *
 * @param {Buckets & { title: string, series: Series[] }} options
 */
export function lineChart({ title, buckets, bucketSeconds, series }) {
  const most = Math.max(0, ...buckets.flatMap((bucket) => series.map((one) => bucket[one.value] ?? 0)))
  const ranges = series.map(
    (one) => `${one.name} between ${range(buckets.map((bucket) => bucket[one.value]))}`,
  )
  /** @param {number} index */
  const time = (index) => clockTime(buckets[index].at, bucketSeconds)
  /** @param {number} index @param {Series} one */
  const value = (index, one) => ms(buckets[index][one.value]) || '–'
  const indices = [...buckets.keys()]
  const used = indices.filter((index) => series.some((one) => buckets[index][one.value] !== null))
  return figure({
    title,
    note: '',
    label: most > 0 ? `${title}: ${ranges.join(', ')}.` : `${title}: nothing measured.`,
    legend: series,
    table: {
      head: ['Time', ...series.map((one) => one.name)],
      rows: used.map((index) => [time(index), ...series.map((one) => value(index, one))]),
    },
    readout: (index) => [time(index), ...series.map((one) => `${one.name} ${value(index, one)}`)].join(' · '),
    count: buckets.length,
    draw(canvas, width, height) {
      const plot = axes(canvas, width, height, niceTop(most), tickTime, periodOf(buckets, bucketSeconds))
      const step = plot.width / buckets.length
      for (const one of series) {
        let path = ''
        buckets.forEach((bucket, index) => {
          const current = bucket[one.value]
          if (current === null) return
          const before = buckets[index - 1]?.[one.value] ?? null
          const after = buckets[index + 1]?.[one.value] ?? null
          const x = plot.left + (index + 0.5) * step
          const y = plot.y(current)
          path += `${before === null ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`
          if (before === null && after === null)
            canvas.append(svg('circle', { class: `fill ${one.tone}`, cx: x, cy: y, r: 2.5 }))
        })
        const dashed = one.dashed ? ' dashed' : ''
        if (path) canvas.append(svg('path', { class: `stroke ${one.tone}${dashed}`, d: path }))
      }
      return plot
    },
  })
}

/** The period that buckets cover, in seconds since 1970. @param {Bucket[]} buckets @param {number} seconds */
const periodOf = (buckets, seconds) =>
  buckets.length ? { start: buckets[0].at, end: buckets[buckets.length - 1].at + seconds } : null

/** @param {number} value */
const tickTime = (value) => (value ? ms(value).replace('.00 ', ' ').replace('.0 s', ' s') : '0')

/**
 * A ranking, highest first. It is made of HTML elements, so screen readers can read its text.
 *
 * @param {object} options
 * @param {string} options.title
 * @param {{ name: string, count: number, note?: string }[]} options.rows
 * @param {string} options.tone
 * @param {string} options.unit the singular noun of what is counted
 * @param {number} [options.most] rows that are shown at first
 * @param {string} options.none shown if there are no rows
 * @param {(name: string) => void} options.onpick gets '' when the picked row is picked again
 * @param {string} options.picked
 */
export function rankChart({ title, rows, tone, unit, most = 6, none, onpick, picked }) {
  const top = Math.max(1, ...rows.map((row) => row.count))
  const list = h('ol', { class: 'rank' })
  /** @param {{ name: string, count: number, note?: string }} row */
  const drawRow = (row) => {
    const isPicked = row.name === picked
    const name = h(
      'button',
      {
        type: 'button',
        class: 'rank-name',
        'aria-pressed': isPicked,
        title: `Show only ${row.name}`,
        onclick: () => onpick(isPicked ? '' : row.name),
      },
      row.name,
    )
    const spoken = h('span', { class: 'visually-hidden' }, ` ${row.count === 1 ? unit : `${unit}s`}`)
    const count = h('span', { class: 'rank-count' }, short(row.count), spoken)
    const bar = h('span', { class: `rank-bar ${tone}`, vars: { '--share': row.count / top } })
    const track = h('span', { class: 'rank-track', 'aria-hidden': 'true' }, bar)
    return h('li', null, name, count, track, row.note ? h('span', { class: 'rank-note' }, row.note) : null)
  }
  /** @param {boolean} all */
  const fill = (all) => clear(list, rows.slice(0, all ? rows.length : most).map(drawRow))
  fill(false)
  const more = h(
    'button',
    { type: 'button', class: 'button quiet small', 'aria-expanded': false },
    `All ${rows.length}`,
  )
  more.addEventListener('click', () => {
    const open = more.getAttribute('aria-expanded') === 'false'
    more.setAttribute('aria-expanded', String(open))
    text(more, open ? 'Fewer' : `All ${rows.length}`)
    fill(open)
  })
  return h(
    'figure',
    { class: 'card chart' },
    caption(title, ''),
    rows.length ? list : h('p', { class: 'chart-none' }, none),
    rows.length > most ? more : null,
  )
}

/** An SVG element that defines the hatch pattern. Other drawings of the page refer to its id. */
export function patterns() {
  const lines = svg(
    'pattern',
    {
      id: 'wire-hatch',
      width: 5,
      height: 5,
      patternUnits: 'userSpaceOnUse',
      patternTransform: 'rotate(45)',
    },
    svg('rect', { class: 'hatch-line', width: 2, height: 5 }),
  )
  const hidden = { class: 'visually-hidden', width: 0, height: 0, 'aria-hidden': 'true', focusable: 'false' }
  return svg('svg', hidden, svg('defs', null, lines))
}

// --- parts -------------------------------------------------------------------------------------------------

/** @param {string} title @param {string} note */
function caption(title, note) {
  return h(
    'figcaption',
    { class: 'chart-head' },
    h('span', { class: 'chart-title' }, title),
    note ? h('span', { class: 'chart-note' }, note) : null,
  )
}

/**
 * @param {object} options
 * @param {string} options.title
 * @param {string} options.note
 * @param {string} options.label
 * @param {Series[]} [options.legend]
 * @param {Table} options.table
 * @param {(index: number) => string} options.readout what is shown for the bucket under the pointer
 * @param {number} options.count how many buckets there are
 * @param {(canvas: SVGElement, width: number, height: number) => Plot} options.draw
 */
function figure({ title, note, label, legend, table, readout, count, draw }) {
  const canvas = svg('svg', { role: 'img', 'aria-label': label, height: SHORTEST + AXIS })
  const line = h('div', { class: 'chart-readout', 'aria-hidden': 'true' })
  const keys = legend?.map((one) =>
    h(
      'span',
      { class: `key ${one.tone}${one.dashed ? ' dashed' : ''}` },
      one.note ? `${one.name} ${one.note}` : one.name,
    ),
  )
  const of = h('span', { class: 'visually-hidden' }, ` for ${title}`)
  const details = h('details', { class: 'chart-table' }, h('summary', null, 'Data', of))
  details.addEventListener('toggle', () => {
    if (details.open && details.children.length === 1) details.append(numbers(title, table))
  })
  const area = h('div', { class: 'chart-plot' }, canvas, line)
  const node = h(
    'figure',
    { class: 'card chart' },
    caption(title, note),
    area,
    h(
      'div',
      { class: 'chart-foot' },
      keys ? h('div', { class: 'chart-legend', 'aria-hidden': 'true' }, keys) : null,
      details,
    ),
  )
  /** @type {Plot | null} */
  let plot = null
  const cursor = svg('line', { class: 'cursor', y1: 4 })
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width)
    const height = Math.max(SHORTEST, Math.min(TALLEST, Math.floor(entry.contentRect.height) - AXIS))
    if (width <= 60 || (plot?.whole === width && plot.height === height)) return
    clear(canvas)
    canvas.setAttribute('width', String(width))
    canvas.setAttribute('height', String(height + AXIS))
    canvas.setAttribute('viewBox', `0 0 ${width} ${height + AXIS}`)
    cursor.setAttribute('y2', String(height))
    plot = draw(canvas, width, height)
  })
  observer.observe(area)
  const leave = () => {
    cursor.remove()
    text(line, '')
  }
  canvas.addEventListener('pointermove', (event) => {
    if (!plot) return
    const x = event.clientX - canvas.getBoundingClientRect().left - plot.left
    const index = Math.floor((x / plot.width) * count)
    if (index < 0 || index >= count) {
      leave()
      return
    }
    const middle = String(plot.left + ((index + 0.5) / count) * plot.width)
    cursor.setAttribute('x1', middle)
    cursor.setAttribute('x2', middle)
    if (!cursor.isConnected) canvas.append(cursor)
    text(line, readout(index))
  })
  canvas.addEventListener('pointerleave', leave)
  return node
}

/** @param {string} title @param {Table} table */
function numbers(title, { head, rows }) {
  if (!rows.length) return h('p', { class: 'muted small' }, 'No numbers in this period.')
  const heads = head.map((name, at) => h('th', { scope: 'col', class: at ? 'number' : null }, name))
  const body = rows.map((row) => {
    const cells = row.map((cell, at) => h('td', { class: at ? 'number' : null }, cell))
    return h('tr', null, cells)
  })
  return h(
    'div',
    { class: 'scroll chart-numbers', tabindex: '0', role: 'region', 'aria-label': `Data for ${title}` },
    h('table', { class: 'table' }, h('thead', null, h('tr', null, heads)), h('tbody', null, body)),
  )
}

/**
 * Draws axes and grid, and returns the scale.
 *
 * @param {SVGElement} canvas
 * @param {number} whole
 * @param {number} height
 * @param {number} top the highest value of the scale
 * @param {(value: number) => string} format
 * @param {{ start: number, end: number } | null} period
 * @returns {Plot}
 */
function axes(canvas, whole, height, top, format, period) {
  const left = LEFT
  const width = whole - left - 4
  /** @param {number} value */
  const y = (value) => 8 + (height - 8) * (1 - value / top)
  for (const value of [0, top / 2, top]) {
    const at = Math.round(y(value)) + 0.5
    // A count has no fractions, and a scale without values needs no labels.
    const hidden = value > 0 && (top <= 1 || (top < 4 && !Number.isInteger(value)))
    canvas.append(
      svg('line', { class: value ? 'grid' : 'base', x1: left, x2: whole, y1: at, y2: at }),
      svg(
        'text',
        { class: 'tick', x: left - 7, y: at + 4, 'text-anchor': 'end' },
        hidden ? '' : format(value),
      ),
    )
  }
  if (period) drawTimes(canvas, left, width, height, period)
  return { whole, left, width, height, y }
}

/**
 * Draws the times below the axis, each at its position.
 *
 * @param {SVGElement} canvas
 * @param {number} left
 * @param {number} width
 * @param {number} height
 * @param {{ start: number, end: number }} period
 */
function drawTimes(canvas, left, width, height, { start, end }) {
  const most = Math.max(2, Math.min(6, Math.floor(width / 56)))
  for (const { at, label } of timeMarks(start, end, most)) {
    const place = ((at - start) / (end - start)) * width
    const half = label.length * 3.2
    const middle = Math.max(half, Math.min(place, width - half))
    if (Math.abs(middle - place) > half) continue // it would not be below its time
    const x = Math.round(left + place) + 0.5
    canvas.append(
      svg('line', { class: 'base', x1: x, x2: x, y1: height, y2: height + 4 }),
      svg('text', { class: 'tick', x: left + middle, y: height + 16, 'text-anchor': 'middle' }, label),
    )
  }
}
