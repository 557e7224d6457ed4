// A view that stays at the end while what it shows grows, lets go when the person scrolls up, and offers the way back.

import { h, icon } from './dom.js'

const NEAR = 48
const AWAY_MS = 300
const UPWARDS = new Set(['ArrowUp', 'PageUp', 'Home'])

export class Scroller {
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
          if (UPWARDS.has(event.key)) this.wanted(this.node)
          else this.awayUntil = 0
        },
      },
      content,
    )
    const turned = (event) => {
      if (event.ctrlKey) return
      if (event.deltaY < 0) this.wanted(event.target)
      else this.awayUntil = 0
    }
    this.node.addEventListener('wheel', turned, { passive: true })
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

  /** Upwards lets go, however little; back to the end holds again. What shrank moves the view too, but leaves it at its end. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.node
    const moved = scrollTop - this.top
    const left = scrollHeight - scrollTop - clientHeight
    this.top = scrollTop
    if (moved > 0 && left < NEAR && performance.now() > this.awayUntil) this.pin(true)
    else if (moved < -1 && left > 1) this.pin(false)
  }

  /**
   * The person turns upwards. The browser scrolls there in small steps, and what grows meanwhile moves the view down a little: near the end
   * that looks like a return to the end, so for a moment nothing holds the view again.
   */
  wanted(target) {
    for (let node = target; node !== this.node; node = node.parentElement) if (node.scrollTop > 0) return // that one moves, not the view
    if (this.node.scrollTop <= 0) return
    this.awayUntil = performance.now() + AWAY_MS
    this.pin(false)
  }

  pin(on) {
    this.pinned = on
    const held = this.button === document.activeElement
    this.button.hidden = on
    if (on && held) this.node.focus({ preventScroll: true })
  }

  grown() {
    if (!this.pinned) return
    this.node.scrollTop = this.node.scrollHeight
    this.top = this.node.scrollTop
  }

  /** To the end, and stay there. */
  toEnd() {
    this.awayUntil = 0
    this.pin(true)
    this.grown()
  }

  end() {
    this.watch.disconnect()
  }
}
