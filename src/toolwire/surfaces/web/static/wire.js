// The Wire page: charts over time, and every turn below, live. The page of one turn is in wire-turn.js.

/** @import { Charts, ClosePage, Context, TurnLine } from '../types' */

import * as api from './api.js'
import { patterns } from './charts.js'
import { clear, focus, h, icon, text } from './dom.js'
import { drawCharts, drawTotals, keepFocus } from './wire-charts.js'
import {
  chartsHidden,
  clockOf,
  drawRow,
  newest,
  noTurns,
  offer,
  select,
  statusesOf,
  storeChartsHidden,
  tick,
} from './wire-list.js'
import { openTurn } from './wire-turn.js'

export const title = 'Wire'

const WINDOWS = [
  ['1h', 'Hour'],
  ['24h', 'Day'],
  ['7d', 'Week'],
]
const STATUSES = [
  ['', 'Any status'],
  ['running', 'Running'],
  ['ok', 'Done'],
  ['error', 'Failed'],
  ['cancelled', 'Cancelled'],
  ['parked', 'Run was parked'],
]
const NUMBERS = new Set(['Tokens', 'First byte', 'Duration'])
const COLUMNS = ['Time', 'Model', 'Tools', 'API', 'Kind', 'Calls', ...NUMBERS, 'Status']
const LIMIT = 50
const CHARTS_EVERY_MS = 5_000
const RENEW_MS = 60_000
const MOST_ROWS = 1000

/** @param {HTMLElement} main @param {Context} context @returns {Promise<ClosePage>} */
export async function open(main, context) {
  if (context.id !== undefined) return openTurn(main, context, context.id)
  const page = new TurnsPage(context)
  clear(main, page.node)
  await Promise.all([page.load(), page.loadCharts()])
  return () => page.close()
}

class TurnsPage {
  /** @type {Map<string, TurnLine>} by id */
  turns = new Map()
  /** @type {Map<string, { json: string, node: HTMLElement }>} by id */
  rows = new Map()
  hasMore = false
  closed = false
  loads = 0
  chartLoads = 0
  chartTimer = 0
  requests = 0
  /** @type {{ model?: string, off: boolean } | null} what the server has, for an empty list */
  known = null

  /** @param {Context} context */
  constructor(context) {
    this.context = context
    const given = new URLSearchParams(location.search)
    const period = given.get('window') ?? ''
    this.filter = {
      window: WINDOWS.some(([name]) => name === period) ? period : '24h',
      model: given.get('model') ?? '',
      status: given.get('status') ?? '',
      tool: given.get('tool') ?? '',
    }
    const { filter } = this
    this.models = select('Model', [['', 'All models']], filter.model, (model) => this.change({ model }))
    this.statuses = select('Status', STATUSES, filter.status, (status) => this.change({ status }))
    this.tools = select('Tool', [['', 'All tools']], filter.tool, (tool) => this.change({ tool }))
    this.periods = WINDOWS.map(([name, label]) => ({
      name,
      button: h(
        'button',
        { type: 'button', class: 'segment', onclick: () => this.change({ window: name }) },
        label,
      ),
    }))
    this.charts = h('div', { class: 'charts', role: 'group', 'aria-label': 'Charts' })
    this.totals = h('dl', { class: 'totals' })
    this.foldLabel = h('span')
    this.fold = h(
      'button',
      { type: 'button', class: 'button quiet', onclick: () => this.hideCharts(!this.charts.hidden) },
      icon('chart', 16),
      this.foldLabel,
    )
    this.body = h('div', { role: 'rowgroup', class: 'turns-body' })
    const heads = COLUMNS.map((name) =>
      h('span', { role: 'columnheader', class: NUMBERS.has(name) ? 'number' : null }, name),
    )
    const head = h(
      'div',
      { role: 'rowgroup', class: 'turns-head' },
      h('div', { role: 'row', class: 'turns-row' }, heads),
    )
    this.table = h('div', { role: 'table', class: 'turns', 'aria-label': 'Turns' }, head, this.body)
    this.list = h('div', { class: 'turns-list' })
    this.older = h(
      'button',
      { type: 'button', class: 'button', hidden: true, onclick: () => this.load(true) },
      'Older turns',
    )
    this.count = h('span', { class: 'muted small', role: 'status' })
    this.node = this.draw()
    this.hideCharts(chartsHidden())
    this.showFilter()
    const { live } = context
    this.offs = [
      live.on('turn', ({ turn }) => this.receive(turn)),
      live.on('lost', () => {
        this.load()
        this.loadCharts()
      }),
    ]
    this.ticking = setInterval(() => this.tick(), 1000)
    this.renewing = setInterval(() => this.loadChartsSoon(), RENEW_MS)
  }

