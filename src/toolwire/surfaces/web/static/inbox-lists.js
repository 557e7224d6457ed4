// Lists that are drawn again while a person reads them.

/** @import { InboxContext } from '../types' */

import { focus, h } from './dom.js'

/**
 * A function that draws the rows of a list. It keeps the nodes of rows that did not change, so that focus and
 * open details stay.
 *
 * @param {HTMLElement} list
 */
export function keyedList(list) {
  /** @type {Map<string, { json: string, node: HTMLElement }>} */
  let drawn = new Map()
  /**
   * @template {{ id: string }} Item
   * @param {Item[]} items
   * @param {(item: Item) => HTMLElement} make
   */
  return (items, make) => {
    /** @type {typeof drawn} */
    const next = new Map()
    for (const item of items) {
      const json = JSON.stringify(item)
      const before = drawn.get(item.id)
      next.set(item.id, before?.json === json ? before : { json, node: make(item) })
    }
    drawn = next
    const wanted = [...next.values()].map((one) => one.node)
    const { children } = list
    if (wanted.length === children.length && wanted.every((node, at) => children[at] === node)) return
    const focused = document.activeElement
    list.replaceChildren(...wanted)
    if (focused !== document.activeElement) focus(focused)
  }
}

/** @param {() => Promise<void>} load @param {InboxContext} context */
export function moreButton(load, context) {
  const button = h(
    'button',
    { type: 'button', class: 'button more', hidden: true, onclick: press },
    'Load more',
  )
  async function press() {
    button.disabled = true
    await load().catch(context.showError)
    button.disabled = false
  }
  return button
}
