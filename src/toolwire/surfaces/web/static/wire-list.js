// The rows of the list of turns, and the controls above it.

/** @import { Child, Session, TurnLine } from '../types' */

import { codeBlock, h, icon, ms, strategyBadge, text } from './dom.js'
import { short } from './numbers.js'
import { callNames, endBadge, hasFailed, kindText } from './wire-words.js'

const LONGEST_NAME = 60
const STORED = 'toolwire-wire-charts'
const API_NAMES = new Map([
  ['chat', 'Chat'],
  ['responses', 'Responses'],
  ['messages', 'Messages'],
])

/** Sorts running turns first, then the newest. @param {TurnLine} one @param {TurnLine} other */
export const newest = (one, other) =>
  Number(other.state === 'running') - Number(one.state === 'running') || other.at - one.at

/** The filters that a turn passes. @param {TurnLine} turn */
export function statusesOf(turn) {
  if (turn.state === 'running') return ['running']
  if (turn.cancelled) return ['cancelled']
  if (hasFailed(turn)) return ['error']
  return turn.parked ? ['ok', 'parked'] : ['ok']
}

/** @param {TurnLine} turn */
export function drawRow(turn) {
  /** @param {string} name @param {...Child} children */
  const cell = (name, ...children) => h('span', { role: 'cell', class: `t-${name}` }, children)
  const running = turn.state === 'running'
  const at = new Date(turn.at * 1000)
  const link = h(
    'a',
    {
      class: 'turn-link',
      href: `/ui/wire/${encodeURIComponent(turn.id)}`,
      'aria-label': `${clockOf(at)}, ${turn.model || 'unknown model'}, ${endBadge(turn).textContent}`,
    },
    h('time', { datetime: at.toISOString(), title: at.toLocaleString() }, clockOf(at)),
  )
  const calls = callNames(turn.calls)
  const row = h(
    'div',
    { role: 'row', class: running ? 'turns-row is-running' : 'turns-row' },
    cell('at', link),
    cell('model', h('span', { class: 'ellipsis', title: turn.model }, turn.model || '(unknown model)')),
    cell('strategy', strategyBadge(turn.strategy)),
    cell('api', API_NAMES.get(turn.api) ?? turn.api),
    cell('kind', h('span', { title: kindText(turn.kind) }, turn.kind)),
    cell('calls', h('span', { class: 'ellipsis mono', title: calls }, calls)),
    cell('tokens number', `${short(turn.input_tokens)} → ${short(turn.output_tokens)}`),
    cell('first number', ms(turn.first_byte_ms)),
    cell('duration number', running ? '' : ms(turn.duration_ms)),
    cell(
      'end',
      endBadge(turn),
      turn.error ? h('span', { class: 't-error', title: turn.error }, turn.error) : null,
    ),
  )
  if (running) tick(row, turn)
  return row
}

/** Updates the duration of a running turn. @param {HTMLElement | undefined} row @param {TurnLine} turn */
export function tick(row, turn) {
  const place = row?.querySelector('.t-duration')
  if (!place) return
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - turn.at))
  text(
    place,
    ms(seconds * 1000)
      .replace('.00', '')
      .replace('.0', ''),
  )
}

/** Whether the charts are hidden in this browser. */
export function chartsHidden() {
  try {
    return localStorage.getItem(STORED) === 'folded'
  } catch {
    return false
  }
}

/** @param {boolean} hidden */
export function storeChartsHidden(hidden) {
  try {
    localStorage.setItem(STORED, hidden ? 'folded' : 'open')
  } catch {
    // Without storage the choice applies to this visit.
  }
}

/** The time of day; for other days also the date. @param {Date} at */
export function clockOf(at) {
  const today = at.toDateString() === new Date().toDateString()
  /** @type {Intl.DateTimeFormatOptions} */
  const options = { hour: '2-digit', minute: '2-digit', hour12: false }
  const more = today ? { second: '2-digit' } : { day: 'numeric', month: 'short' }
  return at.toLocaleString(undefined, { ...options, .../** @type {Intl.DateTimeFormatOptions} */ (more) })
}

/**
 * @param {string} label
 * @param {string[][]} options value and text
 * @param {string} value
 * @param {(value: string) => void} onpick
 */
export function select(label, options, value, onpick) {
  const field = h('select', { class: 'select', 'aria-label': label })
  for (const [name, words] of options) field.append(h('option', { value: name }, words))
  if (!options.some(([name]) => name === value)) field.append(h('option', { value }, value))
  field.value = value
  field.addEventListener('change', () => onpick(field.value))
  return { field, node: h('span', { class: 'wire-select' }, field) }
}

/**
 * Adds names to the options of a field, unless they are there.
 *
 * @param {HTMLSelectElement} field
 * @param {string[]} names
 */
export function offer(field, names) {
  const known = new Set([...field.options].map((option) => option.value))
  for (const name of new Set(names)) {
    if (!name || known.has(name)) continue
    const label = name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name
    field.append(h('option', { value: name }, label))
  }
}

/**
 * What an empty list shows: how to make a turn, or how to keep turns.
 *
 * @param {Session} session
 * @param {{ model?: string, off: boolean } | null} known
 */
export function noTurns(session, known) {
  if (known?.off) {
    return h(
      'div',
      { class: 'empty' },
      icon('wire'),
      h('h3', null, 'The journal is off'),
      h(
        'p',
        null,
        'This server does not keep turns. To see them here, change the settings file and restart the server:',
      ),
      h('div', { class: 'empty-code' }, codeBlock('[journal]\ncontents = "memory"', 'toml')),
    )
  }
  const about =
    'A turn is one request to the gateway, with its response and everything in between. Ask something on ' +
    'the Chat page, connect a client, or send a request from a terminal. The turn appears here while it ' +
    'runs.'
  return h(
    'div',
    { class: 'empty' },
    icon('wire'),
    h('h3', null, 'No turns yet'),
    h('p', null, about),
    h('div', { class: 'empty-code' }, codeBlock(curl(session, known?.model ?? 'MODEL'), 'sh')),
    h(
      'div',
      { class: 'row' },
      h('a', { class: 'button', href: '/' }, 'Open the chat'),
      h('a', { class: 'button', href: '/ui/connect' }, 'Connect a client'),
    ),
  )
}

/** A request for a shell. @param {Session} session @param {string} model */
export function curl(session, model) {
  const body = JSON.stringify({ model, stream: true, messages: [{ role: 'user', content: 'Hello' }] })
  const lines = [`curl -N ${session.base_url}/chat/completions`, "-H 'content-type: application/json'"]
  if (session.keys) lines.push('-H "authorization: Bearer $TOOLWIRE_API_KEY"')
  lines.push(`-d '${body.replaceAll("'", "'\\''")}'`)
  return lines.join(' \\\n  ')
}
