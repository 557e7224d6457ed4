// The entries of the inbox: calls that wait for a decision, and calls that were decided or have expired.

/** @import { Approval, Child, Decision, InboxContext, Touched } from '../types' */

import * as api from './api.js'
import { ask } from './approval.js'
import { confirm } from './dialog.js'
import { bytes, codeBlock, h, icon, text, visible, when } from './dom.js'
import { callFacts, callResult } from './facts.js'
import { fact } from './grants.js'
import { sizeOf } from './picks.js'
import { decider } from './question-words.js'
import { ranArguments } from './ran-arguments.js'

const SURFACES = new Map([
  ['chat', 'Terminal chat'],
  ['ask', 'Ask command'],
  ['note', 'Note command'],
  ['web', 'Web chat'],
  ['mcp', 'MCP'],
])
const EFFECTS = { write: 'changes files', read: 'reads', search: 'searches', call: 'calls a server', '': '' }
const EFFECT_ICONS = { write: 'pencil', read: 'file', search: 'search', call: 'plug', '': 'tool' }
const STATUS_BADGES = { approved: 'ok', denied: 'bad', expired: 'warn', pending: '' }
const SOON_S = 60
const LONGEST_PATH = 52

/** @param {string} surface */
export const surfaceName = (surface) => SURFACES.get(surface) ?? surface

/** Updates the time that is left. @param {HTMLElement} time */
export function countDown(time) {
  const left = Math.max(0, Math.round(Number(time.dataset.expires) - Date.now() / 1000))
  text(time, timeLeft(left))
  time.closest('.badge')?.classList.toggle('warn', left <= SOON_S)
}

