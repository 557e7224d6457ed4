// The list of conversations: search, open, begin, rename, delete.

import * as api from './api.js'
import { confirm, prompt } from './dialog.js'
import { clear, h, icon, when } from './dom.js'

const SEARCH_MS = 200

export class ConversationList {
  /** `trouble(error)` tells what went wrong; `deleted(id)` that a conversation is gone; `picked()` that the person went to one. */
  constructor(context, { trouble, deleted, picked }) {
    Object.assign(this, { context, trouble, deleted, picked, current: undefined, rows: [] })
    this.search = h('input', {
      class: 'input',
      type: 'search',
      'aria-label': 'Search conversations',
      placeholder: 'Search',
      oninput: () => this.later(),
    })
    this.list = h('ul', { class: 'conversations' })
    const begin = h('a', { class: 'button', href: '/', onclick: picked }, icon('plus', 16), 'New chat')
    this.node = h(
      'aside',
      { class: 'chat-side', 'aria-label': 'Conversations' },
      h('div', { class: 'chat-side-head' }, begin, this.search),
      h('div', { class: 'scroll grow', tabindex: '-1' }, this.list),
    )
    this.offs = [
      context.live.on('conversations', () => this.load()),
      context.live.on('lost', () => this.load()),
      context.live.on('approvals', () => this.later()),
    ]
  }

  later() {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.load(), SEARCH_MS)
  }

  async load() {
    const turn = (this.turn = (this.turn ?? 0) + 1)
    try {
      const { conversations } = await api.get(
        api.query('/conversations', { q: this.search.value.trim(), limit: 200 }),
      )
      if (turn !== this.turn) return
      this.rows = conversations
      this.draw()
    } catch (error) {
      if (turn === this.turn) this.trouble(error)
    }
  }

  go(id) {
    this.current = id
    this.draw()
  }

  draw() {
    const held = this.list.contains(document.activeElement) ? document.activeElement.dataset.held : null
    const words = this.search.value.trim() ? 'No conversation fits.' : 'Your conversations will stand here.'
    clear(
      this.list,
      this.rows.length
        ? this.rows.map((row) => this.row(row))
        : h('li', { class: 'conversations-none muted' }, words),
    )
    if (held) this.list.querySelector(`[data-held="${CSS.escape(held)}"]`)?.focus()
  }

  row(one) {
    const here = one.id === this.current
    const title = one.title || 'New chat'
    const state = one.waiting
      ? h('span', { class: 'badge accent' }, `${one.waiting} waiting`)
      : one.running
        ? h('span', { class: 'spinner', role: 'img', 'aria-label': 'running' })
        : when(one.updated_at)
    const link = h(
      'a',
      {
        class: 'conversation-link',
        href: `/ui/chat/${encodeURIComponent(one.id)}`,
        'aria-current': here ? 'true' : null,
        onclick: this.picked,
        dataset: { held: `open-${one.id}` },
      },
      h(
        'span',
        { class: 'conversation-top' },
        h('span', { class: 'conversation-title ellipsis' }, title),
        h('span', { class: 'conversation-when' }, state),
      ),
      one.snippet ? h('span', { class: 'conversation-snippet ellipsis' }, one.snippet) : null,
    )
    const rename = h(
      'button',
      {
        type: 'button',
        class: 'button quiet square small',
        'aria-label': `Rename ${title}`,
        title: 'Rename',
        dataset: { held: `rename-${one.id}` },
        onclick: () => this.rename(one.id, title),
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
        dataset: { held: `delete-${one.id}` },
        onclick: () => this.remove(one.id, title),
      },
      icon('trash', 15),
    )
    return h(
      'li',
      { class: here ? 'conversation here' : 'conversation' },
      link,
      h('span', { class: 'conversation-tools' }, rename, remove),
    )
  }

  async rename(id, title) {
    const given = await prompt({ title: 'Rename the conversation', label: 'Title', value: title })
    if (given === null || given === title) return
    try {
      await api.patch(`/conversations/${encodeURIComponent(id)}`, { title: given })
      this.load()
    } catch (error) {
      this.trouble(error)
    }
  }

  async remove(id, title) {
    const words = `“${title}” will be deleted for good, with everything that was said in it. What was approved stays in the audit log.`
    if (!(await confirm({ title: 'Delete the conversation?', words, action: 'Delete', danger: true }))) return
    try {
      await api.del(`/conversations/${encodeURIComponent(id)}`)
      this.rows = this.rows.filter((row) => row.id !== id)
      this.draw()
      this.deleted(id)
    } catch (error) {
      this.trouble(error)
    }
  }

  end() {
    clearTimeout(this.timer)
    for (const off of this.offs) off()
  }
}
