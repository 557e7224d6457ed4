// The inbox's log: every decision and every run, newest first.

import { bytes, clear, counted, h, text, visible } from './dom.js'
import { SURFACES } from './inbox-entries.js'
import { keyed, moreButton } from './inbox-lists.js'

const LOG_PAGE = 200
const EVENTS = { approved: 'ok', denied: 'bad', expired: 'warn', failed: 'bad', refused: 'warn' }
const COLUMNS = ['When', 'Event', 'Tool', 'Model', 'Arguments', 'Result', 'Note']

export function auditTab(context, empty) {
  let rows = []
  let limit = LOG_PAGE
  const words = h('input', {
    class: 'input',
    type: 'search',
    'aria-label': 'Filter the log',
    placeholder: 'Filter by tool, model, note or ID',
    oninput: draw,
  })
  const event = h(
    'select',
    { class: 'select', 'aria-label': 'Event', onchange: draw },
    h('option', { value: '' }, 'All events'),
  )
  const said = h('p', { class: 'muted small', role: 'status' })
  const lines = h('tbody', { role: 'rowgroup' })
  const table = h(
    'table',
    { class: 'table audit', role: 'table' },
    h('caption', { class: 'visually-hidden' }, 'The audit log, newest first'),
    h(
      'thead',
      { role: 'rowgroup' },
      h(
        'tr',
        { role: 'row' },
        COLUMNS.map((name) => h('th', { scope: 'col', role: 'columnheader' }, name)),
      ),
    ),
    lines,
  )
  const more = moreButton(() => {
    limit += LOG_PAGE
    return refresh()
  }, context)
  const node = h('div', { class: 'stack loose' })
  const drawRows = keyed(lines)

  async function refresh() {
    rows = (await context.api.get(`/audit?limit=${limit}`)).audit.map((row) => ({ ...row, id: row.number }))
    const events = [...new Set(rows.map((row) => row.event))].sort()
    const before = event.value
    const offered = [...event.options].slice(1).map((option) => option.value)
    if (events.join() !== offered.join()) {
      event.replaceChildren(
        h('option', { value: '' }, 'All events'),
        ...events.map((name) => h('option', { value: name }, name)),
      )
      event.value = events.includes(before) ? before : ''
    }
    more.hidden = rows.length < limit
    if (!rows.length) {
      clear(node, empty())
      return
    }
    if (!node.contains(table))
      clear(
        node,
        h('div', { class: 'row nowrap audit-filter' }, words, event),
        said,
        h('div', { class: 'panel flush scroll' }, table),
        more,
      )
    draw()
  }
  function draw() {
    const wanted = words.value.trim().toLowerCase()
    const fits = (row) =>
      (!event.value || row.event === event.value) &&
      (!wanted ||
        [row.tool, row.model, row.note, row.surface, row.event, row.approval_id, row.session]
          .join('\n')
          .toLowerCase()
          .includes(wanted))
    const found = rows.filter(fits)
    drawRows(found, auditRow)
    text(
      said,
      found.length === rows.length
        ? `${counted(rows.length, 'line')}, newest first`
        : `${found.length} of ${counted(rows.length, 'line')}`,
    )
  }
  return { node, refresh }
}

function auditRow(row) {
  const cell = (label, ...value) =>
    h('td', { role: 'cell', class: value.flat().some(Boolean) ? null : 'none', dataset: { label } }, value)
  return h(
    'tr',
    { role: 'row' },
    cell('When', moment(row.at)),
    cell('Event', h('span', { class: `badge ${EVENTS[row.event] ?? ''}` }, row.event)),
    cell('Tool', h('span', { class: 'mono' }, visible(row.tool))),
    cell(
      'Model',
      h(
        'div',
        null,
        h('span', { class: 'mono' }, visible(row.model)),
        h('div', { class: 'muted' }, SURFACES[row.surface] ?? row.surface),
      ),
    ),
    cell('Arguments', hash('arguments', row.arguments_sha256)),
    cell('Result', row.bytes ? h('div', null, bytes(row.bytes), hash('result', row.result_sha256)) : null),
    cell('Note', row.note ? h('span', null, visible(row.note)) : null),
  )
}

function moment(at) {
  const exact = new Date(at * 1000)
  const day = exact.toLocaleDateString(undefined, { dateStyle: 'short' })
  const time = exact.toLocaleTimeString(undefined, { timeStyle: 'medium' })
  return h(
    'time',
    { datetime: exact.toISOString(), title: exact.toISOString() },
    h('span', { class: 'one-line' }, day),
    ' ',
    h('span', { class: 'muted one-line' }, time),
  )
}

/** The beginning of a hash; the whole in a title, and where it is opened. */
function hash(name, value) {
  if (!value) return null
  const whole = `SHA-256 of the ${name}: ${value}`
  return h(
    'details',
    { class: 'hash' },
    h(
      'summary',
      { title: whole, 'aria-label': `${whole.slice(0, -56)}…` },
      h('span', { class: 'mono' }, value.slice(0, 8)),
    ),
    h('span', { class: 'mono' }, value),
  )
}
