// Lists that are drawn again and again while a person looks at them.

import { h } from './dom.js'

/** Keeps rows that did not change, so that focus and opened folds stay. */
export function keyed(list) {
  const held = new Map()
  return (items, make) => {
    const wanted = items.map((item) => {
      const written = JSON.stringify(item)
      const before = held.get(item.id)
      const node = before?.written === written ? before.node : make(item)
      held.set(item.id, { written, node })
      return node
    })
    const ids = new Set(items.map((item) => item.id))
    for (const id of held.keys()) if (!ids.has(id)) held.delete(id)
    if (wanted.length !== list.children.length || wanted.some((node, at) => list.children[at] !== node)) {
      const focused = document.activeElement
      list.replaceChildren(...wanted)
      if (focused !== document.activeElement && focused?.isConnected) focused.focus()
    }
  }
}

export function moreButton(load, context) {
  const button = h(
    'button',
    { type: 'button', class: 'button more', hidden: true, onclick: press },
    'Load more',
  )
  async function press() {
    button.disabled = true
    await load().catch(context.failed)
    button.disabled = false
  }
  return button
}
