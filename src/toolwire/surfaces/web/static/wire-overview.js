// The parts of a turn's page that are not lists: the overview, the request, the result of a replay, and the
// text that is shown after the contents of the turn were deleted.

/** @import { Child, Json, Replay, ReportRow, Turn } from '../types' */

import { banner, codeBlock, copyButton, counted, h, icon, ms, strategyBadge } from './dom.js'
import { jsonText, jsonTree } from './wire-json.js'
import { difference } from './wire-text.js'
import {
  DISPOSITIONS,
  DROPS,
  dispositionOf,
  errorText,
  finishOf,
  kindText,
  strategyText,
} from './wire-words.js'

const MOST_WIRE = 60_000

/** The text that is shown instead of contents that were deleted. */
export function contentsGone() {
  const about =
    'The contents of this turn were deleted. By default, Toolwire keeps contents in memory, until the ' +
    'server restarts or newer turns need the space. Contents on disk are deleted when journal.max_mb or ' +
    'journal.max_days is reached. To keep contents on disk, where only your user account can read them, ' +
    'change the settings file and restart the server:'
  return h(
    'div',
    { class: 'empty' },
    icon('clock'),
    h('h2', null, 'Only the metadata of this turn is kept'),
    h('p', null, about),
    h('div', { class: 'gone-code' }, codeBlock('[journal]\ncontents = "disk"', 'toml')),
  )
}

/** @param {string} name @param {Child} value */
function pair(name, value) {
  if (value === null || value === undefined || value === '') return null
  return [h('dt', null, name), h('dd', null, value)]
}

/** @param {Turn} turn */
export function overview(turn) {
  return h(
    'div',
    { class: 'overview' },
    toolsPanel(turn),
    endPanel(turn),
    h('section', { class: 'panel' }, h('h2', null, 'Dropped text and calls'), dropped(turn.dropped)),
    h('section', { class: 'panel span' }, h('h2', null, 'Fields of the request'), report(turn)),
  )
}

/** @param {Turn} turn */
function toolsPanel(turn) {
  const plan = turn.plan ?? {}
  const after = turn.parked_after
  /** @param {string | null | undefined} id */
  const link = (id) => (id ? h('a', { class: 'mono', href: `/ui/wire/${encodeURIComponent(id)}` }, id) : null)
  const waited =
    after &&
    (after.to_ms === null ? 'still parked, until the results arrive' : ms(after.to_ms - after.from_ms))
  const about = 'The format in which the prompt asks the model to write calls'
  const dialect = plan.dialect
    ? h('span', { class: 'badge', title: about }, `dialect: ${plan.dialect}`)
    : null
  return h(
    'section',
    { class: 'panel' },
    h('h2', null, 'How tools were handled'),
    h('p', { class: 'row' }, strategyBadge(turn.strategy), dialect),
    h('p', null, strategyText(turn.strategy)),
    h(
      'dl',
      { class: 'pairs' },
      pair('Kind', `${turn.kind}: ${kindText(turn.kind)}`),
      pair('Continuation of turn', link(turn.resumed_from)),
      pair('Wait before this turn', turn.parked_ms ? ms(turn.parked_ms) : null),
      pair('Backend', turn.backend),
      pair('Wait after this turn', waited),
      pair('Continued by turn', link(after?.turn)),
      pair('Tool choice', plan.required ? 'the client requires a call' : null),
      pair('Prefilled text of the answer', plan.begun),
      pair('Random text in the markers of calls', plan.nonce),
    ),
  )
}

/** @param {Turn} turn */
function endPanel(turn) {
  const calls = turn.calls.map((name, at) => {
    const id = h('span', { class: 'mono muted' }, turn.call_ids[at])
    return h('li', null, h('span', { class: 'mono strong' }, name), ' ', id)
  })
  return h(
    'section',
    { class: 'panel' },
    h('h2', null, 'Usage and outcome'),
    h(
      'dl',
      { class: 'pairs' },
      pair('Input tokens', turn.input_tokens.toLocaleString()),
      pair('Output tokens', turn.output_tokens.toLocaleString()),
      pair('Finish reason', finishOf(turn)),
      pair('HTTP status', turn.status),
      pair('Error', errorText(turn)),
      pair('Cancelled', turn.cancelled ? 'yes, by the client' : null),
      pair('Calls', calls.length ? h('ul', { class: 'plain' }, calls) : 'none'),
      pair('Request ID', h('span', { class: 'mono' }, turn.request_id)),
      pair('Turn ID', h('span', { class: 'mono' }, turn.id)),
      pair('API key', turn.key ? h('span', { class: 'mono' }, turn.key) : 'none needed'),
    ),
  )
}

/** @param {Turn['dropped']} drops */
function dropped(drops) {
  const rows = Object.entries(drops).map(([kind, count]) => {
    const [units, reason] = DROPS.get(kind) ?? ['', '']
    const unit = count === 1 ? units.replace(/s$/, '') : units
    return h(
      'li',
      null,
      h('span', { class: 'drop-count' }, count.toLocaleString()),
      h(
        'span',
        null,
        h('span', { class: 'strong' }, [unit, kind].filter(Boolean).join(', ')),
        h('span', { class: 'muted drop-reason' }, reason),
      ),
    )
  })
  const nothing =
    'Nothing. The client received everything that the model wrote, except for the markup around calls.'
  return rows.length ? h('ul', { class: 'plain drops' }, rows) : h('p', { class: 'muted' }, nothing)
}