  draw() {
    const lead =
      'Each turn is one request: what the client sent, what the backend answered, and what the client got.'
    const periods = h(
      'div',
      { class: 'segments', role: 'group', 'aria-label': 'Period of the charts' },
      this.periods.map((one) => one.button),
    )
    return h(
      'div',
      { class: 'page wide wire' },
      patterns(),
      h(
        'div',
        { class: 'page-head' },
        h('div', null, h('h1', { tabindex: '-1' }, 'Wire'), h('p', null, lead)),
        h('div', { class: 'row wire-scope' }, this.fold, this.models.node, periods),
      ),
      this.totals,
      this.charts,
      h(
        'section',
        { class: 'stack loose', 'aria-labelledby': 'turns-title' },
        h(
          'div',
          { class: 'row between' },
          h('div', { class: 'row' }, h('h2', { id: 'turns-title' }, 'Turns'), this.count),
          h('div', { class: 'row wire-filters' }, this.statuses.node, this.tools.node),
        ),
        this.list,
        h('div', { class: 'turns-more' }, this.older),
      ),
    )
  }

  close() {
    this.closed = true
    clearInterval(this.ticking)
    clearInterval(this.renewing)
    clearTimeout(this.chartTimer)
    for (const off of this.offs) off()
  }

  // --- filters ---------------------------------------------------------------------------------------------

  /** @param {Partial<TurnsPage['filter']>} change */
  change(change) {
    Object.assign(this.filter, change)
    const { window, ...others } = this.filter
    const address = api.query(location.pathname, { ...others, window: window === '24h' ? '' : window })
    history.replaceState(history.state, '', address)
    this.showFilter()
    if (!('status' in change) || 'model' in change) this.loadCharts()
    if (!('window' in change)) this.load()
  }

  showFilter() {
    const { filter } = this
    for (const { name, button } of this.periods)
      button.setAttribute('aria-pressed', String(name === filter.window))
    this.models.field.value = filter.model
    this.statuses.field.value = filter.status
    this.tools.field.value = filter.tool
  }

  get isFiltered() {
    return Boolean(this.filter.model || this.filter.status || this.filter.tool)
  }

  /** @param {boolean} hidden */
  hideCharts(hidden) {
    this.charts.hidden = hidden
    this.fold.setAttribute('aria-expanded', String(!hidden))
    text(this.foldLabel, hidden ? 'Show charts' : 'Hide charts')
    storeChartsHidden(hidden)
  }

  // --- turns -----------------------------------------------------------------------------------------------

  get sorted() {
    return [...this.turns.values()].sort(newest)
  }

  async load(older = false) {
    this.loads += 1
    const load = this.loads
    const isOld = () => this.closed || load !== this.loads
    this.older.disabled = true
    try {
      const { model, status, tool } = this.filter
      const before = older ? this.sorted.at(-1)?.id : null
      const reply = await api.get(api.query('/turns', { limit: LIMIT, before, model, status, tool }))
      if (isOld()) return
      if (!older) {
        this.turns.clear()
        this.rows.clear()
      }
      for (const turn of reply.turns) this.turns.set(turn.id, turn)
      this.hasMore = reply.more
      if (!this.turns.size && !this.isFiltered) this.known ??= await this.learn()
      if (!isOld()) this.show()
    } catch (error) {
      if (!isOld() && api.statusOf(error) !== 401) this.showError(api.messageOf(error))
    } finally {
      this.older.disabled = false
    }
  }

  /** @param {string} message */
  showError(message) {
    const retry = h('button', { type: 'button', class: 'button', onclick: () => this.load() }, 'Try again')
    const heading = h('h3', null, 'The turns could not be loaded')
    const error = h('div', { class: 'empty' }, icon('warning'), heading, h('p', null, message), retry)
    clear(this.list, h('div', { class: 'panel' }, error))
  }

