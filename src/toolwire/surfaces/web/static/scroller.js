// A view that stays at the end while what it shows grows, lets go when the person scrolls up, and offers the way back.

import { h, icon } from './dom.js'

const NEAR = 48

export class Scroller {
  constructor(content) {
    this.pinned = true
    this.top = 0
    this.node = h(
      'div',
      { class: 'chat-scroll scroll', tabindex: '0', role: 'region', 'aria-label': 'Conversation', onscroll: () => this.scrolled() },
      content,
    )
    this.button = h(
      'button',
      { type: 'button', class: 'button chat-jump', hidden: true, onclick: () => this.toEnd() },
      icon('down', 15),
      'Jump to the end',
    )
    this.watch = new ResizeObserver(() => this.grown())
    this.watch.observe(content)
    this.watch.observe(this.node)
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.node
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.pin(true)
    else if (scrollTop < this.top - 2) this.pin(false)
    this.top = scrollTop
  }

  pin(on) {
    this.pinned = on
    const held = this.button === document.activeElement
    this.button.hidden = on
    if (on && held) this.node.focus({ preventScroll: true })
  }

  grown() {
    if (this.pinned) this.node.scrollTop = this.node.scrollHeight
  }

  /** To the end, and stay there. */
  toEnd() {
    this.pin(true)
    this.grown()
  }

  end() {
    this.watch.disconnect()
  }
}
