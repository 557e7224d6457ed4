// Charts as SVG: columns over time, lines over time, and a ranking.
//
// Every chart says in words what it shows (its label), has its numbers as a table behind a disclosure, and tells series apart by pattern or dash
// as well as by colour. It is drawn anew for the width it gets, so that text is never scaled.

import { clear, h, ms, svg, text } from './dom.js'

const SHORTEST = 116
const TALLEST = 220
const AXIS = 20
const LEFT = 44

/** A number in few characters: 1,234 stays, 12,345 is 12k. */
export function short(count) {
  if (count === null || count === undefined) return '–'
  if (Math.abs(count) >= 1e6) return `${(count / 1e6).toFixed(count < 1e7 ? 1 : 0)}M`
  if (Math.abs(count) >= 1e4) return `${Math.round(count / 1e3)}k`
  return Math.round(count).toLocaleString()
}

/** Columns over time. `value` is a key of the buckets. */
export function columnChart({
  title,
  told,
  buckets,
  bucketSeconds,
  value,
  tone = 'series-1',
  hatched = false,
  unit,
}) {
  const rows = buckets.map((bucket) => [bucket.at, bucket[value] ?? 0])
  const most = Math.max(0, ...rows.map((row) => row[1]))
  const total = rows.reduce((sum, row) => sum + row[1], 0)
  const peak = rows.find((row) => row[1] === most)
  const label = total
    ? `${title}: ${total.toLocaleString()} in all, at most ${most.toLocaleString()} at ${clock(peak[0], bucketSeconds)}.`
    : `${title}: none.`
  return figure({
    title,
    told,
    label,
    table: {
      head: ['Time', unit],
      rows: rows
        .filter((row) => row[1])
        .map((row) => [clock(row[0], bucketSeconds), row[1].toLocaleString()]),
    },
    readout: (at) => `${clock(rows[at][0], bucketSeconds)} · ${rows[at][1].toLocaleString()} ${unit}`,
    count: rows.length,
    draw(canvas, width, height) {
      const plot = frame(
        canvas,
        width,
        height,
        niceTop(most),
        short,
        rows.map((row) => row[0]),
        bucketSeconds,
      )
      const step = plot.width / rows.length
      const gap = step > 5 ? 2 : step > 3 ? 1 : 0.4
      rows.forEach(([, count], at) => {
        if (!count) return
        const tall = Math.max(2, plot.y(0) - plot.y(count))
        const box = {
          x: plot.left + at * step + gap / 2,
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

/** Lines over time; a gap where there is no value. `series`: [{value, name, told, tone, dashed}]. */
export function lineChart({ title, told, buckets, bucketSeconds, series }) {
  const most = Math.max(0, ...buckets.flatMap((bucket) => series.map((one) => bucket[one.value] ?? 0)))
  const said = series
    .map((one) => `${one.name} between ${range(buckets.map((bucket) => bucket[one.value]))}`)
    .join(', ')
  const any = most > 0
  return figure({
    title,
    told,
    label: any ? `${title}: ${said}.` : `${title}: nothing measured.`,
    legend: series,
    table: {
      head: ['Time', ...series.map((one) => one.name)],
      rows: buckets
        .filter((bucket) => series.some((one) => bucket[one.value] != null))
        .map((bucket) => [
          clock(bucket.at, bucketSeconds),
          ...series.map((one) => ms(bucket[one.value]) || '–'),
        ]),
    },
    readout: (at) =>
      `${clock(buckets[at].at, bucketSeconds)} · ${series.map((one) => `${one.name} ${ms(buckets[at][one.value]) || '–'}`).join(' · ')}`,
    count: buckets.length,
    draw(canvas, width, height) {
      const plot = frame(
        canvas,
        width,
        height,
        niceTop(most),
        (value) => (value ? ms(value).replace('.00 ', ' ').replace('.0 s', ' s') : '0'),
        buckets.map((bucket) => bucket.at),
        bucketSeconds,
      )
      const step = plot.width / buckets.length
      for (const one of series) {
        let path = ''
        buckets.forEach((bucket, at) => {
          const value = bucket[one.value]
          if (value == null) return
          const x = plot.left + (at + 0.5) * step
          const alone = buckets[at - 1]?.[one.value] == null && buckets[at + 1]?.[one.value] == null
          path += `${buckets[at - 1]?.[one.value] == null ? 'M' : 'L'}${x.toFixed(1)} ${plot.y(value).toFixed(1)}`
          if (alone)
            canvas.append(svg('circle', { class: `fill ${one.tone}`, cx: x, cy: plot.y(value), r: 2.5 }))
        })
        if (path)
          canvas.append(svg('path', { class: `stroke ${one.tone}${one.dashed ? ' dashed' : ''}`, d: path }))
      }
      return plot
    },
  })
}

/** The longest first. `rows`: [{name, count, note}]. Plain elements: their text is their alternative. */
export function rankChart({
  title,
  told,
  rows,
  tone = 'series-1',
  unit,
  most = 6,
  none,
  onpick = null,
  picked = '',
}) {
  const top = Math.max(1, ...rows.map((row) => row.count))
  const list = h('ol', { class: 'rank' })
  const bar = (row) => {
    const name = onpick
      ? h(
          'button',
          {
            type: 'button',
            class: 'rank-name',
            'aria-pressed': row.name === picked,
            title: `Show only ${row.name}`,
            onclick: () => onpick(row.name === picked ? '' : row.name),
          },
          row.name,
        )
      : h('span', { class: 'rank-name', title: row.name }, row.name)
    const track = h(
      'span',
      { class: 'rank-track', 'aria-hidden': 'true' },
      h('span', { class: `rank-bar ${tone}`, vars: { '--share': row.count / top } }),
    )
    const count = h(
      'span',
      { class: 'rank-count' },
      short(row.count),
      h('span', { class: 'visually-hidden' }, ` ${unit}`),
    )
    return h('li', null, name, count, track, row.note ? h('span', { class: 'rank-note' }, row.note) : null)
  }
  const fill = (all) => clear(list, rows.slice(0, all ? rows.length : most).map(bar))
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
    head(title, told),
    rows.length ? list : h('p', { class: 'chart-none' }, none),
    rows.length > most ? more : null,
  )
}

/** A hatch that other drawings of the page use by its id. */
export function patterns() {
  const lines = svg(
    'pattern',
    { id: 'wire-hatch', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
    svg('rect', { class: 'hatch-line', width: 2, height: 5 }),
  )
  return svg(
    'svg',
    { class: 'visually-hidden', width: 0, height: 0, 'aria-hidden': 'true', focusable: 'false' },
    svg('defs', null, lines),
  )
}

// --- inside --------------------------------------------------------------------------------------------------------------------------------------

function head(title, told) {
  return h(
    'figcaption',
    { class: 'chart-head' },
    h('span', { class: 'chart-title' }, title),
    told ? h('span', { class: 'chart-told' }, told) : null,
  )
}

function figure({ title, told, label, legend, table, readout, count, draw }) {
  const canvas = svg('svg', { role: 'img', 'aria-label': label, height: SHORTEST + AXIS })
  const line = h('div', { class: 'chart-readout', 'aria-hidden': 'true' })
  const keys = legend
    ? h(
        'div',
        { class: 'chart-legend', 'aria-hidden': 'true' },
        legend.map((one) =>
          h(
            'span',
            { class: `key ${one.tone}${one.dashed ? ' dashed' : ''}` },
            one.told ? `${one.name} ${one.told}` : one.name,
          ),
        ),
      )
    : null
  const below = h(
    'details',
    { class: 'chart-table' },
    h('summary', null, 'Numbers', h('span', { class: 'visually-hidden' }, ` of ${title}`)),
  )
  below.addEventListener('toggle', () => {
    if (below.open && below.children.length === 1) below.append(numbers(title, table))
  })
  const node = h(
    'figure',
    { class: 'card chart' },
    head(title, told),
    h('div', { class: 'chart-plot' }, canvas, line),
    h('div', { class: 'chart-foot' }, keys, below),
  )
  let plot = null
  const cursor = svg('line', { class: 'cursor', y1: 4 })
  const paint = (width, height) => {
    clear(canvas)
    canvas.setAttribute('width', width)
    canvas.setAttribute('height', height + AXIS)
    canvas.setAttribute('viewBox', `0 0 ${width} ${height + AXIS}`)
    cursor.setAttribute('y2', height)
    plot = draw(canvas, width, height)
  }
  const watch = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width)
    const height = Math.max(SHORTEST, Math.min(TALLEST, Math.floor(entry.contentRect.height) - AXIS))
    if (width > 60 && (plot?.whole !== width || plot.height !== height)) paint(width, height)
  })
  watch.observe(canvas.parentNode ?? node)
  canvas.addEventListener('pointermove', (event) => {
    if (!plot) return
    const at = Math.floor(
      ((event.clientX - canvas.getBoundingClientRect().left - plot.left) / plot.width) * count,
    )
    if (at < 0 || at >= count) return leave()
    const x = plot.left + ((at + 0.5) / count) * plot.width
    cursor.setAttribute('x1', x)
    cursor.setAttribute('x2', x)
    if (!cursor.isConnected) canvas.append(cursor)
    text(line, readout(at))
  })
  const leave = () => {
    cursor.remove()
    text(line, '')
  }
  canvas.addEventListener('pointerleave', leave)
  return node
}

function numbers(title, { head: names, rows }) {
  if (!rows.length) return h('p', { class: 'muted small' }, 'No numbers in this window.')
  const columns = h(
    'tr',
    null,
    names.map((name, at) => h('th', { scope: 'col', class: at ? 'number' : null }, name)),
  )
  const body = rows.map((row) =>
    h(
      'tr',
      null,
      row.map((cell, at) => h('td', { class: at ? 'number' : null }, cell)),
    ),
  )
  return h(
    'div',
    { class: 'scroll chart-numbers', tabindex: '0', role: 'region', 'aria-label': `Numbers of ${title}` },
    h('table', { class: 'table' }, h('thead', null, columns), h('tbody', null, body)),
  )
}

/** Axes and lines; gives the scale. */
function frame(canvas, whole, height, top, format, moments, bucketSeconds) {
  const left = LEFT
  const width = whole - left - 4
  const none = top <= 1
  const y = (value) => 8 + (height - 8) * (1 - value / top)
  for (const part of [0, 0.5, 1]) {
    const at = Math.round(y(top * part)) + 0.5
    canvas.append(svg('line', { class: part ? 'grid' : 'base', x1: left, x2: whole, y1: at, y2: at }))
    canvas.append(
      svg(
        'text',
        { class: 'tick', x: left - 7, y: at + 4, 'text-anchor': 'end' },
        part && top * part !== Math.round(top * part) && top < 4
          ? ''
          : part && none
            ? ''
            : format(top * part),
      ),
    )
  }
  const marks = Math.max(2, Math.min(5, Math.floor(width / 92)))
  for (let mark = 0; mark < marks; mark += 1) {
    const at = Math.round((mark / (marks - 1)) * (moments.length - 1))
    if (!moments.length) break
    const anchor = mark === 0 ? 'start' : mark === marks - 1 ? 'end' : 'middle'
    canvas.append(
      svg(
        'text',
        {
          class: 'tick',
          x: left + (mark === 0 ? 0 : mark === marks - 1 ? width : ((at + 0.5) / moments.length) * width),
          y: height + 15,
          'text-anchor': anchor,
        },
        clock(moments[at], bucketSeconds),
      ),
    )
  }
  return { whole, left, width, height, y }
}

/** A round number at or above. */
function niceTop(most) {
  if (most <= 0) return 1
  const power = 10 ** Math.floor(Math.log10(most))
  for (const factor of [1, 2, 4, 5, 8, 10]) if (most <= factor * power) return Math.max(2, factor * power)
  return 10 * power
}

function range(values) {
  const known = values.filter((value) => value != null)
  return known.length ? `${ms(Math.min(...known))} and ${ms(Math.max(...known))}` : 'no values'
}

export const moment = (at) => new Date(typeof at === 'number' ? at * 1000 : at)

/** The hour, and for long buckets the day too. */
function clock(at, bucketSeconds) {
  const options =
    bucketSeconds >= 7200
      ? { weekday: 'short', hour: '2-digit', minute: '2-digit' }
      : { hour: '2-digit', minute: '2-digit' }
  return moment(at).toLocaleString(undefined, { ...options, hour12: false })
}