/** @param {number} seconds */
export function timeLeft(seconds) {
  const minutes = Math.floor(seconds / 60)
  if (seconds === 0) return 'expired'
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min left`
  return `${minutes}:${String(seconds % 60).padStart(2, '0')} left`
}

/** @param {Approval} approval @param {InboxContext} context @param {() => Promise<void>} refresh */
export function pendingEntry(approval, context, refresh) {
  const review = h(
    'button',
    { type: 'button', class: 'button primary', 'aria-label': `Review ${nameOf(approval)}`, onclick: look },
    'Review',
  )
  const deny = h(
    'button',
    { type: 'button', class: 'button danger', 'aria-label': `Deny ${nameOf(approval)}`, onclick: refuse },
    'Deny',
  )
  async function look() {
    await ask([approval], context)
    await refresh().catch(context.showError)
  }
  async function refuse() {
    const reason = h('input', {
      class: 'input',
      id: 'deny-reason',
      maxlength: '500',
      autocomplete: 'off',
      placeholder: 'Optional',
    })
    const title = h('strong', null, visible(approval.title))
    const hint = h('span', { class: 'hint' }, 'The model receives this reason and may try something else.')
    const label = h('label', { class: 'label', for: 'deny-reason' }, 'Reason')
    const by = `requested by ${visible(approval.model)}`
    const effect =
      approval.stage === 'share'
        ? ['The result of the call ', title, `, ${by}, will not be shared.`]
        : ['The call ', title, `, ${by}, will not run.`]
    const content = [h('p', null, effect), h('div', { class: 'field' }, label, reason, hint)]
    if (!(await confirm({ title: 'Deny this call?', content, action: 'Deny', danger: true, first: reason })))
      return
    deny.disabled = true
    try {
      const decision = { token: approval.token, approved: false, reason: reason.value.trim() }
      await api.post(`/approvals/${encodeURIComponent(approval.id)}/decision`, decision)
      context.clearError()
      context.announce(`Denied: ${approval.title}.`)
    } catch (error) {
      deny.disabled = false
      context.showError(error)
    }
    await refresh().catch(context.showError)
  }
  const left = h('span', { dataset: { expires: String(approval.expires_at) } })
  return h(
    'li',
    { class: 'case', 'aria-label': nameOf(approval) },
    h(
      'div',
      { class: 'case-main' },
      h('div', { class: 'row' }, head(approval), h('span', { class: 'badge' }, icon('clock', 13), left)),
      h('p', { class: 'case-touches' }, touches(approval)),
      origin(approval, h('span', { class: 'one-line' }, 'asked ', when(approval.created_at))),
    ),
    h('div', { class: 'case-actions' }, deny, review),
  )
}

/** @param {Approval} approval */
export function settledEntry(approval) {
  const { decision, status } = approval
  const decided = status === 'approved' ? 'Approved' : 'Denied'
  const by = status === 'expired' ? 'Expired' : [`${decided} `, decider(approval.decided_by)]
  const badge = h('span', { class: `badge ${STATUS_BADGES[status]}` }, status)
  const of = h('span', { class: 'visually-hidden' }, ` of ${nameOf(approval)}`)
  return h(
    'li',
    { class: 'case settled', 'aria-label': `${nameOf(approval)}, ${status}` },
    h(
      'div',
      { class: 'case-main' },
      h('div', { class: 'row' }, head(approval), badge),
      h('div', { class: 'case-touches' }, granted(approval)),
      decision?.reason ? h('p', { class: 'case-reason' }, `“${visible(decision.reason)}”`) : null,
      origin(approval, h('span', null, by, ', ', when(approval.decided_at ?? approval.expires_at))),
      h('details', { class: 'unfold' }, h('summary', null, 'Details', of), details(approval)),
    ),
  )
}

/** The name of a row: what is asked, and by whom. @param {Approval} approval */
const nameOf = ({ title, stage, model, place }) =>
  `${visible(title)}${stage === 'share' ? ', results' : ''}, asked by ${visible(model)} ${place}`

/** @param {Approval} approval */
function head(approval) {
  const { effect } = approval
  const stage = approval.stage === 'share' ? 'shares results' : EFFECTS[effect]
  return [
    icon(EFFECT_ICONS[effect] ?? 'tool'),
    h('h2', { class: 'case-title' }, visible(approval.title)),
    stage ? h('span', { class: `badge ${effect === 'write' ? 'warn' : ''}` }, stage) : null,
  ]
}

/** @param {Approval} approval @param {...Child} more */
function origin(approval, ...more) {
  const [kind, ...rest] = approval.source.split(':')
  const path = rest.join(':')
  const name = kind === 'vault' ? (path.split('/').filter(Boolean).pop() ?? path) : path
  return h(
    'p',
    { class: 'case-origin' },
    h('span', null, h('span', { class: 'mono' }, visible(approval.model)), ` ${approval.place}`),
    name
      ? h(
          'span',
          { title: visible(path) },
          icon(kind === 'vault' ? 'folder' : 'plug', 14),
          ' ',
          visible(name),
        )
      : null,
    more,
  )
}

/** One line on what a call would touch. @param {Approval} approval @returns {Child} */
function touches({ shown, arguments: given }) {
  const paths = shown.touched
  if (shown.problem) return [h('strong', null, 'Cannot work: '), visible(shown.problem)]
  if (shown.summary) return visible(shown.summary)
  if (paths.length) return [pathList(paths), totalSize(paths)]
  const json = visible(JSON.stringify(given))
  return h('span', { class: 'mono' }, json.length > 160 ? `${json.slice(0, 159)}…` : json)
}

/** @param {Touched[]} touched @returns {Child} */
function pathList(touched) {
  const named = touched.slice(0, 3).map(({ path }, at) => {
    const shown = visible(path)
    return [at ? ', ' : '', h('span', { class: 'mono', title: shown }, shortPath(shown))]
  })
  return [named, touched.length > 3 ? ` and ${touched.length - 3} more` : '']
}

/** A long path is cut at its start, because its end says more. @param {string} path */
export const shortPath = (path) => (path.length > LONGEST_PATH ? `…${path.slice(1 - LONGEST_PATH)}` : path)

/** @param {Touched[]} touched */
function totalSize(touched) {
  const size = sizeOf(touched)
  return size ? h('span', { class: 'muted' }, ` · ${bytes(size)}`) : null
}

/** The files, results or call that were granted. @param {Approval} approval @returns {Child} */
function granted(approval) {
  const { arguments: given, decision, shown } = approval
  if (!decision?.approved) return touches(approval)
  /** @type {Child[]} */
  const out = []
  if (shown.pick && decision.picked) {
    const keys = decision.picked
    const picked = shown.touched.filter(({ key }) => keys.includes(key))
    out.push(`${picked.length} of ${shown.touched.length}: `, picked.length ? pathList(picked) : 'nothing')
  } else {
    out.push(touches(approval))
  }
  if (decision.arguments)
    out.push(' ', h('span', { class: 'badge' }, 'arguments edited'), ranArguments(given, decision.arguments))
  const remembered = rememberedFor(decision)
  if (remembered) out.push(' ', h('span', { class: 'badge' }, `remembered for ${remembered}`))
  return out
}

/** @param {Decision} decision */
function rememberedFor({ remember, folder }) {
  if (remember === 'session') return 'the conversation'
  if (remember === 'folder') return visible(folder || 'its folder')
  return remember === 'tool' ? 'all calls of the tool' : ''
}

/** @param {Approval} approval */
function details({ id, session, arguments: given, decision, shown, created_at: asked }) {
  const changed = decision?.arguments
  const touched = shown.touched.map((one) => touchedLine(one, decision))
  return h(
    'div',
    { class: 'stack' },
    h(
      'dl',
      { class: 'facts' },
      fact('Asked', when(asked)),
      fact('Conversation', h('span', { class: 'mono' }, session)),
      fact('ID', h('span', { class: 'mono' }, id)),
    ),
    h('p', { class: 'label' }, changed ? 'Arguments, as the model wrote them' : 'Arguments'),
    codeBlock(visible(JSON.stringify(given, null, 2)), 'json'),
    callFacts(shown),
    callResult(shown),
    touched.length ? h('ul', { class: 'inbox-touched' }, touched) : null,
    shown.diff ? codeBlock(visible(shown.diff), 'diff') : null,
  )
}

/** @param {Touched} one @param {Decision | null} decision */
function touchedLine(one, decision) {
  const shared = decision?.approved && (!decision.picked || decision.picked.includes(one.key))
  return h(
    'li',
    null,
    icon(shared ? 'check' : 'close', 14),
    h('span', { class: 'visually-hidden' }, shared ? 'Granted: ' : 'Not granted: '),
    h('span', { class: 'mono' }, visible(one.path)),
    one.missing
      ? h('span', { class: 'badge warn' }, visible(one.reason || 'not found'))
      : h('span', { class: 'muted small' }, bytes(one.size)),
  )
}
