// Charts and timelines: scales, labels, tables and drawings for full, empty and odd data.

import './page.js'

import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { columnChart, lineChart, rankChart } from '../../src/toolwire/surfaces/web/static/charts.js'
import * as numbers from '../../src/toolwire/surfaces/web/static/numbers.js'
import { phases, spans, spoken } from '../../src/toolwire/surfaces/web/static/timeline-phases.js'
import { axisTime, bars, stacks } from '../../src/toolwire/surfaces/web/static/wire-lanes.js'
import { find, resize } from './page.js'

/** @param {number} at @param {Partial<import('../../src/toolwire/surfaces/web/types').Bucket>} values */
const bucket = (at, values) => ({
  at,
  requests: 0,
  errors: 0,
  calls: 0,
  parked: 0,
  ttft_ms_p50: null,
  ttft_ms_p95: null,
  tokens_in: 0,
  tokens_out: 0,
  ...values,
})
const scale = { x: (/** @type {number} */ at) => 100 + at, from: 0, to: 300, start: 100, space: 300 }

describe('a time axis', () => {
  /** @param {string} time of the local time zone */
  const at = (time) => new Date(time).getTime() / 1000
  /** @param {string} start @param {string} end @param {number} most */
  const marks = (start, end, most) =>
    numbers.timeMarks(at(start), at(end), most).map((mark) => [mark.at, mark.label])

  it('has round times where they are, and the new day at midnight', () => {
    const shown = marks('2026-11-17T20:30:00', '2026-11-18T20:30:00', 5)
    assert.deepEqual(
      shown.map(([time]) => time),
      ['2026-11-18T00:00:00', '2026-11-18T06:00:00', '2026-11-18T12:00:00', '2026-11-18T18:00:00'].map(at),
    )
    assert.match(String(shown[0][1]), /Wed.*18|18.*Wed/)
    assert.deepEqual(shown[2][1], '12:00')
  })

  it('names every day of a week, and at most as many as there is room for', () => {
    assert.equal(marks('2026-11-11T20:00:00', '2026-11-18T20:00:00', 7).length, 7)
    assert.ok(marks('2026-11-11T20:00:00', '2026-11-18T20:00:00', 4).length <= 4)
    assert.deepEqual(
      marks('2026-11-18T10:07:00', '2026-11-18T11:07:00', 6).map(([, label]) => label),
      ['10:10', '10:20', '10:30', '10:40', '10:50', '11:00'],
    )
  })

  it('draws each mark below its time', () => {
    const start = at('2026-11-18T10:00:00')
    const buckets = [0, 1, 2].map((hour) => bucket(start + hour * 3600, { requests: 1 }))
    const options = { title: 'Requests', note: '', value: /** @type {const} */ ('requests'), unit: 'request' }
    const chart = columnChart({ ...options, buckets, bucketSeconds: 3600 })
    resize(find(chart, '.chart-plot'), 348, 200)
    const ticks = [...chart.querySelectorAll('text.tick')].filter((one) => /:/.test(one.textContent ?? ''))
    const places = ticks.map((one) => [one.textContent, Number(one.getAttribute('x'))])
    const eleven = places.find(([label]) => label === '11:00')
    assert.deepEqual(eleven, ['11:00', 44 + 100])
  })

  it('counts one and several', () => {
    const options = { tone: 'series-1', unit: 'call', none: '', onpick: () => {}, picked: '' }
    const rows = [
      { name: 'a', count: 2 },
      { name: 'b', count: 1 },
    ]
    const spoken = [...rankChart({ title: 'Calls', rows, ...options }).querySelectorAll('.visually-hidden')]
    assert.deepEqual(
      spoken.map((one) => one.textContent),
      [' calls', ' call'],
    )
  })
})

