// The inbox: what waits for a person, wherever it was asked; what was decided; what is remembered; and the log of it all.
//
// Law: a row shows enough to know what it is about, never enough to be approved blindly. Approving goes through the dialog that shows everything;
// only a no is given from the row.

import { ask } from './approval.js'
import { confirmed } from './confirm.js'
import { banner, bytes, clear, codeBlock, counted, h, icon, tabList, text, visible, when } from './dom.js'
import { fact, grantEntry } from './grants.js'

export const title = 'Inbox'

const PAGE = 50
const SURFACES = { chat: 'Terminal chat', ask: 'Terminal', note: 'Note', web: 'Web chat', mcp: 'MCP', api: 'API' }
const DECIDERS = { web: 'on these pages', shell: 'in a shell', chat: 'in the terminal chat', ask: 'in the terminal', note: 'while a note was continued', 'mcp form': 'in the MCP client' }
const SOON_S = 60
const LONGEST = 52

const TABS = [
  { id: 'pending', label: 'Pending', open: approvalsTab },
  { id: 'decided', label: 'Decided', open: approvalsTab },
  { id: 'expired', label: 'Expired', open: approvalsTab },
  { id: 'grants', label: 'Grants', open: grantsTab },
  { id: 'audit', label: 'Audit', open: auditTab },
]

const EMPTY = {
  pending: ['check', 'Nothing waits for you', 'When a model wants to use a tool on your vault, in a chat, from an MCP client or over the API, the question waits here until you answer it or its time is over.'],
  decided: ['shield', 'Nothing was decided yet', 'Every question that you approve or deny is listed here, with what exactly was granted.'],
  expired: ['clock', 'Nothing expired', 'A question that nobody answers in time, or whose conversation was stopped, counts as a no and is listed here.'],
  grants: ['key', 'Nothing is remembered', 'Every call asks you. In the dialog you can let a tool go ahead for a conversation or a folder; such grants are listed here and can be revoked at any time.'],
  audit: ['list', 'The log is empty', 'Each decision and each run of a tool leaves a line here: who, what, when, and hashes of arguments and results, never their contents.'],
}

export async function open(main, context) {
  const state = { tab: chosenTab(), close: () => {}, closed: false }
  const count = h('span', { class: 'badge accent', hidden: true })
  const items = TABS.map(({ id, label }) => ({ id, domId: `inbox-tab-${id}`, label: id === 'pending' ? [label, ' ', count] : label }))
  const tabs = tabList(items, state.tab, pick, 'Inbox')
  const trouble = h('div', { class: 'trouble' })
  const panel = h('div', { class: 'inbox-panel', role: 'tabpanel' })
  main.append(h('div', { class: 'page' },
    h('div', { class: 'page-head' }, h('div', null, h('h1', null, 'Inbox'), h('p', null, 'Questions from every chat, MCP client and API, and what became of them.'))),
    tabs, trouble, panel))

  const shared = {
    ...context,
    counted: (pending) => { text(count, pending); count.hidden = !pending; count.setAttribute('aria-label', counted(pending, 'question waits', 'questions wait')) },
    failed: (error) => clear(trouble, banner(error.message, 'bad', true)),
    worked: () => clear(trouble),
  }

  async function pick(id) {
    state.tab = id
    const address = new URL(location.href)
    address.searchParams.set('tab', id)
    history.replaceState(history.state, '', address)
    await show()
  }

  async function show() {
    state.close()
    clear(trouble)
    clear(panel, loading())
    panel.setAttribute('aria-labelledby', `inbox-tab-${state.tab}`)
    const shown = state.tab
    const view = TABS.find(({ id }) => id === shown).open(shown, shared)
    state.close = view.close ?? (() => {})
    state.refresh = view.refresh
    await refresh()
    if (!state.closed && state.tab === shown) clear(panel, view.node)
  }

  // One look at a time: news that come meanwhile lead to one more.
  let running = null
  let again = false
  async function refresh() {
    if (running) {
      again = true
      return running
    }
    running = (async () => {
      do {
        again = false
        const asked = state.refresh
        try {
          await asked?.()
        } catch (error) {
          if (!state.closed) shared.failed(error)
        }
        if (asked !== state.refresh) again = true
      } while (again && !state.closed)
    })()
    try {
      await running
    } finally {
      running = null
    }
  }

  const offs = [context.live.on('approvals', (told) => { shared.counted(told.pending ?? 0); refresh() }), context.live.on('lost', refresh)]
  tabs.querySelector('[aria-selected="true"]').scrollIntoView({ block: 'nearest', inline: 'nearest' })
  await show()
  if (state.tab !== 'pending') context.api.get('/approvals?status=pending&limit=1').then((told) => shared.counted(told.pending), () => {})
  return () => {
    state.closed = true
    state.close()
    for (const off of offs) off()
  }
}

