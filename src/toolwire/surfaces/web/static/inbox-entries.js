// The inbox's questions, one entry each: what waits for a decision, and what became of the others.

import { ask } from './approval.js'
import { confirmed } from './confirm.js'
import { bytes, codeBlock, h, icon, text, visible, when } from './dom.js'
import { fact } from './grants.js'

export const SURFACES = {
  chat: 'Terminal chat',
  ask: 'Terminal',
  note: 'Note',
  web: 'Web chat',
  mcp: 'MCP',
  api: 'API',
}
const DECIDERS = {
  web: 'on these pages',
  shell: 'in a shell',
  chat: 'in the terminal chat',
  ask: 'in the terminal',
  note: 'while a note was continued',
  'mcp form': 'in the MCP client',
}
const SOON_S = 60
const LONGEST = 52

export function countDown(time) {
  const left = Math.max(0, Math.round(Number(time.dataset.expires) - Date.now() / 1000))
  const minutes = Math.floor(left / 60)
  text(
    time,
    left === 0
      ? 'time is over'
      : minutes >= 60
        ? `${Math.floor(minutes / 60)} h ${minutes % 60} min left`
        : `${minutes}:${String(left % 60).padStart(2, '0')} left`,
  )
  time.closest('.badge').classList.toggle('warn', left <= SOON_S)
}