  show() {
    const { turns, body } = this
    offer(
      this.models.field,
      [...turns.values()].map((turn) => turn.model),
    )
    offer(
      this.tools.field,
      [...turns.values()].flatMap((turn) => turn.calls),
    )
    this.showFilter()
    this.older.hidden = !this.hasMore
    const { sorted } = this
    for (const turn of sorted.splice(MOST_ROWS)) turns.delete(turn.id)
    text(this.count, sorted.length ? `${sorted.length.toLocaleString()}${this.hasMore ? ' newest' : ''}` : '')
    this.showNew()
    if (!sorted.length) {
      clear(this.list, h('div', { class: 'panel' }, this.empty()))
      return
    }
    const active = document.activeElement
    const focused = body.contains(active) ? active?.getAttribute('href') : null
    const wanted = sorted.map((turn) => this.rowOf(turn))
    let at = body.firstChild
    for (const row of wanted) {
      if (row === at) at = at.nextSibling
      else body.insertBefore(row, at)
    }
    while (at) {
      const next = at.nextSibling
      at.remove()
      at = next
    }
    // The focus stays on its turn, also if the row has moved or was drawn again.
    if (focused && !body.contains(document.activeElement)) {
      const links = wanted.map((row) => row.querySelector('a'))
      const same = links.find((link) => link?.getAttribute('href') === focused)
      focus(same, { preventScroll: true })
    }
    if (!this.table.isConnected) clear(this.list, this.table)
  }

  /** Shows the page in its form for a server without any turn. */
  showNew() {
    this.node.classList.toggle('is-new', !this.turns.size && !this.isFiltered && !this.requests)
  }

  /** @param {TurnLine} turn */
  rowOf(turn) {
    const json = JSON.stringify(turn)
    const drawn = this.rows.get(turn.id)
    if (drawn?.json === json) return drawn.node
    const node = drawRow(turn)
    this.rows.set(turn.id, { node, json })
    return node
  }

  empty() {
    if (!this.isFiltered) return noTurns(this.context.session, this.known)
    const all = () => this.change({ model: '', status: '', tool: '' })
    const button = h('button', { type: 'button', class: 'button', onclick: all }, 'Show all turns')
    return h(
      'div',
      { class: 'empty' },
      icon('filter'),
      h('h3', null, 'No turn matches these filters'),
      button,
    )
  }

  /** For an empty list: which models the server has, and whether it keeps turns. */
  async learn() {
    const [models, settings] = await Promise.all([
      api.get('/models').catch(() => null),
      api.get('/settings').catch(() => null),
    ])
    const ids = (models?.models ?? []).map((model) => model.id)
    offer(this.models.field, ids)
    return { model: ids[0], off: settings?.journal.contents === 'off' }
  }

  // --- charts ----------------------------------------------------------------------------------------------

  /** @param {boolean} [requested] whether the person changed the filter; else the charts are only renewed */
  async loadCharts(requested = true) {
    clearTimeout(this.chartTimer)
    this.chartTimer = 0
    this.chartLoads += 1
    const load = this.chartLoads
    const isOld = () => this.closed || load !== this.chartLoads
    try {
      const { window, model } = this.filter
      const reply = await api.get(api.query('/charts', { window, model }))
      if (!isOld()) this.showCharts(reply, requested)
    } catch (error) {
      if (isOld() || api.statusOf(error) === 401) return
      clear(
        this.charts,
        h('p', { class: 'muted' }, `The charts could not be loaded. ${api.messageOf(error)}`),
      )
    }
  }

  loadChartsSoon() {
    this.chartTimer ||= setTimeout(() => this.loadCharts(false), CHARTS_EVERY_MS)
  }

  /** @param {Charts} reply @param {boolean} requested */
  showCharts(reply, requested) {
    const { charts } = this
    offer(
      this.models.field,
      reply.by_model.map((row) => row.model),
    )
    offer(
      this.tools.field,
      reply.by_tool.map((row) => row.tool),
    )
    this.showFilter()
    this.requests = reply.totals.requests
    this.showNew()
    clear(this.totals, drawTotals(reply))
    // A renewal does not close a table that somebody reads, and does not take the focus away.
    const inUse = charts.querySelector('details[open]') || charts.contains(document.activeElement)
    if (inUse && !requested) return
    keepFocus(charts, () =>
      clear(
        charts,
        drawCharts(reply, this.filter, (change) => this.change(change)),
      ),
    )
  }

  // --- live ------------------------------------------------------------------------------------------------

  /** @param {TurnLine} turn */
  matches(turn) {
    const { model, tool, status } = this.filter
    if (model && turn.model !== model) return false
    if (tool && !turn.calls.includes(tool)) return false
    return !status || statusesOf(turn).includes(status)
  }

  /** @param {TurnLine | undefined} turn */
  receive(turn) {
    this.loadChartsSoon()
    if (!turn) return
    if (this.matches(turn)) this.turns.set(turn.id, turn)
    else if (!this.turns.delete(turn.id)) return
    this.show()
  }

  tick() {
    for (const [id, turn] of this.turns) if (turn.state === 'running') tick(this.rows.get(id)?.node, turn)
    for (const time of this.body.querySelectorAll('time')) text(time, clockOf(new Date(time.dateTime)))
  }
}