function chosenTab() {
  const asked = new URLSearchParams(location.search).get('tab')
  return TABS.some(({ id }) => id === asked) ? asked : 'pending'
}

const loading = () => h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading')

function empty(which) {
  const [picture, head, words] = EMPTY[which]
  return h('div', { class: 'panel empty' }, icon(picture, 32), h('h2', null, head), h('p', null, words))
}

/** Keeps rows that did not change, so that focus and opened folds stay. */
function keyed(list) {
  const held = new Map()
  return (items, make) => {
    const wanted = items.map((item) => {
      const written = JSON.stringify(item)
      const before = held.get(item.id)
      const node = before?.written === written ? before.node : make(item)
      held.set(item.id, { written, node })
      return node
    })
    const ids = new Set(items.map((item) => item.id))
    for (const id of held.keys()) if (!ids.has(id)) held.delete(id)
    if (wanted.length !== list.children.length || wanted.some((node, at) => list.children[at] !== node)) {
      const focused = document.activeElement
      list.replaceChildren(...wanted)
      if (focused !== document.activeElement && focused?.isConnected) focused.focus()
    }
  }
}

// --- questions -----------------------------------------------------------------------------------------------------------------------------------

function approvalsTab(which, context) {
  const list = h('ul', { class: 'cases', 'aria-label': `${TABS.find(({ id }) => id === which).label} questions` })
  const node = h('div', { class: 'stack loose' })
  const draw = keyed(list)
  const more = moreButton(() => { limit += PAGE; return refresh() }, context)
  let limit = PAGE
  async function refresh() {
    const told = await context.api.get(`/approvals?status=${which}&limit=${limit}`)
    context.counted(told.pending)
    const rows = told.approvals
    draw(rows, (approval) => (which === 'pending' ? pendingEntry(approval, context, refresh) : settledEntry(approval)))
    more.hidden = which === 'pending' || rows.length < limit
    tick()
    if (rows.length) node.contains(list) || clear(node, list, more)
    else if (!node.querySelector('.empty')) clear(node, empty(which))
  }
  function tick() {
    for (const time of list.querySelectorAll('[data-expires]')) countDown(time)
  }
  const timer = which === 'pending' ? setInterval(tick, 1000) : 0
  return { node, refresh, close: () => clearInterval(timer) }
}

