// The texts around a question: who asks for what, the label of the button that approves, the effect of a
// decision, and where it was decided.

/** @import { Approval, Child, Preview, Stage } from '../types' */

import { counted, h, visible } from './dom.js'

const SEND_REASON = 'Tell the model why'
/** By stage: the verb and the noun of the button, and its text if nothing can be picked. */
const PICKS = {
  run: ['Read', 'note', 'Tell the model that nothing can be read'],
  share: ['Share', 'result', 'Tell the model that nothing was found'],
}
/**
 * By surface: where a call was decided; for a command, its name too.
 *
 * @type {Map<string, [string, string?]>}
 */
const DECIDERS = new Map([
  ['web', ['on these pages']],
  ['shell', ['with ', 'toolwire approvals']],
  ['chat', ['in ', 'toolwire chat']],
  ['ask', ['in ', 'toolwire ask']],
  ['note', ['in ', 'toolwire note']],
  ['mcp form', ['in the MCP client']],
])

/**
 * What an approval does, as its button says it: "Search", "Share 3 results", "Create note". The same words as
 * `approve_label` in tools/contract.py, which a test compares.
 *
 * @param {Preview} shown
 * @param {Stage} stage
 * @param {number} picked how many things are picked
 */
export function approveLabel(shown, stage, picked) {
  if (shown.problem) return SEND_REASON
  if (!shown.pick) return shown.action || 'Run'
  const [verb, noun, nothing] = PICKS[stage]
  if (shown.touched.every((one) => one.missing)) return nothing
  return `${verb} ${picked ? counted(picked, noun) : `${noun}s`}`
}

/**
 * Who asks, where, and for what. `open` is the conversation that the page shows.
 *
 * @param {Approval[]} approvals
 * @param {string} [open]
 * @returns {Child}
 */
export function lead(approvals, open) {
  /** @type {Map<string, Child[]>} by what is shown, so that nobody is named twice */
  const askers = new Map()
  for (const { model, session, place, scripted } of approvals) {
    const where = open && session === open ? 'in this chat' : place
    const name = h('strong', { class: 'mono' }, visible(model))
    askers.set(`${model} ${where}`, [name, `${scripted ? ` (${scripted})` : ''} ${where}`])
  }
  const who = [...askers.values()].map((one, at) => [at ? ', ' : '', one])
  if (approvals.every((one) => one.stage === 'share' && one.effect === 'call'))
    return ['The call has run. Choose whether ', who, ' may see the result:']
  if (approvals.every((one) => one.stage === 'share'))
    return ['The search is done. Choose which results ', who, ' may see:']
  const several = `${counted(approvals.length, 'call')}`
  return [who, approvals.length === 1 ? ' wants to use this tool:' : ` wants to make ${several}:`]
}

/**
 * The effect of a decision, as a sentence. In the stage `share`, the call has already run.
 *
 * @param {Approval} approval
 * @param {Preview} shown
 * @param {boolean} approved
 */
export function effectOf({ stage, tool }, shown, approved) {
  if (stage === 'share')
    return approved
      ? 'The call has run. The model receives what you shared.'
      : 'The call has run. Its result is not shared.'
  if (approved && shown.problem)
    return `This call cannot work, so ${visible(tool)} does not run. The model learns why.`
  return approved ? `${visible(tool)} may run once.` : `${visible(tool)} does not run.`
}

/**
 * Where or by what a question was decided, to follow "Approved" or "Denied".
 *
 * @param {string | null} by
 * @returns {Child}
 */
export function decider(by) {
  if (!by) return ''
  if (by.startsWith('grant ')) return 'by a remembered grant'
  if (by.startsWith('rule ')) return ['by the rule ', h('code', null, visible(by.slice(5)))]
  const [where, command] = DECIDERS.get(by) ?? [`by ${visible(by)}`]
  return command ? [where, h('code', null, command)] : where
}
