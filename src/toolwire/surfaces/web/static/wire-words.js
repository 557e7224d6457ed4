// The texts of the Wire page: the meanings of strategies, kinds of turns, results of request fields and
// dropped output, and the badge that shows how a turn ended.

/** @import { RowKind, Turn, TurnLine } from '../types' */

import { h } from './dom.js'

const STRATEGIES = new Map([
  [
    'native',
    'The backend supports tools. Toolwire sent the tools to the backend unchanged, and sent the ' +
      'backend’s calls to the client.',
  ],
  [
    'parked',
    'When the agent calls a tool, the response ends with the call, and the agent’s run waits: it is ' +
      'parked. The request that brings the result continues the run.',
  ],
  [
    'constrained',
    'The model’s decoder permitted only calls that match the tool’s schema, as far as the decoder can ' +
      'enforce the schema. Toolwire read the calls from the model’s text.',
  ],
  ['emulated', 'Toolwire described the tools in the prompt and read the calls from the model’s text.'],
  ['none', 'No tools were offered to the model in this turn.'],
])
const KINDS = new Map([
  ['new', 'A new request'],
  ['resumed', 'The request continued a run that was waiting for tool results'],
  [
    'replayed',
    'No waiting run matched the results, so Toolwire started a new run from the history in the request',
  ],
])

/** By the result of a request field: kind of badge, icon, text. The most important results come first. */
export const DISPOSITIONS = new Map([
  ['refused', ['bad', 'warning', 'Refused with an error']],
  ['failed', ['bad', 'warning', 'Could not be done']],
  [
    'retried',
    [
      'warn',
      'retry',
      'The model’s first answer lacked a required call or had an invalid one, so Toolwire asked once more',
    ],
  ],
  [
    'healed',
    [
      'warn',
      'tool',
      'Repaired by Toolwire: the word after “healed:” names the repair, and a number after that word ' +
        'counts the repairs',
    ],
  ],
  ['ignored', ['', 'close', 'Has no effect with this backend']],
  ['emulated', ['warn', 'tool', 'Done by Toolwire instead of the backend']],
  ['constrained', ['constrained', 'shield', 'Enforced by the model’s decoder']],
  ['passed', ['', 'right', 'Unknown to Toolwire, sent to the backend unchanged']],
  ['honoured', ['ok', 'check', 'Done as requested']],
])

/** The result of a field without details: `healed` for `healed:moved_call:2`. @param {string} how */
export const dispositionOf = (how) => how.split(':', 1)[0]

/** By the kind of what was dropped: its unit, and why Toolwire dropped it. */
export const DROPS = new Map([
  ['tail', ['characters', 'Text after the calls: models often invent the results of the tools there']],
  ['late', ['characters', 'Text that came after the answer had ended']],
  ['cap', ['calls', 'Calls beyond the limit for one answer']],
  ['duplicate', ['calls', 'Repeated calls with the same arguments']],
  ['parallel', ['calls', 'Further calls: the client or the settings allow only one call at a time']],
  ['first', ['calls', 'Calls after the first: the setting tools.stop_after ends the answer after one call']],
  ['retry', ['characters', 'An answer without the required call: Toolwire asked the model again']],
  ['phantom', ['calls', 'Calls that the backend sent without a name']],
  [
    'cut',
    [
      'calls',
      'Calls to an MCP server: Toolwire did not run them, because the token limit or a content filter ' +
        'ended the answer early',
    ],
  ],
])

/** @type {RowKind[]} */
export const ROW_KINDS = ['frames', 'events', 'wire']
export const ROWS = {
  frames: {
    title: 'From backend',
    one: 'message',
    none: 'No output from the backend',
    what: 'what the backend sent',
    search: 'Search the backend’s output',
  },
  events: {
    title: 'Events',
    one: 'event',
    none: 'No events',
    what: 'how Toolwire understood the backend’s output',
    search: 'Search events',
  },
  wire: {
    title: 'To client',
    one: 'block',
    none: 'Nothing was sent to the client',
    what: 'what the client received',
    search: 'Search what the client received',
  },
}
const FINISHES = new Map([
  ['tool_calls', 'tool calls'],
  ['stop', 'done'],
  ['length', 'cut at token limit'],
  ['content_filter', 'filtered'],
])
const APIS = new Map([
  ['chat', 'Chat completions'],
  ['responses', 'Responses'],
  ['messages', 'Messages'],
])

/** @param {string} strategy */
export const strategyText = (strategy) => STRATEGIES.get(strategy) ?? ''

/** @param {string} kind */
export const kindText = (kind) => KINDS.get(kind) ?? ''

/** @param {string} api */
export const apiName = (api) => APIS.get(api) ?? api

/** The kind of a turn's error, with the message if it is kept. @param {Turn} turn */
export const errorText = (turn) => [turn.error, turn.message].filter(Boolean).join(': ')

/**
 * The finish reason that the client got: if there were calls, `tool_calls` instead of `stop`.
 *
 * @param {Pick<TurnLine, 'finish' | 'calls'>} turn
 */
export const finishOf = (turn) => (turn.finish === 'stop' && turn.calls.length ? 'tool_calls' : turn.finish)

/**
 * @typedef {'state' | 'cancelled' | 'error' | 'status' | 'finish' | 'calls' | 'parked'} EndField
 * @typedef {Pick<TurnLine, EndField> & { waits?: boolean }} Ending
 */

/** Whether a turn failed. @param {Pick<TurnLine, 'error' | 'status'>} turn */
export const hasFailed = (turn) => turn.error !== null || (turn.status ?? 0) >= 400

/** A badge that shows how a turn ended, or that it is running. @param {Ending} turn */
export function endBadge(turn) {
  if (turn.state === 'running') return h('span', { class: 'badge running' }, 'running')
  if (turn.cancelled) return h('span', { class: 'badge warn' }, 'cancelled')
  if (hasFailed(turn)) {
    const status = turn.status && turn.status !== 200 ? `${turn.status} ` : ''
    return h('span', { class: 'badge bad' }, `${status}failed`)
  }
  if (turn.waits) return h('span', { class: 'badge parked' }, 'waits for results')
  if (turn.parked) {
    const title =
      'The response ended with calls, and the run was kept to wait for their results. Open the turn to see ' +
      'whether it still waits.'
    return h('span', { class: 'badge parked', title }, 'run was parked')
  }
  const finish = finishOf(turn) ?? 'stop'
  return h('span', { class: 'badge ok' }, FINISHES.get(finish) ?? finish)
}

/** Names of calls with their numbers: "file_read ×2, shell". @param {string[]} names */
export function callNames(names) {
  /** @type {Map<string, number>} */
  const counts = new Map()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(', ')
}
