// A view that shows the end of its content while the content grows. If the person scrolls up, the view stays
// where it is, and a button leads back to the end.

import { h, icon } from './dom.js'

const NEAR = 48
const AWAY_MS = 300
const UPWARDS = new Set(['ArrowUp', 'PageUp', 'Home'])

export class Scroller {
  /** @param {HTMLElement} content */
  constructor(content) {
    this.pinned = true
    this.top = 0
    this.awayUntil = 0
    this.node = h(
      'div',
      {
        class: 'chat-scroll scroll',
        tabindex: '0',
        role: 'region',
        'aria-label': 'Conversation',
        onscroll: () => this.scrolled(),
        onkeydown: (event) => {
          if (event.target !== this.node) return
          if (UPWARDS.has(event.key)) this.scrollsUp(this.node)
          else this.awayUntil = 0
        },
      },
      content,
    )
    /** @param {WheelEvent} event */
    const turned = (event) => {
      if (event.ctrlKey) return
      if (event.deltaY < 0) this.scrollsUp(event.target)
      else this.awayUntil = 0
    }
    this.node.addEventListener('wheel', turned, { passive: true })
    this.button = h(
      'button',
      { type: 'button', class: 'button chat-jump', hidden: true, onclick: () => this.toEnd() },
      icon('down', 15),
      'Jump to the end',
    )
    this.observer = new ResizeObserver(() => this.grown())
    this.observer.observe(content)
    this.observer.observe(this.node)
  }

  /**
   * Starts to follow the content when the person reaches its end, and stops at the smallest move up. If the
   * content becomes shorter, the view also moves, but stays at the end.
   */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.node
    const moved = scrollTop - this.top
    const left = scrollHeight - scrollTop - clientHeight
    this.top = scrollTop
    if (moved > 0 && left < NEAR && performance.now() > this.awayUntil) this.pin(true)
    else if (moved < -1 && left > 1) {
      this.pin(false)
      if (this.awayUntil === Infinity) this.awayUntil = performance.now() + AWAY_MS
    }
  }

  /**
   * The person scrolls up. The browser does that in small steps, on a busy machine only after a while, and
   * content that grows meanwhile moves the view down a little. Near the end that looks like a return to the
   * end. So the view does not follow until it has moved up, and for a moment after that.
   *
   * @param {EventTarget | null} target
   */
  scrollsUp(target) {
    let node = target instanceof Element ? target : null
    for (; node && node !== this.node; node = node.parentElement) {
      if (node.scrollTop > 0) return // this element scrolls, not the view
    }
    if (this.node.scrollTop <= 0) return
    this.awayUntil = Infinity
    this.pin(false)
  }

  /** @param {boolean} on */
  pin(on) {
    this.pinned = on
    const focused = this.button === document.activeElement
    this.button.hidden = on
    if (on && focused) this.node.focus({ preventScroll: true })
  }

  grown() {
    if (!this.pinned) return
    this.node.scrollTop = this.node.scrollHeight
    this.top = this.node.scrollTop
  }

  /** Shows the start of an empty chat, which has no end to follow. */
  toStart() {
    this.pinned = false
    this.button.hidden = true
    this.node.scrollTop = 0
  }

  /** Scrolls to the end, and stays there. */
  toEnd() {
    this.awayUntil = 0
    this.pin(true)
    this.grown()
  }

  end() {
    this.observer.disconnect()
  }
}
