// The totals and charts above the list of turns.

/** @import { Charts } from '../types' */

import { columnChart, lineChart, rankChart } from './charts.js'
import { focus, h, ms } from './dom.js'
import { perBucket, percent, short } from './numbers.js'

/** @param {Charts} reply */
export function drawTotals({ totals }) {
  /** @param {string} name @param {string} value @param {string} [tone] */
  const fact = (name, value, tone) =>
    h('div', { class: 'total' }, h('dt', null, name), h('dd', { class: tone }, value))
  return [
    fact('Requests', short(totals.requests)),
    fact('Errors', short(totals.errors), totals.errors ? 'bad' : ''),
    fact('First byte (median)', ms(totals.ttft_ms_p50) || '–'),
    fact('Calls', short(totals.calls)),
    fact('Parked runs', short(totals.parked)),
    fact('Tokens', `${short(totals.tokens_in)} in · ${short(totals.tokens_out)} out`),
  ]
}

/**
 * @param {Charts} reply
 * @param {{ model: string, tool: string }} filter
 * @param {(change: { model?: string, tool?: string }) => void} onpick
 */
export function drawCharts({ totals, buckets, bucket_s: bucketSeconds, by_tool, by_model }, filter, onpick) {
  const data = { buckets, bucketSeconds }
  const models = by_model.map((row) => {
    const failed = row.errors ? `${row.errors} failed` : ''
    const first = row.ttft_ms_p50 === null ? '' : `first byte ${ms(row.ttft_ms_p50)}`
    return { name: row.model, count: row.requests, note: [failed, first].filter(Boolean).join(' · ') }
  })
  return [
    columnChart({
      title: 'Requests',
      note: perBucket(bucketSeconds),
      value: 'requests',
      unit: 'request',
      ...data,
    }),
    lineChart({
      title: 'Time to first byte',
      series: [
        { value: 'ttft_ms_p50', name: 'p50', note: ms(totals.ttft_ms_p50), tone: 'series-1' },
        { value: 'ttft_ms_p95', name: 'p95', note: ms(totals.ttft_ms_p95), tone: 'series-3', dashed: true },
      ],
      ...data,
    }),
    columnChart({
      title: 'Errors',
      note: totals.errors ? percent(totals.errors, totals.requests) : '',
      value: 'errors',
      unit: 'error',
      tone: 'series-5',
      hatched: true,
      ...data,
    }),
    rankChart({
      title: 'Calls by tool',
      rows: by_tool.map((row) => ({ name: row.tool, count: row.calls })),
      tone: 'series-3',
      unit: 'call',
      none: 'No tool was called in this period.',
      picked: filter.tool,
      onpick: (tool) => onpick({ tool }),
    }),
    columnChart({
      title: 'Parked runs',
      note: 'wait for results',
      value: 'parked',
      unit: 'parked',
      units: 'parked',
      tone: 'series-4',
      ...data,
    }),
    rankChart({
      title: 'By model',
      rows: models,
      tone: 'series-1',
      unit: 'request',
      most: 4,
      none: 'No request in this period.',
      picked: filter.model,
      onpick: (model) => onpick({ model }),
    }),
  ]
}

/**
 * Runs `draw`. If a button in the charts had the focus, the new button with the same title gets it.
 *
 * @param {HTMLElement} charts
 * @param {() => void} draw
 */
export function keepFocus(charts, draw) {
  const active = document.activeElement
  const title = active instanceof HTMLElement && charts.contains(active) ? active.title : ''
  draw()
  if (!title) return
  const same = [...charts.querySelectorAll('button')].find((button) => button.title === title)
  focus(same, { preventScroll: true })
}
