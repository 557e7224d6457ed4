// The window into the wire: charts over time and every turn below, live. A turn's own page is in wire-turn.js.

import { clear, h, icon, ms, text } from './dom.js'
import { query } from './api.js'
import { columnChart, lineChart, patterns, rankChart, short } from './charts.js'
import { clockOf, drawRow, keep, kept, newest, noTurns, select, statusOf, tick } from './wire-list.js'
import { openTurn } from './wire-turn.js'

export const title = 'Wire'

const WINDOWS = [
  ['1h', 'Hour'],
  ['24h', 'Day'],
  ['7d', 'Week'],
]
const STATUSES = [
  ['', 'Any end'],
  ['running', 'Running'],
  ['ok', 'Done'],
  ['error', 'Failed'],
  ['cancelled', 'Cancelled'],
  ['parked', 'Parked'],
]
const LIMIT = 50
const CHARTS_EVERY_MS = 5000
const MOST_ROWS = 1000

export async function open(main, context) {
  const [, id] = /^\/ui\/wire\/([^/]+)\/?$/.exec(location.pathname) ?? []
  return id ? openTurn(main, context, decodeURIComponent(id)) : openList(main, context)
}

async function openList(main, context) {
  const { api, live } = context
  const given = new URLSearchParams(location.search)
  const filter = {
    window: WINDOWS.some(([name]) => name === given.get('window')) ? given.get('window') : '24h',
    model: given.get('model') ?? '',
    status: given.get('status') ?? '',
    tool: given.get('tool') ?? '',
  }
  const turns = new Map()
  const rows = new Map()
  let more = false
  let closed = false
  let loading = 0
  let requested = 0
  let known = null

  const charts = h('div', { class: 'charts', role: 'group', 'aria-label': 'Charts' })
  const totals = h('dl', { class: 'totals' })
  const folding = h(
    'button',
    { type: 'button', class: 'button quiet', 'aria-expanded': !kept(), onclick: () => fold(!charts.hidden) },
    icon('chart', 16),
    h('span'),
  )
  const fold = (closed) => {
    charts.hidden = closed
    folding.setAttribute('aria-expanded', String(!closed))
    text(folding.lastChild, closed ? 'Show charts' : 'Hide charts')
    keep(closed)
  }
  fold(kept())
  const models = select('Model', [['', 'All models']], filter.model, (value) => change({ model: value }))
  const statuses = select('End', STATUSES, filter.status, (value) => change({ status: value }))
  const tools = select('Tool', [['', 'All tools']], filter.tool, (value) => change({ tool: value }))
  const windows = h(
    'div',
    { class: 'segments', role: 'group', 'aria-label': 'Window of the charts' },
    WINDOWS.map(([name, words]) =>
      h(
        'button',
        { type: 'button', class: 'segment', dataset: { id: name }, onclick: () => change({ window: name }) },
        words,
      ),
    ),
  )
  const body = h('div', { role: 'rowgroup', class: 'turns-body' })
  const columns = [
    'Time',
    'Model',
    'Tools',
    'API',
    'Kind',
    'Calls',
    'Tokens',
    'First token',
    'Duration',
    'End',
  ]
  const table = h(
    'div',
    { role: 'table', class: 'turns', 'aria-label': 'Turns' },
    h(
      'div',
      { role: 'rowgroup', class: 'turns-head' },
      h(
        'div',
        { role: 'row', class: 'turns-row' },
        columns.map((name, at) =>
          h('span', { role: 'columnheader', class: at >= 6 && at <= 8 ? 'number' : null }, name),
        ),
      ),
    ),
    body,
  )
  const place = h('div', { class: 'turns-place' })
  const older = h(
    'button',
    { type: 'button', class: 'button', hidden: true, onclick: () => load(true) },
    'Older turns',
  )
  const count = h('span', { class: 'muted small', role: 'status' })

  const page = h(
    'div',
    { class: 'page wide wire' },
    patterns(),
    h(
      'div',
      { class: 'page-head' },
      h(
        'div',
        null,
        h('h1', { tabindex: '-1' }, 'Wire'),
        h('p', null, 'Every turn, from the backend’s frames to the client’s bytes.'),
      ),
      h('div', { class: 'row wire-scope' }, folding, models, windows),
    ),
    totals,
    charts,
    h(
      'section',
      { class: 'stack loose', 'aria-labelledby': 'turns-title' },
      h(
        'div',
        { class: 'row between' },
        h('div', { class: 'row' }, h('h2', { id: 'turns-title' }, 'Turns'), count),
        h('div', { class: 'row wire-filters' }, statuses, tools),
      ),
      place,
      h('div', { class: 'turns-more' }, older),
    ),
  )
  clear(main, page)
  mark()

  // --- filters ---------------------------------------------------------------------------------------------------------------------------------

  function change(what) {
    Object.assign(filter, what)
    const kept = Object.entries(filter).filter(
      ([name, value]) => value && !(name === 'window' && value === '24h'),
    )
    history.replaceState(history.state, '', kept.length ? `?${new URLSearchParams(kept)}` : location.pathname)
    mark()
    if (!('status' in what) || 'model' in what) chart()
    if (!('window' in what)) load()
  }

  function mark() {
    for (const button of windows.children)
      button.setAttribute('aria-pressed', String(button.dataset.id === filter.window))
    models.field.value = filter.model
    statuses.field.value = filter.status
    tools.field.value = filter.tool
  }

  /** Names that may be chosen: those that were there, and those that came. */
  function offer(field, names) {
    const known = new Set([...field.options].map((option) => option.value))
    for (const name of names)
      if (name && !known.has(name))
        field.append(h('option', { value: name }, name.length > 60 ? `${name.slice(0, 59)}…` : name))
  }

  // --- turns -----------------------------------------------------------------------------------------------------------------------------------

  async function load(next = false) {
    const mine = (loading += 1)
    older.disabled = true
    try {
      const last = next ? [...turns.values()].sort(newest).at(-1) : null
      const told = await api.get(
        query('/turns', {
          limit: LIMIT,
          before: last?.id,
          model: filter.model,
          status: filter.status,
          tool: filter.tool,
        }),
      )
      if (closed || mine !== loading) return
      if (!next) {
        turns.clear()
        rows.clear()
      }
      for (const turn of told.turns) turns.set(turn.id, turn)
      more = told.more
      if (!turns.size && !filtered()) known ??= await learn()
      if (!closed && mine === loading) show()
    } catch (error) {
      if (closed || mine !== loading || error.status === 401) return
      clear(
        place,
        h(
          'div',
          { class: 'panel' },
          h(
            'div',
            { class: 'empty' },
            icon('warning'),
            h('h3', null, 'The turns could not be loaded'),
            h('p', null, error.message),
            h('button', { type: 'button', class: 'button', onclick: () => load() }, 'Try again'),
          ),
        ),
      )
    } finally {
      older.disabled = false
    }
  }

  function show() {
    offer(
      models.field,
      [...turns.values()].map((turn) => turn.model),
    )
    offer(
      tools.field,
      [...turns.values()].flatMap((turn) => turn.calls ?? []),
    )
    mark()
    older.hidden = !more
    const sorted = [...turns.values()].sort(newest)
    for (const turn of sorted.splice(MOST_ROWS)) turns.delete(turn.id)
    text(count, sorted.length ? `${sorted.length.toLocaleString()}${more ? ' newest' : ''}` : '')
    page.classList.toggle('is-new', !sorted.length && !filtered() && !requested)
    if (!sorted.length) return clear(place, h('div', { class: 'panel' }, empty()))
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null
    const wanted = sorted.map(rowOf)
    let at = body.firstChild
    for (const row of wanted) {
      if (row === at) at = at.nextSibling
      else body.insertBefore(row, at)
    }
    while (at) {
      const gone = at
      at = at.nextSibling
      gone.remove()
    }
    // the keyboard stays on its turn, also when the row moved or was drawn anew
    if (focused && !body.contains(document.activeElement))
      wanted
        .map((row) => row.querySelector('a'))
        .find((link) => link.getAttribute('href') === focused)
        ?.focus({ preventScroll: true })
    if (!table.isConnected) clear(place, table)
  }

  function rowOf(turn) {
    const written = JSON.stringify(turn)
    const held = rows.get(turn.id)
    if (held?.written === written) return held.node
    const node = drawRow(turn)
    rows.set(turn.id, { node, written })
    return node
  }

  const filtered = () => filter.model || filter.status || filter.tool

  function empty() {
    if (filtered())
      return h(
        'div',
        { class: 'empty' },
        icon('filter'),
        h('h3', null, 'No turn fits these filters'),
        h(
          'button',
          { type: 'button', class: 'button', onclick: () => change({ model: '', status: '', tool: '' }) },
          'Show all turns',
        ),
      )
    return noTurns(context.session, known)
  }

  /** What the page says to somebody new depends on the server: whether it keeps turns at all, and which models it has. */
  async function learn() {
    const [served, settings] = await Promise.all([
      api.get('/models').catch(() => ({})),
      api.get('/settings').catch(() => ({})),
    ])
    offer(
      models.field,
      (served.models ?? []).map((model) => model.id),
    )
    return { model: served.models?.[0]?.id, off: settings.journal?.contents === 'off' }
  }

  // --- charts ----------------------------------------------------------------------------------------------------------------------------------

  let drawn = 0
  let chartTimer = 0
  async function chart(asked = true) {
    clearTimeout(chartTimer)
    chartTimer = 0
    const mine = (drawn += 1)
    try {
      const told = await api.get(query('/charts', { window: filter.window, model: filter.model }))
      if (closed || mine !== drawn) return
      paint(told, asked)
    } catch (error) {
      if (closed || mine !== drawn || error.status === 401) return
      clear(charts, h('p', { class: 'muted' }, `The charts could not be loaded. ${error.message}`))
    }
  }
  const chartSoon = () => {
    chartTimer ||= setTimeout(() => chart(false), CHARTS_EVERY_MS)
  }

  function paint(told, asked) {
    const all = told.totals ?? {}
    const sum = (name) => all[name] ?? told.buckets.reduce((total, bucket) => total + (bucket[name] ?? 0), 0)
    offer(
      models.field,
      told.by_model.map((row) => row.model),
    )
    offer(
      tools.field,
      told.by_tool.map((row) => row.tool),
    )
    mark()
    const requests = (requested = sum('requests'))
    page.classList.toggle('is-new', !turns.size && !filtered() && !requests)
    const errors = sum('errors')
    const fact = (name, value, tone) =>
      h('div', { class: 'total' }, h('dt', null, name), h('dd', { class: tone }, value))
    clear(
      totals,
      fact('Requests', short(requests)),
      fact('Errors', short(errors), errors ? 'bad' : ''),
      fact('First token', ms(all.ttft_ms_p50) || '–'),
      fact('Calls', short(sum('calls'))),
      fact('Parked', short(sum('parked'))),
      fact('Tokens', `${short(sum('tokens_in'))} in · ${short(sum('tokens_out'))} out`),
    )
    const given = { buckets: told.buckets, bucketSeconds: told.bucket_s }
    // nobody's table is taken away while it is read, and the keyboard stays where it was
    if (!asked && (charts.querySelector('details[open]') || charts.contains(document.activeElement))) return
    const focused = charts.contains(document.activeElement) ? document.activeElement.title : ''
    clear(
      charts,
      columnChart({
        title: 'Requests',
        told: each(told.bucket_s),
        value: 'requests',
        unit: 'requests',
        ...given,
      }),
      lineChart({
        title: 'Time to first token',
        series: [
          { value: 'ttft_ms_p50', name: 'p50', told: ms(all.ttft_ms_p50), tone: 'series-1' },
          { value: 'ttft_ms_p95', name: 'p95', told: ms(all.ttft_ms_p95), tone: 'series-3', dashed: true },
        ],
        ...given,
      }),
      columnChart({
        title: 'Errors',
        told: errors ? share(errors, requests) : '',
        value: 'errors',
        unit: 'errors',
        tone: 'series-5',
        hatched: true,
        ...given,
      }),
      rankChart({
        title: 'Calls by tool',
        rows: told.by_tool.map((row) => ({ name: row.tool, count: row.calls })),
        tone: 'series-3',
        unit: 'calls',
        none: 'No tool was called in this window.',
        picked: filter.tool,
        onpick: (tool) => change({ tool }),
      }),
      columnChart({
        title: 'Parked',
        told: 'waiting for results',
        value: 'parked',
        unit: 'parked',
        tone: 'series-4',
        ...given,
      }),
      rankChart({
        title: 'By model',
        rows: told.by_model.map((row) => ({
          name: row.model,
          count: row.requests,
          note: [
            row.errors ? `${row.errors} failed` : '',
            row.ttft_ms_p50 == null ? '' : `first token ${ms(row.ttft_ms_p50)}`,
          ]
            .filter(Boolean)
            .join(' · '),
        })),
        tone: 'series-1',
        unit: 'requests',
        most: 4,
        none: 'No request in this window.',
        picked: filter.model,
        onpick: (model) => change({ model }),
      }),
    )
    if (focused)
      [...charts.querySelectorAll('button')]
        .find((button) => button.title === focused)
        ?.focus({ preventScroll: true })
  }

  // --- live ------------------------------------------------------------------------------------------------------------------------------------

  const fits = (turn) =>
    (!filter.model || turn.model === filter.model) &&
    (!filter.tool || turn.calls?.includes(filter.tool)) &&
    (!filter.status || statusOf(turn).includes(filter.status))
  const offs = [
    live.on('turn', ({ turn }) => {
      chartSoon()
      if (!turn) return
      if (fits(turn)) turns.set(turn.id, turn)
      else if (!turns.delete(turn.id)) return
      show()
    }),
    live.on('lost', () => {
      load()
      chart()
    }),
  ]
  const ticking = setInterval(() => {
    for (const [id, turn] of turns) if (turn.state === 'running') tick(rows.get(id)?.node, turn)
    for (const time of body.querySelectorAll('time')) text(time, clockOf(new Date(time.dateTime)))
  }, 1000)
  const renewing = setInterval(chartSoon, 60_000)

  await Promise.all([load(), chart()])
  return () => {
    closed = true
    clearInterval(ticking)
    clearInterval(renewing)
    clearTimeout(chartTimer)
    for (const off of offs) off()
  }
}

const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(part * 10 < whole ? 1 : 0)} %` : '')
const each = (seconds) =>
  `per ${seconds === 3600 ? 'hour' : seconds > 3600 ? `${seconds / 3600} h` : `${Math.round(seconds / 60)} min`}`
