// The rows of the list of turns, and its small controls.

import { codeBlock, h, icon, ms, strategyBadge, text } from './dom.js'
import { moment, short } from './charts.js'
import { callNames, endBadge, errorWords, KINDS } from './wire-words.js'

/** Those that run first, then the newest. */
export const newest = (one, other) =>
  (other.state === 'running') - (one.state === 'running') || moment(other.at) - moment(one.at)

export function statusOf(turn) {
  if (turn.state === 'running') return ['running']
  if (turn.cancelled) return ['cancelled']
  if (turn.error || turn.status >= 400) return ['error']
  return turn.parked === true ? ['ok', 'parked'] : ['ok']
}

export function drawRow(turn) {
  const cell = (name, ...children) => h('span', { role: 'cell', class: `t-${name}` }, children)
  const at = moment(turn.at)
  const link = h(
    'a',
    { class: 'turn-link', href: `/ui/wire/${encodeURIComponent(turn.id)}` },
    h('time', { datetime: at.toISOString(), title: at.toLocaleString() }, clockOf(at)),
  )
  const failed = turn.error
    ? h('span', { class: 't-error', title: errorWords(turn.error) }, errorWords(turn.error))
    : null
  const tokens =
    turn.input_tokens == null && turn.output_tokens == null
      ? ''
      : `${short(turn.input_tokens ?? 0)} → ${short(turn.output_tokens ?? 0)}`
  const row = h(
    'div',
    { role: 'row', class: `turns-row${turn.state === 'running' ? ' is-running' : ''}` },
    cell('at', link),
    cell('model', h('span', { class: 'ellipsis', title: turn.model }, turn.model || '(unknown model)')),
    cell('strategy', strategyBadge(turn.strategy)),
    cell('api', { chat: 'Chat', responses: 'Responses' }[turn.api] ?? turn.api),
    cell('kind', h('span', { title: KINDS[turn.kind] }, turn.kind)),
    cell('calls', h('span', { class: 'ellipsis mono', title: callNames(turn.calls) }, callNames(turn.calls))),
    cell('tokens number', tokens),
    cell('first number', ms(turn.first_byte_ms)),
    cell('duration number', turn.state === 'running' ? '' : ms(turn.duration_ms)),
    cell('end', endBadge(turn), failed),
  )
  if (turn.state === 'running') tick(row, turn)
  return row
}

export function tick(row, turn) {
  const place = row?.querySelector('.t-duration')
  if (place)
    text(
      place,
      ms(Math.max(0, Math.round((Date.now() - moment(turn.at)) / 1000) * 1000))
        .replace('.00', '')
        .replace('.0', ''),
    )
}

/** Whether the charts are folded away; a matter of this browser. */
export function kept() {
  try {
    return localStorage.getItem('toolwire-wire-charts') === 'folded'
  } catch {
    return false
  }
}

export function keep(closed) {
  try {
    localStorage.setItem('toolwire-wire-charts', closed ? 'folded' : 'open')
  } catch {
    // it holds for this tab
  }
}

/** The time of day, for other days with the day. */
export function clockOf(at) {
  const today = at.toDateString() === new Date().toDateString()
  return at.toLocaleString(undefined, {
    ...(today ? {} : { day: 'numeric', month: 'short' }),
    hour: '2-digit',
    minute: '2-digit',
    ...(today ? { second: '2-digit' } : {}),
    hour12: false,
  })
}

export function select(label, options, value, onpick) {
  const field = h(
    'select',
    { class: 'select', 'aria-label': label, onchange: () => onpick(field.value) },
    options.map(([name, words]) => h('option', { value: name, selected: name === value }, words)),
  )
  if (value && !options.some(([name]) => name === value))
    field.append(h('option', { value, selected: true }, value))
  const node = h('span', { class: 'wire-select' }, field)
  node.field = field
  return node
}

/** For somebody who is new here: how to make a turn; or, where none are kept, how to keep them. */
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
        'This server keeps nothing of its turns. To see them here, say so in the configuration and start it again:',
      ),
      h('div', { class: 'empty-code' }, codeBlock('[journal]\ncontents = "memory"', 'toml')),
    )
  }
  const base = session?.base_url ?? `${location.origin}/v1`
  const sent = JSON.stringify({
    model: known?.model ?? 'MODEL',
    stream: true,
    messages: [{ role: 'user', content: 'Hello' }],
  })
  const curl = [
    `curl -N ${base}/chat/completions`,
    "-H 'content-type: application/json'",
    session?.keys ? '-H "authorization: Bearer $TOOLWIRE_KEY"' : null,
    `-d '${sent.replaceAll("'", "'\\''")}'`,
  ]
  const words =
    'A turn is one request to the gateway, with everything that came of it. Ask something on the chat page, point a client here, ' +
    'or send one from a terminal; it appears here while it runs.'
  return h(
    'div',
    { class: 'empty' },
    icon('wire'),
    h('h3', null, 'No turn yet'),
    h('p', null, words),
    h('div', { class: 'empty-code' }, codeBlock(curl.filter(Boolean).join(' \\\n  '), 'sh')),
    h(
      'div',
      { class: 'row' },
      h('a', { class: 'button', href: '/' }, 'Open the chat'),
      h('a', { class: 'button', href: '/ui/connect' }, 'Connect a client'),
    ),
  )
}
