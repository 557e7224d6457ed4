// The head of the chat: the title, and the buttons that rename, export and delete the conversation.

/** @import { ConversationList } from './conversations.js' */

import * as api from './api.js'
import { clear, h, icon, text } from './dom.js'

export class ChatHead {
  /**
   * `ontoggle` opens and closes the list on a narrow screen.
   *
   * @param {ConversationList} list
   * @param {() => void} ontoggle
   */
  constructor(list, ontoggle) {
    this.list = list
    /** @type {string | undefined} the conversation that the buttons are for */
    this.id = undefined
    this.title = ''
    this.heading = h('h1', { class: 'chat-title ellipsis', tabindex: '-1' }, 'New chat')
    this.toggle = h(
      'button',
      {
        type: 'button',
        class: 'button quiet square chat-toggle',
        'aria-label': 'Conversations',
        'aria-expanded': 'false',
        onclick: ontoggle,
      },
      icon('list'),
    )
    this.buttons = h('div', { class: 'chat-tools' })
    this.node = h('header', { class: 'chat-head' }, this.toggle, this.heading, this.buttons)
  }

  /** @param {{ id?: string, title: string }} conversation */
  show({ id, title }) {
    this.title = title || 'New chat'
    text(this.heading, this.title)
    if (id === this.id) return // keeps the focus on the buttons
    this.id = id
    clear(this.buttons, id ? this.draw(id) : null)
  }

  /** @param {string} id */
  draw(id) {
    const rename = h(
      'button',
      {
        type: 'button',
        class: 'button quiet square',
        'aria-label': 'Rename this conversation',
        title: 'Rename',
        onclick: () => this.list.rename(id, this.title),
      },
      icon('pencil'),
    )
    const note = h(
      'a',
      {
        class: 'button quiet',
        href: api.url(`/conversations/${encodeURIComponent(id)}/note`),
        download: '',
        title: 'Export as a Markdown note',
        'aria-label': 'Export as a Markdown note',
      },
      icon('download'),
      h('span', { class: 'wide-only' }, 'Export'),
    )
    const remove = h(
      'button',
      {
        type: 'button',
        class: 'button quiet danger square',
        'aria-label': 'Delete this conversation',
        title: 'Delete',
        onclick: () => this.list.remove(id, this.title),
      },
      icon('trash'),
    )
    return [rename, note, remove]
  }
}
