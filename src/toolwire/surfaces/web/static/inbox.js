// The inbox: what waits for a person, wherever it was asked; what was decided; what is remembered; and the log of it all.
//
// Law: a row shows enough to know what it is about, never enough to be approved blindly. Approving goes through the dialog that shows everything;
// only a no is given from the row.

import { banner, clear, counted, h, icon, tabList, text } from './dom.js'
import { grantEntry } from './grants.js'
import { auditTab } from './inbox-audit.js'
import { countDown, pendingEntry, settledEntry } from './inbox-entries.js'
import { keyed, moreButton } from './inbox-lists.js'

export const title = 'Inbox'

const PAGE = 50
const TABS = [
  { id: 'pending', label: 'Pending', open: approvalsTab },
  { id: 'decided', label: 'Decided', open: approvalsTab },
  { id: 'expired', label: 'Expired', open: approvalsTab },
  { id: 'grants', label: 'Grants', open: grantsTab },
  { id: 'audit', label: 'Audit', open: (which, context) => auditTab(context, () => empty(which)) },
]

const EMPTY = {
  pending: [
    'check',
    'Nothing waits for you',
    'When a model wants to use a tool on your vault, in a chat, from an MCP client or over the API, the question waits here until you answer it or its time is over.',
  ],
  decided: [
    'shield',
    'Nothing was decided yet',
    'Every question that you approve or deny is listed here, with what exactly was granted.',
  ],
  expired: [
    'clock',
    'Nothing expired',
    'A question that nobody answers in time, or whose conversation was stopped, counts as a no and is listed here.',
  ],
  grants: [
    'key',
    'Nothing is remembered',
    'Every call asks you. In the dialog you can let a tool go ahead for a conversation or a folder; such grants are listed here and can be revoked at any time.',
  ],
  audit: [
    'list',
    'The log is empty',
    'Each decision and each run of a tool leaves a line here: who, what, when, and hashes of arguments and results, never their contents.',
  ],
}

export async function open(main, context) {
  const state = { tab: chosenTab(), close: () => {}, closed: false }
  const count = h('span', { class: 'badge accent', hidden: true })
  const items = TABS.map(({ id, label }) => ({
    id,
    domId: `inbox-tab-${id}`,
    label: id === 'pending' ? [label, ' ', count] : label,
  }))
  const tabs = tabList(items, state.tab, pick, 'Inbox')
  const trouble = h('div', { class: 'trouble' })
  const panel = h('div', { class: 'inbox-panel', role: 'tabpanel' })
  main.append(
    h(
      'div',
      { class: 'page' },
      h(
        'div',
        { class: 'page-head' },
        h(
          'div',
          null,
          h('h1', null, 'Inbox'),
          h('p', null, 'Questions from every chat, MCP client and API, and what became of them.'),
        ),
      ),
      tabs,
      trouble,
      panel,
    ),
  )

  const shared = {
    ...context,
    counted: (pending) => {
      text(count, pending)
      count.hidden = !pending
      count.setAttribute('aria-label', counted(pending, 'question waits', 'questions wait'))
    },
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

  const offs = [
    context.live.on('approvals', (told) => {
      shared.counted(told.pending ?? 0)
      refresh()
    }),
    context.live.on('lost', refresh),
  ]
  tabs.querySelector('[aria-selected="true"]').scrollIntoView({ block: 'nearest', inline: 'nearest' })
  await show()
  if (state.tab !== 'pending')
    context.api.get('/approvals?status=pending&limit=1').then(
      (told) => shared.counted(told.pending),
      () => {},
    )
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

const loading = () =>
  h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading')

function empty(which) {
  const [picture, head, words] = EMPTY[which]
  return h('div', { class: 'panel empty' }, icon(picture, 32), h('h2', null, head), h('p', null, words))
}

// --- questions -----------------------------------------------------------------------------------------------------------------------------------

function approvalsTab(which, context) {
  const list = h('ul', {
    class: 'cases',
    'aria-label': `${TABS.find(({ id }) => id === which).label} questions`,
  })
  const node = h('div', { class: 'stack loose' })
  const draw = keyed(list)
  const more = moreButton(() => {
    limit += PAGE
    return refresh()
  }, context)
  let limit = PAGE
  async function refresh() {
    const told = await context.api.get(`/approvals?status=${which}&limit=${limit}`)
    context.counted(told.pending)
    const rows = told.approvals
    draw(rows, (approval) =>
      which === 'pending' ? pendingEntry(approval, context, refresh) : settledEntry(approval),
    )
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

// --- grants --------------------------------------------------------------------------------------------------------------------------------------

function grantsTab(which, context) {
  const list = h('ul', { class: 'cases', 'aria-label': 'Remembered grants' })
  const node = h('div', { class: 'stack loose' })
  const draw = keyed(list)
  async function refresh() {
    const { grants } = await context.api.get('/grants')
    const current = grants.filter((grant) => !grant.revoked_at)
    draw(current, (grant) =>
      grantEntry(grant, {
        api: context.api,
        failed: context.failed,
        revoked: () => {
          context.announce(`The grant for ${grant.tool} is revoked.`)
          refresh().catch(context.failed)
        },
      }),
    )
    if (current.length) node.contains(list) || clear(node, list)
    else if (!node.querySelector('.empty')) clear(node, empty(which))
  }
  return { node, refresh }
}
