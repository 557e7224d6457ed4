// Links in foreign text. They lead only to http, https or mail addresses. The page never opens them by
// itself, and does not send its own address to the other site.

/** @import { Child } from '../types' */

import { h } from './dom.js'

const PROTOCOLS = new Set(['http:', 'https:', 'mailto:'])
const ADDRESS = /(?:https?:\/\/|www\.)[^\s<>"'`|\\^{}]{1,2000}/iy
const START = /https?:\/\/|www\./gi
const WORD = /[\p{L}\p{N}_]/u

/** An address that a link may have, or null. @param {string} written */
export function target(written) {
  const address = written.trim()
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return null
  try {
    const parsed = new URL(address)
    return PROTOCOLS.has(parsed.protocol) ? parsed.href : null
  } catch {
    return null
  }
}

/** @param {string} href @param {...Child} children */
export function link(href, ...children) {
  return h('a', { href, rel: 'noopener noreferrer nofollow', target: '_blank', title: href }, ...children)
}

/**
 * A bare address that begins at a position of the text, or null.
 *
 * @param {string} source
 * @param {number} at
 */
export function addressAt(source, at) {
  if (at > 0 && WORD.test(source[at - 1])) return null
  ADDRESS.lastIndex = at
  const found = ADDRESS.exec(source)
  if (!found) return null
  let written = found[0].replace(/[.,;:!?*_~\]]+$/, '')
  while (written.endsWith(')') && written.split(')').length > written.split('(').length)
    written = written.slice(0, -1)
  const href = target(/^www\./i.test(written) ? `https://${written}` : written)
  const complete = /[^/:.]$|\/$/.test(written) && (written.includes('.', 4) || written.includes('//'))
  return href && complete ? { href, written } : null
}

/** Plain text with its bare addresses as links. Nothing else in it is markup. @param {string} source */
export function linked(source) {
  /** @type {(string | HTMLElement)[]} */
  const out = []
  let from = 0
  for (const { index } of source.matchAll(START)) {
    const found = index >= from ? addressAt(source, index) : null
    if (!found) continue
    out.push(source.slice(from, index), link(found.href, found.written))
    from = index + found.written.length
  }
  return [...out, source.slice(from)]
}