describe('scales', () => {
  it('ends at a round number that is not below the highest value', () => {
    const tops = [0, 1, 2, 3, 7, 41, 99, 101, 850, 1e6].map(numbers.niceTop)
    assert.deepEqual(tops, [1, 2, 2, 4, 8, 50, 100, 200, 1000, 1e6])
    for (let most = 1; most < 5_000; most += 7) assert.ok(numbers.niceTop(most) >= most)
  })

  it('steps by round numbers', () => {
    assert.deepEqual([0.3, 1, 3, 7, 120, 999].map(numbers.niceStep), [0.5, 1, 5, 10, 200, 1000])
    assert.ok(numbers.niceStep(0) > 0)
  })

  it('writes numbers in few characters', () => {
    const written = [null, undefined, 0, 1_234, 9_999, 12_345, 999_999, 1_500_000, 15_000_000, -20_000].map(
      numbers.short,
    )
    assert.deepEqual(written, ['–', '–', '0', '1,234', '9,999', '12k', '1000k', '1.5M', '15M', '-20k'])
  })

  it('writes offsets in one form', () => {
    assert.deepEqual([0, 12.3456, -1_500, null].map(numbers.offset), ['+0.000', '+0.012', '−1.500', ''])
  })

  it('writes parts and periods', () => {
    assert.deepEqual(
      [numbers.percent(1, 200), numbers.percent(1, 2), numbers.percent(1, 0)],
      ['0.5 %', '50 %', ''],
    )
    assert.deepEqual([60, 1_800, 3_600, 14_400].map(numbers.perBucket), [
      'per 1 min',
      'per 30 min',
      'per hour',
      'per 4 h',
    ])
  })

  it('writes times at the axis as exactly as the step needs', () => {
    assert.deepEqual(
      [
        [0, 1],
        [500, 500],
        [2_000, 1_000],
        [20, 20],
        [0.5, 0.5],
      ].map(([at, step]) => axisTime(at, step)),
      ['0', '0.5 s', '2 s', '20 ms', '0.5 ms'],
    )
  })

  it('finds the nearest value', () => {
    assert.equal(numbers.nearest([], 5), -1)
    assert.deepEqual(
      [-9, 0, 4, 6, 99].map((wanted) => numbers.nearest([0, 5, 10], wanted)),
      [0, 0, 1, 1, 2],
    )
  })
})

describe('a column chart', () => {
  const buckets = [bucket(0, { requests: 2 }), bucket(60, {}), bucket(120, { requests: 5 })]
  const options = { title: 'Requests', note: '', value: /** @type {const} */ ('requests'), unit: 'requests' }

  it('says what it shows', () => {
    const chart = columnChart({ ...options, buckets, bucketSeconds: 60 })
    assert.match(find(chart, 'svg').getAttribute('aria-label') ?? '', /^Requests: 7 in all, at most 5 at /)
    const empty = columnChart({ ...options, buckets: [], bucketSeconds: 60 })
    assert.equal(find(empty, 'svg').getAttribute('aria-label'), 'Requests: none.')
  })

  it('draws a column for each bucket with a value, inside its width', () => {
    const chart = columnChart({ ...options, buckets, bucketSeconds: 60, hatched: true })
    resize(find(chart, '.chart-plot'), 400, 200)
    const columns = [...chart.querySelectorAll('rect.fill')]
    assert.equal(columns.length, 2)
    assert.equal(chart.querySelectorAll('rect.hatch').length, 2)
    const heights = columns.map((one) => Number(one.getAttribute('height')))
    assert.ok(heights[1] > heights[0])
    for (const one of columns) {
      const x = Number(one.getAttribute('x'))
      assert.ok(x >= 44 && x + Number(one.getAttribute('width')) <= 400)
    }
  })

  it('is drawn again for another width, and not for none', () => {
    const chart = columnChart({ ...options, buckets, bucketSeconds: 60 })
    const plot = find(chart, '.chart-plot')
    resize(plot, 0, 0)
    assert.equal(chart.querySelectorAll('rect').length, 0)
    resize(plot, 300, 200)
    resize(plot, 600, 200)
    assert.equal(find(chart, 'svg').getAttribute('width'), '600')
    assert.equal(chart.querySelectorAll('rect.fill').length, 2)
  })

  it('has its numbers as a table', () => {
    const chart = columnChart({ ...options, buckets, bucketSeconds: 60 })
    const details = /** @type {HTMLDetailsElement} */ (find(chart, 'details'))
    details.open = true
    details.dispatchEvent(new Event('toggle'))
    assert.deepEqual(
      [...details.querySelectorAll('td.number')].map((one) => one.textContent),
      ['2', '5'],
    )
  })
})

describe('a line chart', () => {
  const series = [{ value: /** @type {const} */ ('ttft_ms_p50'), name: 'p50', note: '', tone: 'series-1' }]

  it('breaks the line where there is no value, and marks a value alone', () => {
    const values = [10, null, 30, 40, null, 50]
    const buckets = values.map((value, at) => bucket(at * 60, { ttft_ms_p50: value }))
    const chart = lineChart({ title: 'Time', buckets, bucketSeconds: 60, series })
    resize(find(chart, '.chart-plot'), 400, 200)
    const path = find(chart, 'path.stroke').getAttribute('d') ?? ''
    assert.equal(path.replaceAll(/[^ML]/g, ''), 'MMLM')
    assert.equal(chart.querySelectorAll('circle').length, 2)
    assert.equal(find(chart, 'svg').getAttribute('aria-label'), 'Time: p50 between 10 ms and 50 ms.')
  })

  it('says that nothing was measured', () => {
    const chart = lineChart({ title: 'Time', buckets: [bucket(0, {})], bucketSeconds: 60, series })
    resize(find(chart, '.chart-plot'), 400, 200)
    assert.equal(chart.querySelector('path.stroke'), null)
    assert.equal(find(chart, 'svg').getAttribute('aria-label'), 'Time: nothing measured.')
  })
})

