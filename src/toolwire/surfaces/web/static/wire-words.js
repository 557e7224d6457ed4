// The words of the inspector: what strategies, kinds, dispositions and drops mean, and how a turn's end is shown.

import { h } from './dom.js'

export const STRATEGIES = {
  native:
    'The backend takes tools by itself: they went upstream as they came, and its calls came back as calls.',
  parked:
    'The backend’s own call was held open. The answer ended with the call, the run waited, and the request with the result continues the very same run.',
  constrained:
    'The model’s decoder was held to the tools’ schemas, so that a call is always well formed; the scanner then read the calls from its text.',
  emulated:
    'The tools were described in the prompt, and the scanner found the calls in what the model wrote.',
  none: 'The request offered no tools, so the text went through as it is.',
}

export const KINDS = {
  new: 'A request of its own',
  resumed: 'It continued a run that had waited for tool results',
  replayed: 'The waiting run was gone, so it was run again from the client’s own history',
}

export const DISPOSITIONS = {
  honoured: ['ok', 'check', 'Done as asked'],
  constrained: ['constrained', 'shield', 'Held by the decoder'],
  emulated: ['warn', 'tool', 'Served in another way'],
  ignored: ['', 'close', 'Left out, and said so'],
  refused: ['bad', 'warning', 'Turned down with an error'],
}

export const DROPS = {
  tail: ['characters', 'Text after the calls, which models like to make up'],
  late: ['characters', 'Text that came after the answer had ended'],
  cap: ['calls', 'Calls beyond the limit of one answer'],
  duplicate: ['calls', 'The same call with the same arguments again'],
  parallel: ['calls', 'Further calls, where the client asked for one at a time'],
  first: ['calls', 'Calls after the first, by the stop rule'],
  retry: ['answers', 'An answer that was asked for again'],
  phantom: ['calls', 'A call that never got a name'],
}

export const ROWS = {
  frames: { title: 'Frames', one: 'frame', what: 'what the backend sent' },
  events: { title: 'Events', one: 'event', what: 'what Toolwire understood' },
  wire: { title: 'Wire', one: 'block', what: 'what the client got' },
}

/** The kind of an error, whichever way it is told. */
export const errorWords = (error) =>
  !error
    ? ''
    : typeof error === 'string'
      ? error
      : [error.kind ?? error.code, error.message].filter(Boolean).join(': ')

/** The same with its words, where they are kept. */
export const failureWords = (turn) => [errorWords(turn.error), turn.message].filter(Boolean).join(': ')

/** The end as the client was told it: after calls, `stop` is `tool_calls`. */
export const finishOf = (turn) => (turn.finish === 'stop' && turn.calls?.length ? 'tool_calls' : turn.finish)

/** How a turn ended, or that it runs, as a badge. */
export function endBadge(turn) {
  if (turn.state === 'running') return h('span', { class: 'badge running' }, 'running')
  if (turn.cancelled) return h('span', { class: 'badge warn' }, 'cancelled')
  if (turn.error || turn.status >= 400)
    return h(
      'span',
      { class: 'badge bad' },
      turn.status && turn.status !== 200 ? `${turn.status} failed` : 'failed',
    )
  if (turn.waits) return h('span', { class: 'badge parked' }, 'waits for results')
  if (turn.parked)
    return h(
      'span',
      { class: 'badge parked', title: 'It ended with calls, and its run was kept for their results' },
      'parked',
    )
  return h(
    'span',
    { class: 'badge ok' },
    { tool_calls: 'tool calls', stop: 'done', length: 'cut at length', content_filter: 'filtered' }[
      finishOf(turn)
    ] ??
      finishOf(turn) ??
      'done',
  )
}

/** An offset as +0.412 s, always of one form, so that columns can be compared. */
export function offset(count) {
  if (count === null || count === undefined) return ''
  return `${count < 0 ? '−' : '+'}${(Math.abs(count) / 1000).toFixed(3)}`
}

/** The names with how often each: "file_read ×2, shell". */
export function callNames(names) {
  const counts = new Map()
  for (const name of names ?? []) counts.set(name, (counts.get(name) ?? 0) + 1)
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(', ')
}

export { escaped as visible } from './invisible.js'
