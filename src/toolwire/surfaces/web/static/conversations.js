// The list of conversations. In it, the person can search, open, start, rename and delete conversations.

/** @import { Context, ConversationRow, OnError } from '../types' */

import * as api from './api.js'
import { confirm, prompt } from './dialog.js'
import { clear, h, icon, when } from './dom.js'

const SEARCH_MS = 200

export class ConversationList {
  /**
   * `deleted` is called after a conversation was deleted, `opened` when the person opens one.
   *
   * @param {Context} context
   * @param {{ showError: OnError, deleted: (id: string) => unknown, opened: () => void }} actions
   */
  constructor(context, { showError, deleted, opened }) {
    this.showError = showError
    this.deleted = deleted
    this.opened = opened
    /** @type {string | undefined} */
    this.current = undefined
    /** @type {ConversationRow[]} */
    this.rows = []
    this.loads = 0
    this.timer = 0
    this.search = h('input', {
      class: 'input',
      type: 'search',
      'aria-label': 'Search conversations',
      placeholder: 'Search',
      oninput: () => this.loadSoon(),
    })
    this.list = h('ul', { class: 'conversations' })
    const start = h('a', { class: 'button', href: '/', onclick: opened }, icon('plus', 16), 'New chat')
    this.node = h(
      'aside',
      { class: 'chat-side', 'aria-label': 'Conversations' },
      h('div', { class: 'chat-side-head' }, start, this.search),
      h('div', { class: 'scroll grow', tabindex: '-1' }, this.list),
    )
    this.offs = [
      context.live.on('conversations', () => this.load()),
      context.live.on('lost', () => this.load()),
      context.live.on('approvals', () => this.loadSoon()),
    ]
  }

  loadSoon() {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.load(), SEARCH_MS)
  }

  async load() {
    this.loads += 1
    const load = this.loads
    try {
      const path = api.query('/conversations', { q: this.search.value.trim(), limit: 200 })
      const { conversations } = await api.get(path)
      if (load !== this.loads) return
      this.rows = conversations
      this.draw()
    } catch (error) {
      if (load === this.loads) this.showError(error)
    }
  }

  /** @param {string | undefined} id */
  go(id) {
    this.current = id
    this.draw()
  }

  draw() {
    const active = document.activeElement
    const focused =
      active instanceof HTMLElement && this.list.contains(active) ? active.dataset.control : undefined
    const none = this.search.value.trim() ? 'No conversation matches.' : 'Your conversations appear here.'
    const rows = this.rows.map((row) => this.row(row))
    clear(this.list, rows.length ? rows : h('li', { class: 'conversations-none muted' }, none))
    if (!focused) return
    /** @type {HTMLElement | null} */
    const same = this.list.querySelector(`[data-control="${CSS.escape(focused)}"]`)
    same?.focus()
  }

  /** @param {ConversationRow} row */
  row(row) {
    const here = row.id === this.current
    const title = row.title || 'New chat'
    const state = row.waiting
      ? h('span', { class: 'badge accent' }, `${row.waiting} waiting`)
      : row.running
        ? h('span', { class: 'spinner', role: 'img', 'aria-label': 'running' })
        : when(row.updated_at)
    const link = h(
      'a',
      {
        class: 'conversation-link',
        href: `/ui/chat/${encodeURIComponent(row.id)}`,
        'aria-current': here ? 'true' : null,
        onclick: this.opened,
        dataset: { control: `open-${row.id}` },
      },
      h(
        'span',
        { class: 'conversation-top' },
        h('span', { class: 'conversation-title ellipsis' }, title),
        h('span', { class: 'conversation-when' }, state),
      ),
      row.snippet ? h('span', { class: 'conversation-snippet ellipsis' }, row.snippet) : null,
    )
    const rename = h(
      'button',
      {
        type: 'button',
        class: 'button quiet square small',
        'aria-label': `Rename ${title}`,
        title: 'Rename',
        dataset: { control: `rename-${row.id}` },
        onclick: () => this.rename(row.id, title),
      },
      icon('pencil', 15),
    )
    const remove = h(
      'button',
      {
        type: 'button',
        class: 'button quiet danger square small',
        'aria-label': `Delete ${title}`,
        title: 'Delete',
        dataset: { control: `delete-${row.id}` },
        onclick: () => this.remove(row.id, title),
      },
      icon('trash', 15),
    )
    const tools = h('span', { class: 'conversation-tools' }, rename, remove)
    return h('li', { class: here ? 'conversation here' : 'conversation' }, link, tools)
  }

  /** @param {string} id @param {string} title */
  async rename(id, title) {
    const given = await prompt({ title: 'Rename the conversation', label: 'Title', value: title })
    if (given === null || given === title) return
    try {
      await api.patch(`/conversations/${encodeURIComponent(id)}`, { title: given })
      this.load()
    } catch (error) {
      this.showError(error)
    }
  }

  /** @param {string} id @param {string} title */
  async remove(id, title) {
    const content = `“${title}” and all its messages will be deleted. Approvals stay in the audit log.`
    if (!(await confirm({ title: 'Delete the conversation?', content, action: 'Delete', danger: true })))
      return
    try {
      await api.del(`/conversations/${encodeURIComponent(id)}`)
      this.rows = this.rows.filter((row) => row.id !== id)
      this.draw()
      this.deleted(id)
    } catch (error) {
      this.showError(error)
    }
  }

  end() {
    clearTimeout(this.timer)
    for (const off of this.offs) off()
  }
}
