// A piece of a note, as a person sees it before it is shared: Markdown, with the matches of a search marked.
//
// Law: everything that would be shared is visible. Invisible characters are written out, and a link becomes
// its text and its address: nothing is hidden in it, and it cannot be followed by accident.

import { h, visible } from './dom.js'
import { render } from './markdown.js'

const ASCII = /^[\x20-\x7e]+$/

/**
 * The piece of the note as a node. `marked`: the texts to mark where they occur as whole words.
 *
 * @param {string} source
 * @param {string[]} [marked]
 */
export function snippet(source, marked = []) {
  const box = h('div', { class: 'pick-snippet md' }, render(visible(source)))
  for (const link of box.querySelectorAll('a')) {
    const { href } = link
    const shown = link.textContent === href ? [] : [h('span', { class: 'muted' }, ` (${href})`)]
    link.replaceWith(...link.childNodes, ...shown)
  }
  for (const heading of box.querySelectorAll('h2, h3, h4, h5, h6'))
    heading.replaceWith(h('div', { class: 'strong' }, ...heading.childNodes)) // not headings of this page
  const pattern = patternOf(marked)
  if (pattern) mark(box, pattern)
  return box
}

/** @param {string[]} marked */
function patternOf(marked) {
  const longestFirst = [...marked].filter(Boolean).sort((one, other) => other.length - one.length)
  if (!longestFirst.length) return null
  const each = longestFirst.map((one) => {
    const written = visible(one).replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')
    return ASCII.test(one) ? `(?<![\\p{L}\\p{N}])${written}(?![\\p{L}\\p{N}])` : written
  })
  return new RegExp(each.join('|'), 'gu')
}

/** Marks the matches in all texts of a node. @param {HTMLElement} node @param {RegExp} pattern */
function mark(node, pattern) {
  for (const child of [...node.childNodes]) {
    if (child.nodeType !== Node.TEXT_NODE) {
      mark(/** @type {HTMLElement} */ (child), pattern)
      continue
    }
    const text = child.textContent ?? ''
    /** @type {(string | HTMLElement)[]} */
    const parts = []
    let from = 0
    for (const found of text.matchAll(pattern)) {
      parts.push(text.slice(from, found.index), h('mark', null, found[0]))
      from = found.index + found[0].length
    }
    if (parts.length) /** @type {Text} */ (child).replaceWith(...parts, text.slice(from))
  }
}
