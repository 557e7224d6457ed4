// The inbox: calls that wait for a decision, from every surface; calls that were decided; remembered grants;
// the log.
//
// Law: a row shows enough to recognise a call, never enough to approve it blindly. Only the dialog, which
// shows everything, can approve. A row can only deny.

/** @import { ClosePage, Context, InboxContext, InboxTab } from '../types' */

import * as api from './api.js'
import { definitionEntry } from './definitions.js'
import { banner, clear, counted, h, icon, tabList, text } from './dom.js'
import { currentGrants, grantEntry } from './grants.js'
import { auditTab } from './inbox-audit.js'
import { countDown, pendingEntry, settledEntry } from './inbox-entries.js'
import { keyedList, moreButton } from './inbox-lists.js'

export const title = 'Inbox'

const PAGE = 50

/**
 * @typedef {object} Tab
 * @property {string} id
 * @property {string} label
 * @property {(tab: Tab, context: InboxContext) => InboxTab} open
 * @property {[icon: string, title: string, message: string]} empty what an empty list shows
 */

/** @type {Tab[]} */
const TABS = [
  {
    id: 'pending',
    label: 'Pending',
    open: approvalsTab,
    empty: [
      'check',
      'Nothing is waiting for you',
      'When a model in a chat, in a terminal or in an MCP client wants to use a tool, the call waits here ' +
        'until you decide or the call expires. New tools of your MCP servers, and tools whose definition ' +
        'has changed, wait here too.',
    ],
  },
  {
    id: 'decided',
    label: 'Decided',
    open: approvalsTab,
    empty: [
      'shield',
      'No decisions yet',
      'Approved and denied calls are listed here. You decide each call yourself, unless one of these ' +
        'decides it: a remembered grant, a rule that you set for an MCP server, or the option --allow of a ' +
        'command such as toolwire ask.',
    ],
  },
  {
    id: 'expired',
    label: 'Expired',
    open: approvalsTab,
    empty: [
      'clock',
      'Nothing expired',
      'A question expires if nobody decides in time, if its conversation is stopped, if an MCP client ' +
        'disconnects, or if the Toolwire program that asked you ends. If the question was whether a call ' +
        'may run, the call does not run. If the question was whether a result may be shared, the result is ' +
        'not shared.',
    ],
  },
  {
    id: 'grants',
    label: 'Grants',
    open: grantsTab,
    empty: [
      'key',
      'No remembered grants',
      'In the approval dialog, you can let Toolwire remember an approval for later calls of the same tool: ' +
        'in the conversation, in a folder, or everywhere. A remembered approval is a grant, and is listed ' +
        'here. You can revoke a grant at any time. Without a grant, a call runs only if you approve it, or ' +
        'if a rule allows it: an allow rule that you set for an MCP server, or the option --allow of a ' +
        'command.',
    ],
  },
  {
    id: 'audit',
    label: 'Audit',
    open: (tab, context) => auditTab(context, () => empty(tab)),
    empty: [
      'list',
      'The log is empty',
      'Toolwire adds a line for each decision, for each run of a tool, and for each call that it refuses ' +
        'without asking you. Each line contains the tool, the time, who decided, and hashes of the ' +
        'arguments and the result, but not the arguments and the result themselves.',
    ],
  },
]