/**
 * The report of request fields as rows, from any of the forms that the server sends.
 *
 * @param {Pick<Turn, 'plan' | 'report'>} turn
 * @returns {ReportRow[]}
 */
export function reportRows(turn) {
  const report = turn.plan?.report ?? turn.report
  if (Array.isArray(report)) {
    return report.map((row) => {
      if (!Array.isArray(row)) return row
      const [field, how, note = ''] = row
      return { field, how, note }
    })
  }
  if (typeof report === 'object')
    return Object.entries(report).map(([field, how]) => ({ field, how, note: '' }))
  const parts = report.split(';').map((part) => part.trim())
  return parts.filter(Boolean).map((part) => {
    const at = part.lastIndexOf('=')
    return { field: part.slice(0, at), how: part.slice(at + 1), note: '' }
  })
}

/** @param {Turn} turn */
function report(turn) {
  const kinds = [...DISPOSITIONS.keys()]
  const order = (/** @type {ReportRow} */ row) => kinds.indexOf(dispositionOf(row.how))
  const rows = reportRows(turn).toSorted((one, other) => order(one) - order(other))
  if (!rows.length) return h('p', { class: 'muted' }, 'Every field of the request was honoured.')
  const heads = ['Field', 'Result', 'How'].map((name) => h('th', { scope: 'col' }, name))
  const body = rows.map(({ field, how, note }) => {
    const [kind, picture, meaning] = DISPOSITIONS.get(dispositionOf(how)) ?? ['', 'info', '']
    return h(
      'tr',
      null,
      h('td', { class: 'mono' }, field),
      h('td', null, h('span', { class: `badge ${kind}` }, icon(picture, 12), how)),
      h('td', { class: 'muted' }, note || meaning),
    )
  })
  return table('Fields of the request', 'table', heads, body)
}

/** @param {string} label @param {string} kind @param {HTMLElement[]} heads @param {HTMLElement[]} rows */
function table(label, kind, heads, rows) {
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
    h('table', { class: kind }, h('thead', null, h('tr', null, heads)), h('tbody', null, rows)),
  )
}

/** @param {Turn} turn */
export function request(turn) {
  /** @type {[string, string, Json | undefined][]} */
  const parts = [
    ['Request body', 'The request as the client sent it. Secrets are masked.', turn.request],
    [
      'Decoded request',
      'The request in Toolwire’s internal form, which is the same for all backends.',
      turn.turn,
    ],
    [
      'Sent to the backend',
      'The request as the backend received it. Toolwire may have changed it, for example its prompt.',
      turn.plan?.asked,
    ],
  ]
  const panels = parts.flatMap(([title, about, value]) => {
    if (value === null || value === undefined) return []
    const words = h('div', null, h('h2', null, title), h('p', { class: 'muted small' }, about))
    const copier = copyButton(() => jsonText(value))
    const head = h('div', { class: 'row between nowrap sides-head' }, words, copier)
    return [h('section', { class: 'panel' }, head, jsonTree(value))]
  })
  if (panels.length) return h('div', { class: 'requests' }, panels)
  return h(
    'div',
    { class: 'empty' },
    icon('file'),
    h('h2', null, 'No request'),
    h('p', null, 'The body of the request could not be decoded, so there is nothing to show.'),
  )
}

/** The result of a replay. @param {Replay} replay */
export function replayResult(replay) {
  if (replay.same)
    return banner(
      'No difference: with the recorded output of the backend, this version of Toolwire sends the client ' +
        'exactly the same bytes.',
      'ok',
      true,
    )
  const rows = replay.differences.map((row) => {
    const then = String(row.then ?? '')
    const now = String(row.now ?? '')
    return h('tr', null, h('td', null, row.where), marked(then, now, 'then'), marked(now, then, 'now'))
  })
  const heads = ['Where', 'Then', 'Now'].map((name) => h('th', { scope: 'col' }, name))
  const wires = h(
    'details',
    null,
    h('summary', null, 'Everything the client received, then and now'),
    h(
      'div',
      { class: 'sides' },
      codeBlock(replay.wire_then.slice(0, MOST_WIRE), 'then'),
      codeBlock(replay.wire_now.slice(0, MOST_WIRE), 'now'),
    ),
  )
  const close = h(
    'button',
    { type: 'button', class: 'button quiet small square', 'aria-label': 'Dismiss' },
    icon('close', 15),
  )
  const about =
    'With the recorded output of the backend, this version of Toolwire would send the client something else.'
  const title = h('h2', null, `Replay of the recording: ${counted(rows.length, 'difference')}`)
  const node = h(
    'section',
    { class: 'panel stack', 'aria-label': 'Replay' },
    h('div', { class: 'row between' }, title, close),
    h('p', { class: 'muted' }, about),
    table('Differences', 'table replay', heads, rows),
    wires,
  )
  close.addEventListener('click', () => node.remove())
  return node
}

/**
 * A cell in which the difference is highlighted.
 *
 * @param {string} one
 * @param {string} other
 * @param {string} tone
 */
function marked(one, other, tone) {
  const { before, differs, after } = difference(one, other)
  const mark = differs ? h('mark', { class: `differs ${tone}` }, differs) : null
  return h('td', { class: 'mono' }, before, mark, after)
}
