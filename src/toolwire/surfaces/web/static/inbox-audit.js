// The audit log of the inbox: every decision and every run, newest first.

/** @import { AuditRow, Child, InboxContext, InboxTab } from '../types' */

import * as api from './api.js'
import { bytes, clear, counted, h, text, visible } from './dom.js'
import { surfaceName } from './inbox-entries.js'
import { keyedList, moreButton } from './inbox-lists.js'

const LOG_PAGE = 200
const BADGES = new Map([
  ['approved', 'ok'],
  ['denied', 'bad'],
  ['expired', 'warn'],
  ['failed', 'bad'],
  ['refused', 'warn'],
])
const COLUMNS = ['When', 'Event', 'Tool', 'Model', 'Arguments hash', 'Result size, hash', 'Remark']

/** @typedef {AuditRow & { id: string }} LogRow */

/** @param {InboxContext} context @param {() => HTMLElement} empty @returns {InboxTab} */
export function auditTab(context, empty) {
  /** @type {LogRow[]} */
  let rows = []
  let limit = LOG_PAGE
  const search = h('input', {
    class: 'input',
    type: 'search',
    'aria-label': 'Filter the log',
    placeholder: 'Filter by tool, model, remark or ID',
    oninput: draw,
  })
  const all = h('option', { value: '' }, 'All events')
  const event = h('select', { class: 'select', 'aria-label': 'Event', onchange: draw }, all)
  const tally = h('p', { class: 'muted small', role: 'status' })
  const body = h('tbody', { role: 'rowgroup' })
  const heads = COLUMNS.map((name) => h('th', { scope: 'col', role: 'columnheader' }, name))
  const table = h(
    'table',
    { class: 'table audit', role: 'table' },
    h('caption', { class: 'visually-hidden' }, 'The audit log, newest first'),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)),
    body,
  )
  const more = moreButton(() => {
    limit += LOG_PAGE
    return refresh()
  }, context)
  const node = h('div', { class: 'stack loose' })
  const drawRows = keyedList(body)

  async function refresh() {
    const { audit } = await api.get(`/audit?limit=${limit}`)
    rows = audit.map((row) => ({ ...row, id: String(row.number) }))
    offerEvents([...new Set(rows.map((row) => row.event))].sort())
    more.hidden = rows.length < limit
    if (!rows.length) {
      clear(node, empty())
      return
    }
    if (!node.contains(table)) {
      const filters = h('div', { class: 'row nowrap audit-filter' }, search, event)
      clear(node, filters, tally, h('div', { class: 'panel flush scroll' }, table), more)
    }
    draw()
  }

  /** @param {string[]} events */
  function offerEvents(events) {
    const offered = [...event.options].slice(1).map((option) => option.value)
    if (events.join() === offered.join()) return
    const before = event.value
    clear(
      event,
      all,
      events.map((name) => h('option', { value: name }, name)),
    )
    event.value = events.includes(before) ? before : ''
  }

  function draw() {
    const wanted = search.value.trim().toLowerCase()
    const found = rows.filter(
      (row) => (!event.value || row.event === event.value) && searched(row).includes(wanted),
    )
    drawRows(found, drawRow)
    const total = counted(rows.length, 'line')
    text(tally, found.length === rows.length ? `${total}, newest first` : `${found.length} of ${total}`)
  }
  return { node, refresh }
}

/** The text in which the filter searches a row. @param {AuditRow} row */
function searched(row) {
  const { tool, model, note, surface, event, approval_id, session } = row
  return [tool, model, note, surface, event, approval_id, session].join('\n').toLowerCase()
}

/** @param {AuditRow} row */
function drawRow(row) {
  /** @param {string} label @param {Child} value */
  const cell = (label, value) =>
    h('td', { role: 'cell', class: value ? null : 'none', dataset: { label } }, value)
  const model = h('span', { class: 'mono' }, visible(row.model))
  const surface = h('div', { class: 'muted' }, surfaceName(row.surface))
  const result = h('div', null, bytes(row.bytes), hash('result', row.result_sha256))
  return h(
    'tr',
    { role: 'row' },
    cell('When', time(row.at)),
    cell('Event', h('span', { class: `badge ${BADGES.get(row.event) ?? ''}` }, row.event)),
    cell('Tool', h('span', { class: 'mono' }, visible(row.tool))),
    cell('Model', h('div', null, model, surface)),
    cell('Arguments hash', hash('arguments', row.arguments_sha256)),
    cell('Result size, hash', row.bytes ? result : null),
    cell('Remark', row.note ? h('span', null, visible(row.note)) : null),
  )
}

/** @param {number} at */
function time(at) {
  const exact = new Date(at * 1000)
  const day = exact.toLocaleDateString(undefined, { dateStyle: 'short' })
  const clock = exact.toLocaleTimeString(undefined, { timeStyle: 'medium' })
  return h(
    'time',
    { datetime: exact.toISOString(), title: exact.toISOString() },
    h('span', { class: 'one-line' }, day),
    ' ',
    h('span', { class: 'muted one-line' }, clock),
  )
}

/** The start of a hash. It unfolds to the whole hash. @param {string} name @param {string} value */
function hash(name, value) {
  if (!value) return null
  const short = value.slice(0, 8)
  const label = `SHA-256 of the ${name}: ${short}…`
  const title = `SHA-256 of the ${name}: ${value}`
  return h(
    'details',
    { class: 'hash' },
    h('summary', { title, 'aria-label': label }, h('span', { class: 'mono' }, short)),
    h('span', { class: 'mono' }, value),
  )
}
