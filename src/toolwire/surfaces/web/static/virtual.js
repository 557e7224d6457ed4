// A list of any length of which only the visible rows, and a margin around them, stand in the page.
//
// Rows have one fixed height, nodes are used again, and drawing happens once a frame: the cost does not depend on the length of the list.
// It is a listbox: one stop for Tab, arrows, PageUp, PageDown, Home and End move the choice, and every row says which of how many it is.

import { h } from './dom.js'

const MARGIN = 8

let lists = 0

/**
 * `make()` gives an empty row, `draw(row, index)` fills it, `onpick(index)` hears of a choice, `onview(first, last)` of what is looked at.
 * Returns {element, resize(total), redraw(), show(index), pick(index, quiet), chosen, close()}.
 */
export function virtualList({ label, rowHeight, make, draw, onpick = () => {}, onview = () => {} }) {
  const name = `rows-${(lists += 1)}`
  const space = h('div', { class: 'vlist-space', role: 'presentation' })
  const element = h(
    'div',
    {
      class: 'vlist',
      role: 'listbox',
      tabindex: '0',
      'aria-label': label,
      vars: { '--row': `${rowHeight}px` },
    },
    space,
  )
  const shown = new Map()
  const spare = []
  let total = 0
  let height = 0
  let asked = 0
  const list = { element, chosen: -1, resize, redraw, show, pick, close }

  const watch = new ResizeObserver(() => {
    height = element.clientHeight
    later()
  })
  watch.observe(element)
  element.addEventListener('scroll', later, { passive: true })
  element.addEventListener('keydown', press)
  space.addEventListener('click', (event) => {
    const row = event.target.closest('.vlist-row')
    if (row) pick(Number(row.dataset.index))
  })

  function later() {
    asked ||= requestAnimationFrame(render)
  }

  function render() {
    asked = 0
    const top = element.scrollTop
    const first = Math.max(0, Math.floor(top / rowHeight) - MARGIN)
    const last = Math.min(total - 1, Math.ceil((top + (height || 600)) / rowHeight) + MARGIN)
    for (const [index, row] of shown) {
      if (index >= first && index <= last) continue
      shown.delete(index)
      spare.push(row)
    }
    const fresh = []
    for (let index = first; index <= last; index += 1) {
      if (shown.has(index)) continue
      const row = place(spare.pop() ?? fresh[fresh.push(begin()) - 1], index)
      shown.set(index, row)
    }
    if (fresh.length) space.append(...fresh)
    while (spare.length) spare.pop().remove()
    point()
    if (total) onview(first, last)
  }

  function begin() {
    const row = make()
    row.classList.add('vlist-row')
    row.setAttribute('role', 'option')
    return row
  }

  function place(row, index) {
    row.id = `${name}-${index}`
    row.dataset.index = index
    row.style.transform = `translateY(${index * rowHeight}px)`
    row.setAttribute('aria-posinset', index + 1)
    row.setAttribute('aria-setsize', total)
    row.setAttribute('aria-selected', String(index === list.chosen))
    draw(row, index)
    return row
  }

  /** Only a row that stands in the page may be called the active one. */
  function point() {
    if (shown.has(list.chosen)) element.setAttribute('aria-activedescendant', `${name}-${list.chosen}`)
    else element.removeAttribute('aria-activedescendant')
  }

  /** So many rows there are now; the place that is looked at stays. */
  function resize(count) {
    if (count === total) return later()
    total = count
    space.style.height = `${total * rowHeight}px`
    for (const row of shown.values()) row.setAttribute('aria-setsize', total)
    later()
  }

  /** The rows say something else by now. */
  function redraw() {
    for (const [index, row] of shown) draw(row, index)
    later()
  }

  function show(index) {
    const top = index * rowHeight
    const view = height || element.clientHeight
    if (top < element.scrollTop) element.scrollTop = Math.max(0, top - rowHeight)
    else if (top + rowHeight > element.scrollTop + view) element.scrollTop = top + 2 * rowHeight - view
  }

  function pick(index, quiet = false) {
    const before = shown.get(list.chosen)
    list.chosen = index < 0 ? -1 : Math.min(index, total - 1)
    before?.setAttribute('aria-selected', 'false')
    shown.get(list.chosen)?.setAttribute('aria-selected', 'true')
    if (list.chosen >= 0) show(list.chosen)
    later()
    point()
    if (!quiet && list.chosen >= 0) onpick(list.chosen)
  }

  function press(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !total) return
    const page = Math.max(1, Math.floor(height / rowHeight) - 1)
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[
      event.key
    ]
    if (step === undefined) return
    event.preventDefault()
    const from =
      list.chosen < 0
        ? step > 0
          ? Math.ceil(element.scrollTop / rowHeight) - 1
          : Math.floor(element.scrollTop / rowHeight)
        : list.chosen
    pick(Math.max(0, Math.min(total - 1, from + step)))
  }

  function close() {
    watch.disconnect()
    cancelAnimationFrame(asked)
  }

  return list
}