function countDown(time) {
  const left = Math.max(0, Math.round(Number(time.dataset.expires) - Date.now() / 1000))
  const minutes = Math.floor(left / 60)
  text(time, left === 0 ? 'time is over' : minutes >= 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min left` : `${minutes}:${String(left % 60).padStart(2, '0')} left`)
  time.closest('.badge').classList.toggle('warn', left <= SOON_S)
}

function pendingEntry(approval, context, refresh) {
  const review = h('button', { type: 'button', class: 'button primary', 'aria-label': `Review ${approval.title}`, onclick: look }, 'Review')
  const deny = h('button', { type: 'button', class: 'button danger', 'aria-label': `Deny ${approval.title}`, onclick: refuse }, 'Deny')
  async function look() {
    await ask([approval], context)
    await refresh().catch(context.failed)
  }
  async function refuse() {
    const reason = h('input', { class: 'input', id: 'deny-reason', maxlength: '500', autocomplete: 'off', placeholder: 'Optional' })
    const content = [
      h('p', null, h('strong', null, approval.title), ` for ${approval.model} will not happen.`),
      h('div', { class: 'field' }, h('label', { class: 'label', for: 'deny-reason' }, 'Reason'), reason, h('span', { class: 'hint' }, 'The model is told this, and may try something else.')),
    ]
    if (!(await confirmed({ title: 'Deny this call?', content, yes: 'Deny', danger: true, first: reason }))) return
    deny.disabled = true
    try {
      await context.api.post(`/approvals/${encodeURIComponent(approval.id)}/decision`, { token: approval.token, approved: false, reason: reason.value.trim() })
      context.worked()
      context.announce(`Denied: ${approval.title}.`)
    } catch (error) {
      deny.disabled = false
      context.failed(error)
    }
    await refresh().catch(context.failed)
  }
  const left = h('span', { dataset: { expires: String(approval.expires_at) } })
  return h('li', { class: 'case' },
    h('div', { class: 'case-main' },
      h('div', { class: 'row' }, head(approval), h('span', { class: 'badge' }, icon('clock', 13), left)),
      h('p', { class: 'case-touches' }, touches(approval)),
      origin(approval, h('span', { class: 'one-line' }, 'asked ', when(approval.created_at)))),
    h('div', { class: 'case-actions' }, deny, review))
}

function settledEntry(approval) {
  const { decision } = approval
  const kind = { approved: 'ok', denied: 'bad', expired: 'warn' }[approval.status] ?? ''
  const by = approval.status === 'expired' ? 'Nobody answered' : `${approval.status === 'approved' ? 'Approved' : 'Denied'} ${decider(approval.decided_by)}`
  return h('li', { class: 'case settled' },
    h('div', { class: 'case-main' },
      h('div', { class: 'row' }, head(approval), h('span', { class: `badge ${kind}` }, approval.status)),
      h('p', { class: 'case-touches' }, granted(approval)),
      decision?.reason ? h('p', { class: 'case-reason' }, `“${decision.reason}”`) : null,
      origin(approval, h('span', null, `${by}, `, when(approval.decided_at ?? approval.expires_at))),
      h('details', { class: 'unfold' }, h('summary', null, 'Details'), details(approval))))
}

function head(approval) {
  const stage = approval.stage === 'share' ? 'shares results' : { write: 'changes files', read: 'reads', search: 'searches' }[approval.effect]
  return [icon({ write: 'pencil', read: 'file', search: 'search' }[approval.effect] ?? 'tool'), h('h2', { class: 'case-title' }, approval.title),
    stage ? h('span', { class: `badge ${approval.effect === 'write' ? 'warn' : ''}` }, stage) : null]
}

function origin(approval, ...more) {
  const vault = approval.vault ? approval.vault.split('/').filter(Boolean).pop() ?? approval.vault : ''
  return h('p', { class: 'case-origin' },
    h('span', { class: 'mono' }, visible(approval.model)),
    h('span', null, SURFACES[approval.surface] ?? approval.surface),
    vault ? h('span', { title: approval.vault }, icon('folder', 14), ' ', vault) : null,
    more)
}

/** A short line of what a call would touch. */
function touches({ shown, arguments: given }) {
  const paths = shown.touched
  if (shown.summary) return visible(shown.summary)
  if (paths.length) return [pathsOf(paths), sized(paths)]
  const words = visible(JSON.stringify(given))
  return h('span', { class: 'mono' }, words.length > 160 ? `${words.slice(0, 159)}…` : words)
}

function pathsOf(touched) {
  const named = touched.slice(0, 3).map(({ path }, at) => [at ? ', ' : '', h('span', { class: 'mono', title: visible(path) }, ended(visible(path)))])
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
  const remembered = { session: 'for the conversation', folder: `for ${decision.folder || 'its folder'}`, tool: 'for the whole tool' }[decision.remember]
  if (remembered) out.push(h('span', { class: 'badge' }, `remembered ${remembered}`))
  return out.flatMap((one, at) => (at ? [' ', one] : [one]))
}

function decider(by) {
  if (!by) return ''
  return by.startsWith('grant ') ? 'by a remembered grant' : DECIDERS[by] ?? `by ${by}`
}

function details({ id, session, arguments: given, decision, shown, created_at: asked }) {
  const changed = decision?.arguments
  return h('div', { class: 'stack' },
    h('dl', { class: 'facts' }, fact('Asked', when(asked)), fact('Conversation', h('span', { class: 'mono' }, session)), fact('ID', h('span', { class: 'mono' }, id))),
    h('p', { class: 'label' }, changed ? 'Arguments, as the model wrote them' : 'Arguments'), codeBlock(visible(JSON.stringify(given, null, 2)), 'json'),
    changed ? [h('p', { class: 'label' }, 'Arguments, as you changed them'), codeBlock(visible(JSON.stringify(changed, null, 2)), 'json')] : null,
    shown.touched.length ? h('ul', { class: 'inbox-touched' }, shown.touched.map((one) => touchedLine(one, decision))) : null,
    shown.diff ? codeBlock(visible(shown.diff), 'diff') : null)
}

function touchedLine(one, decision) {
  const shared = decision?.approved && (!decision.picked || decision.picked.includes(one.key))
  return h('li', null, icon(shared ? 'check' : 'close', 14), h('span', { class: 'visually-hidden' }, shared ? 'Granted: ' : 'Not granted: '),
    h('span', { class: 'mono' }, visible(one.path)), one.missing ? h('span', { class: 'badge warn' }, 'not there') : h('span', { class: 'muted small' }, bytes(one.size)))
}

function moreButton(load, context) {
  const button = h('button', { type: 'button', class: 'button more', hidden: true, onclick: press }, 'Load more')
  async function press() {
    button.disabled = true
    await load().catch(context.failed)
    button.disabled = false
  }
  return button
}

// --- grants --------------------------------------------------------------------------------------------------------------------------------------

function grantsTab(which, context) {
  const list = h('ul', { class: 'cases', 'aria-label': 'Remembered grants' })
  const node = h('div', { class: 'stack loose' })
  const draw = keyed(list)
  async function refresh() {
    const { grants } = await context.api.get('/grants')
    const current = grants.filter((grant) => !grant.revoked_at)
    draw(current, (grant) => grantEntry(grant, {
      api: context.api,
      failed: context.failed,
      revoked: () => { context.announce(`The grant for ${grant.tool} is revoked.`); refresh().catch(context.failed) },
    }))
    if (current.length) node.contains(list) || clear(node, list)
    else if (!node.querySelector('.empty')) clear(node, empty(which))
  }
  return { node, refresh }
}

// --- the log -------------------------------------------------------------------------------------------------------------------------------------

const LOG_PAGE = 200
const EVENTS = { approved: 'ok', denied: 'bad', expired: 'warn', failed: 'bad' }
const COLUMNS = ['When', 'Event', 'Tool', 'Model', 'Arguments', 'Result', 'Note']

function auditTab(which, context) {
  let rows = []
  let limit = LOG_PAGE
  const words = h('input', { class: 'input', type: 'search', 'aria-label': 'Filter the log', placeholder: 'Filter by tool, model, note or ID', oninput: draw })
  const event = h('select', { class: 'select', 'aria-label': 'Event', onchange: draw }, h('option', { value: '' }, 'All events'))
  const said = h('p', { class: 'muted small', role: 'status' })
  const lines = h('tbody', { role: 'rowgroup' })
  const table = h('table', { class: 'table audit', role: 'table' }, h('caption', { class: 'visually-hidden' }, 'The audit log, newest first'),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, COLUMNS.map((name) => h('th', { scope: 'col', role: 'columnheader' }, name)))), lines)
  const more = moreButton(() => { limit += LOG_PAGE; return refresh() }, context)
  const node = h('div', { class: 'stack loose' })
  const drawRows = keyed(lines)

  async function refresh() {
    rows = (await context.api.get(`/audit?limit=${limit}`)).audit.map((row) => ({ ...row, id: row.number }))
    const events = [...new Set(rows.map((row) => row.event))].sort()
    const before = event.value
    const offered = [...event.options].slice(1).map((option) => option.value)
    if (events.join() !== offered.join()) {
      event.replaceChildren(h('option', { value: '' }, 'All events'), ...events.map((name) => h('option', { value: name }, name)))
      event.value = events.includes(before) ? before : ''
    }
    more.hidden = rows.length < limit
    if (!rows.length) {
      clear(node, empty(which))
      return
    }
    if (!node.contains(table)) clear(node, h('div', { class: 'row nowrap audit-filter' }, words, event), said, h('div', { class: 'panel flush scroll' }, table), more)
    draw()
  }
  function draw() {
    const wanted = words.value.trim().toLowerCase()
    const fits = (row) => (!event.value || row.event === event.value) && (!wanted || [row.tool, row.model, row.note, row.surface, row.event, row.approval_id, row.session].join('\n').toLowerCase().includes(wanted))
    const found = rows.filter(fits)
    drawRows(found, auditRow)
    text(said, found.length === rows.length ? `${counted(rows.length, 'line')}, newest first` : `${found.length} of ${counted(rows.length, 'line')}`)
  }
  return { node, refresh }
}

function auditRow(row) {
  const cell = (label, ...value) => h('td', { role: 'cell', class: value.flat().some(Boolean) ? null : 'none', dataset: { label } }, value)
  return h('tr', { role: 'row' },
    cell('When', moment(row.at)),
    cell('Event', h('span', { class: `badge ${EVENTS[row.event] ?? ''}` }, row.event)),
    cell('Tool', h('span', { class: 'mono' }, row.tool)),
    cell('Model', h('div', null, h('span', { class: 'mono' }, row.model), h('div', { class: 'muted' }, SURFACES[row.surface] ?? row.surface))),
    cell('Arguments', hash('arguments', row.arguments_sha256)),
    cell('Result', row.bytes ? h('div', null, bytes(row.bytes), hash('result', row.result_sha256)) : null),
    cell('Note', row.note ? h('span', null, row.note) : null))
}

function moment(at) {
  const exact = new Date(at * 1000)
  const day = exact.toLocaleDateString(undefined, { dateStyle: 'short' })
  const time = exact.toLocaleTimeString(undefined, { timeStyle: 'medium' })
  return h('time', { datetime: exact.toISOString(), title: exact.toISOString() }, h('span', { class: 'one-line' }, day), ' ', h('span', { class: 'muted one-line' }, time))
}

/** The beginning of a hash; the whole in a title, and where it is opened. */
function hash(name, value) {
  if (!value) return null
  const whole = `SHA-256 of the ${name}: ${value}`
  return h('details', { class: 'hash' }, h('summary', { title: whole, 'aria-label': `${whole.slice(0, -56)}…` }, h('span', { class: 'mono' }, value.slice(0, 8))), h('span', { class: 'mono' }, value))
}