/** @param {HTMLElement} main @param {Context} context @returns {Promise<ClosePage>} */
export async function open(main, context) {
  let tab = chosenTab()
  /** @type {InboxTab | null} */
  let view = null
  let closed = false
  const count = h('span', { class: 'badge accent', hidden: true })
  const items = TABS.map(({ id, label }) => ({
    id,
    domId: `inbox-tab-${id}`,
    label: id === 'pending' ? [label, ' ', count] : label,
  }))
  const tabs = tabList(items, tab.id, pick, 'Inbox')
  const trouble = h('div', { class: 'trouble' })
  const panel = h('div', { class: 'inbox-panel', role: 'tabpanel' })
  const lead = 'Tool calls that need your approval, from chats, terminals and MCP clients.'
  const head = h('div', { class: 'page-head' }, h('div', null, h('h1', null, 'Inbox'), h('p', null, lead)))
  main.append(h('div', { class: 'page' }, head, tabs, trouble, panel))

  /** @type {InboxContext} */
  const shared = {
    ...context,
    setPending(pending) {
      text(count, pending)
      count.hidden = !pending
      count.setAttribute('aria-label', counted(pending, 'request waits', 'requests wait'))
    },
    showError(error) {
      if (!closed) clear(trouble, banner(api.messageOf(error), 'bad', true))
    },
    clearError: () => clear(trouble),
  }

  /** @param {string} id */
  async function pick(id) {
    tab = tabOf(id)
    const address = new URL(location.href)
    address.searchParams.set('tab', id)
    history.replaceState(history.state, '', address)
    await show()
  }

  async function show() {
    view?.close?.()
    clear(trouble)
    clear(panel, h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading'))
    panel.setAttribute('aria-labelledby', `inbox-tab-${tab.id}`)
    const opened = tab.open(tab, shared)
    view = opened
    await refresh()
    if (!closed && view === opened) clear(panel, opened.node)
  }

  // One refresh at a time. If something changes during a refresh, another one follows.
  /** @type {Promise<void> | null} */
  let running = null
  let again = false
  async function refresh() {
    if (running) {
      again = true
      return running
    }
    running = refreshAll()
    try {
      await running
    } finally {
      running = null
    }
  }

  async function refreshAll() {
    do {
      again = false
      const shown = view
      try {
        await shown?.refresh()
      } catch (error) {
        shared.showError(error)
      }
      if (shown !== view) again = true
    } while (again && !closed)
  }

  const offs = [
    context.live.on('approvals', ({ pending }) => {
      shared.setPending(pending ?? 0)
      refresh()
    }),
    context.live.on('servers', refresh),
    context.live.on('lost', refresh),
  ]
  tabs.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  await show()
  if (tab.id !== 'pending') {
    const pending = api.get('/approvals?status=pending&limit=1')
    pending.then((reply) => shared.setPending(reply.pending)).catch(() => {})
  }
  return () => {
    closed = true
    view?.close?.()
    for (const off of offs) off()
  }
}

/** @param {string | null} id */
const tabOf = (id) => TABS.find((one) => one.id === id) ?? TABS[0]

const chosenTab = () => tabOf(new URLSearchParams(location.search).get('tab'))

/** @param {Tab} tab */
function empty(tab) {
  const [picture, heading, message] = tab.empty
  return h('div', { class: 'panel empty' }, icon(picture, 32), h('h2', null, heading), h('p', null, message))
}

/** @param {Tab} tab @param {InboxContext} context @returns {InboxTab} */
function approvalsTab(tab, context) {
  const list = h('ul', { class: 'cases', 'aria-label': `${tab.label} calls` })
  const node = h('div', { class: 'stack loose' })
  const draw = keyedList(list)
  const isPending = tab.id === 'pending'
  let limit = PAGE
  const more = moreButton(() => {
    limit += PAGE
    return refresh()
  }, context)
  async function refresh() {
    const [{ approvals, pending }, { definitions }] = await Promise.all([
      api.get(`/approvals?status=${tab.id}&limit=${limit}`),
      isPending ? api.get('/definitions') : { definitions: [] },
    ])
    context.setPending(pending)
    const waiting = definitions.filter((one) => !one.kept)
    draw([...waiting, ...approvals], (one) => {
      if ('why' in one) return definitionEntry(one, context, refresh)
      return isPending ? pendingEntry(one, context, refresh) : settledEntry(one)
    })
    more.hidden = isPending || approvals.length < limit
    tick()
    showList(node, list, more, waiting.length + approvals.length > 0, tab)
  }
  function tick() {
    /** @type {NodeListOf<HTMLElement>} */
    const times = list.querySelectorAll('[data-expires]')
    for (const time of times) countDown(time)
  }
  const timer = isPending ? setInterval(tick, 1000) : 0
  return { node, refresh, close: () => clearInterval(timer) }
}

/** @param {Tab} tab @param {InboxContext} context @returns {InboxTab} */
function grantsTab(tab, context) {
  const list = h('ul', { class: 'cases', 'aria-label': 'Remembered grants' })
  const node = h('div', { class: 'stack loose' })
  const draw = keyedList(list)
  async function refresh() {
    const grants = await currentGrants()
    draw(grants, (grant) =>
      grantEntry(grant, { showError: context.showError, revoked: () => revoked(grant.tool) }),
    )
    showList(node, list, null, grants.length > 0, tab)
  }
  /** @param {string} tool */
  function revoked(tool) {
    context.announce(`The grant for ${tool} has been revoked.`)
    refresh().catch(context.showError)
  }
  return { node, refresh }
}

/**
 * Shows the list, or the text for an empty list. Changes nothing if that is already shown.
 *
 * @param {HTMLElement} node
 * @param {HTMLElement} list
 * @param {HTMLElement | null} more
 * @param {boolean} hasRows
 * @param {Tab} tab
 */
function showList(node, list, more, hasRows, tab) {
  if (hasRows) {
    if (!node.contains(list)) clear(node, list, more)
  } else if (!node.querySelector('.empty')) clear(node, empty(tab))
}