export function pendingEntry(approval, context, refresh) {
  const review = h(
    'button',
    { type: 'button', class: 'button primary', 'aria-label': `Review ${approval.title}`, onclick: look },
    'Review',
  )
  const deny = h(
    'button',
    { type: 'button', class: 'button danger', 'aria-label': `Deny ${approval.title}`, onclick: refuse },
    'Deny',
  )
  async function look() {
    await ask([approval], context)
    await refresh().catch(context.failed)
  }
  async function refuse() {
    const reason = h('input', {
      class: 'input',
      id: 'deny-reason',
      maxlength: '500',
      autocomplete: 'off',
      placeholder: 'Optional',
    })
    const content = [
      h(
        'p',
        null,
        h('strong', null, visible(approval.title)),
        ` for ${visible(approval.model)} will not happen.`,
      ),
      h(
        'div',
        { class: 'field' },
        h('label', { class: 'label', for: 'deny-reason' }, 'Reason'),
        reason,
        h('span', { class: 'hint' }, 'The model is told this, and may try something else.'),
      ),
    ]
    if (!(await confirmed({ title: 'Deny this call?', content, yes: 'Deny', danger: true, first: reason })))
      return
    deny.disabled = true
    try {
      await context.api.post(`/approvals/${encodeURIComponent(approval.id)}/decision`, {
        token: approval.token,
        approved: false,
        reason: reason.value.trim(),
      })
      context.worked()
      context.announce(`Denied: ${approval.title}.`)
    } catch (error) {
      deny.disabled = false
      context.failed(error)
    }
    await refresh().catch(context.failed)
  }
  const left = h('span', { dataset: { expires: String(approval.expires_at) } })
  return h(
    'li',
    { class: 'case' },
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

export function settledEntry(approval) {
  const { decision } = approval
  const kind = { approved: 'ok', denied: 'bad', expired: 'warn' }[approval.status] ?? ''
  const by =
    approval.status === 'expired'
      ? 'Nobody answered'
      : `${approval.status === 'approved' ? 'Approved' : 'Denied'} ${decider(approval.decided_by)}`
  return h(
    'li',
    { class: 'case settled' },
    h(
      'div',
      { class: 'case-main' },
      h('div', { class: 'row' }, head(approval), h('span', { class: `badge ${kind}` }, approval.status)),
      h('p', { class: 'case-touches' }, granted(approval)),
      decision?.reason ? h('p', { class: 'case-reason' }, `“${visible(decision.reason)}”`) : null,
      origin(approval, h('span', null, `${by}, `, when(approval.decided_at ?? approval.expires_at))),
      h('details', { class: 'unfold' }, h('summary', null, 'Details'), details(approval)),
    ),
  )
}

function head(approval) {
  const stage =
    approval.stage === 'share'
      ? 'shares results'
      : { write: 'changes files', read: 'reads', search: 'searches' }[approval.effect]
  return [
    icon({ write: 'pencil', read: 'file', search: 'search' }[approval.effect] ?? 'tool'),
    h('h2', { class: 'case-title' }, visible(approval.title)),
    stage ? h('span', { class: `badge ${approval.effect === 'write' ? 'warn' : ''}` }, stage) : null,
  ]
}

function origin(approval, ...more) {
  const vault = approval.vault ? (approval.vault.split('/').filter(Boolean).pop() ?? approval.vault) : ''
  return h(
    'p',
    { class: 'case-origin' },
    h('span', { class: 'mono' }, visible(approval.model)),
    h('span', null, SURFACES[approval.surface] ?? approval.surface),
    vault ? h('span', { title: visible(approval.vault) }, icon('folder', 14), ' ', visible(vault)) : null,
    more,
  )
}

/** A short line of what a call would touch. */
function touches({ shown, arguments: given }) {
  const paths = shown.touched
  if (shown.problem) return [h('strong', null, 'Cannot work: '), visible(shown.problem)]
  if (shown.summary) return visible(shown.summary)
  if (paths.length) return [pathsOf(paths), sized(paths)]
  const words = visible(JSON.stringify(given))
  return h('span', { class: 'mono' }, words.length > 160 ? `${words.slice(0, 159)}…` : words)
}

function pathsOf(touched) {
  const named = touched
    .slice(0, 3)
    .map(({ path }, at) => [
      at ? ', ' : '',
      h('span', { class: 'mono', title: visible(path) }, ended(visible(path))),
    ])
  return [named, touched.length > 3 ? ` and ${touched.length - 3} more` : '']
}

/** The end of a long path says more than its beginning. */
const ended = (path) => (path.length > LONGEST ? `…${path.slice(1 - LONGEST)}` : path)

function sized(touched) {
  const size = touched.reduce((sum, one) => sum + (one.size ?? 0), 0)
  return size ? h('span', { class: 'muted' }, ` · ${bytes(size)}`) : null
}

/** What exactly was decided. */
function granted(approval) {
  const { decision, shown } = approval
  if (!decision?.approved) return touches(approval)
  const out = []
  if (shown.pick && decision.picked) {
    const picked = shown.touched.filter(({ key }) => decision.picked.includes(key))
    out.push(`${picked.length} of ${shown.touched.length}: `, picked.length ? pathsOf(picked) : 'nothing')
  } else {
    out.push(touches(approval))
  }
  if (decision.arguments) out.push(h('span', { class: 'badge' }, 'arguments changed'))
  const remembered = {
    session: 'for the conversation',
    folder: `for ${visible(decision.folder || 'its folder')}`,
    tool: 'for the whole tool',
  }[decision.remember]
  if (remembered) out.push(h('span', { class: 'badge' }, `remembered ${remembered}`))
  return out.flatMap((one, at) => (at ? [' ', one] : [one]))
}

function decider(by) {
  if (!by) return ''
  return by.startsWith('grant ') ? 'by a remembered grant' : (DECIDERS[by] ?? `by ${visible(by)}`)
}

function details({ id, session, arguments: given, decision, shown, created_at: asked }) {
  const changed = decision?.arguments
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
    changed
      ? [
          h('p', { class: 'label' }, 'Arguments, as you changed them'),
          codeBlock(visible(JSON.stringify(changed, null, 2)), 'json'),
        ]
      : null,
    shown.touched.length
      ? h(
          'ul',
          { class: 'inbox-touched' },
          shown.touched.map((one) => touchedLine(one, decision)),
        )
      : null,
    shown.diff ? codeBlock(visible(shown.diff), 'diff') : null,
  )
}

function touchedLine(one, decision) {
  const shared = decision?.approved && (!decision.picked || decision.picked.includes(one.key))
  return h(
    'li',
    null,
    icon(shared ? 'check' : 'close', 14),
    h('span', { class: 'visually-hidden' }, shared ? 'Granted: ' : 'Not granted: '),
    h('span', { class: 'mono' }, visible(one.path)),
    one.missing
      ? h('span', { class: 'badge warn' }, visible(one.reason || 'not there'))
      : h('span', { class: 'muted small' }, bytes(one.size)),
  )
}