describe('a ranking', () => {
  const rows = [...Array(9).keys()].map((number) => ({ name: `<b>${number}`, count: 9 - number }))

  it('shows the first rows, and all on request; a name is text', () => {
    const chart = rankChart({
      title: 'x',
      rows,
      tone: '',
      unit: 'calls',
      none: '',
      picked: '',
      onpick: () => {},
    })
    assert.equal(chart.querySelectorAll('li').length, 6)
    const more = [...chart.querySelectorAll('button')].at(-1)
    more?.click()
    assert.equal(chart.querySelectorAll('li').length, 9)
    assert.equal(chart.querySelector('b'), null)
  })

  it('picks a row, and unpicks it', () => {
    /** @type {string[]} */
    const picked = []
    const onpick = (/** @type {string} */ name) => picked.push(name)
    for (const current of ['', '<b>0']) {
      const chart = rankChart({
        title: 'x',
        rows,
        tone: '',
        unit: 'calls',
        none: '',
        picked: current,
        onpick,
      })
      chart.querySelector('button')?.click()
    }
    assert.deepEqual(picked, ['<b>0', ''])
  })
})

describe('a timeline', () => {
  const times = { firstFrame: 100, firstSent: 300, lastSent: 900, end: 1_000, running: false }

  it('has phases without a gap from the request to the end', () => {
    const all = phases(times)
    assert.deepEqual(
      all.map((one) => one.short),
      ['waiting for the backend', 'held back', 'streaming', 'ending'],
    )
    assert.equal(all[0].from, 0)
    assert.equal(all.at(-1)?.to, 1_000)
    all.slice(1).forEach((one, at) => {
      assert.equal(one.from, all[at].to)
    })
  })

  it('leaves out phases that are too short to see', () => {
    const all = phases({ ...times, firstSent: 101, lastSent: 999 })
    assert.deepEqual(
      all.map((one) => one.short),
      ['waiting for the backend', 'streaming'],
    )
  })

  it('knows a turn that runs, and one without an answer', () => {
    assert.equal(phases({ ...times, running: true }).at(-1)?.short, 'streaming now')
    assert.deepEqual(
      phases({ ...times, firstFrame: null }).map((one) => one.tone),
      ['bad'],
    )
    assert.deepEqual(
      phases({ ...times, firstFrame: null, running: true }).map((one) => one.tone),
      ['wait'],
    )
  })

  it('lists parked times before and after', () => {
    const turn = /** @type {import('../../src/toolwire/surfaces/web/types').Turn} */ ({
      parked_ms: 500,
      parked_after: { from_ms: 1_000, to_ms: null, turn: null },
      waits: true,
    })
    const call = { index: 0, choice: undefined, name: 'read', from: 1, to: 2 }
    const rows = spans(turn, phases(times), [call])
    assert.deepEqual([rows[0].from, rows[0].to], [-500, 0])
    assert.equal(rows.at(-1)?.to, null)
    assert.match(
      spoken(turn, phases(times), 1, 1_000),
      /1 call\. Run parked for 500 ms before this turn\. The run waits for results\.$/,
    )
  })

  it('counts the rows of each column by tone, inside the zoom', () => {
    const lane = { at: [0, 1, 299, 300, 301, -1], tone: [0, 2, 0, 3, 0, 0], index: [], whole: true }
    const found = stacks(lane, scale)
    assert.deepEqual(found.get(0), [1, 0, 1, 0])
    assert.deepEqual(found.get(99), [1, 0, 0, 1])
    assert.equal(
      [...found.values()].flat().reduce((sum, count) => sum + count, 0),
      4,
    )
  })

  it('draws calls that overlap below each other, on at most four lines', () => {
    const group = document.createElementNS('http://www.w3.org/2000/svg', 'g')
    const calls = [...Array(8).keys()].map((index) => ({
      index,
      choice: undefined,
      name: 'read',
      from: 10,
      to: null,
    }))
    const below = bars(group, calls, 0, scale)
    const tops = new Set([...group.querySelectorAll('rect')].map((one) => one.getAttribute('y')))
    assert.equal(tops.size, 4)
    assert.equal(below, 100)
  })
})
