// The frame of the chat page: the list of conversations, the head, the thread and the foot.

/** @import { Child } from '../types' */
/** @import { ChatHead } from './chat-head.js' */
/** @import { ConversationList } from './conversations.js' */
/** @import { Scroller } from './scroller.js' */

import { h } from './dom.js'

/**
 * `close` closes the list, which covers the page on a narrow screen.
 *
 * @param {{ list: ConversationList, head: ChatHead, scroller: Scroller }} parts
 * @param {Child} foot
 * @param {() => void} close
 */
export function frame({ list, head, scroller }, foot, close) {
  const column = h('div', { class: 'chat-column' }, foot)
  const page = h(
    'div',
    { class: 'chat' },
    list.node,
    h('div', { class: 'chat-backdrop', onclick: close }),
    h(
      'div',
      { class: 'chat-main' },
      head.node,
      scroller.node,
      h('div', { class: 'chat-foot' }, scroller.button, column),
    ),
  )
  page.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && page.classList.contains('side-open')) close()
  })
  return page
}
