// The leaves of a Markdown text: paragraphs, code and tables, and how lines are added to them.

import { codeBlock, copyButton, h } from './dom.js'
import { inline, settled } from './markdown-inline.js'
import { cells, DELIMITERS } from './markdown-lines.js'

export const LONGEST_LINE = 8_000
export const CODE_PIECE = 120 // lines
const SETTLE_AFTER = 700 // a longer paragraph is not drawn again as a whole
const UNSETTLED = 200 // the end of a paragraph, which later text may still change

/**
 * What is drawn of a paragraph: `settled` is the text whose `count` nodes do not change any more.
 *
 * @typedef {{ node: HTMLElement, settled: string, count: number }} Drawn
 */
/**
 * `stale`: the source has changed since it was drawn.
 *
 * @typedef {{ kind: 'text', drawn: Drawn, source: string, stale: boolean }} TextLeaf
 */
/**
 * `text` is the last piece of code, with `count` lines; `lines` are all lines, for the copy button.
 *
 * @typedef {object} CodeLeaf
 * @property {'code'} kind
 * @property {HTMLElement} code
 * @property {string} mark
 * @property {number} indent
 * @property {string[]} lines
 * @property {Text} text
 * @property {number} count
 */
/** @typedef {{ kind: 'table', body: HTMLElement, sides: string[] }} TableLeaf */
/** @typedef {TextLeaf | CodeLeaf | TableLeaf} Leaf */

/**
 * Draws a paragraph. While it grows, its start is settled as soon as no mark in it is open, and not drawn
 * again.
 *
 * @param {TextLeaf} leaf
 * @param {boolean} partial whether its last line is not complete yet
 */
export function drawText(leaf, partial) {
  const { drawn } = leaf
  const { node } = drawn
  const source = leaf.source.trimEnd()
  if (!source.startsWith(drawn.settled)) Object.assign(drawn, { settled: '', count: 0 })
  shorten(node, drawn.count)
  while (source.length - drawn.settled.length > SETTLE_AFTER) {
    const from = drawn.settled.length
    const end = source.lastIndexOf(' ', Math.min(from + LONGEST_LINE / 4, source.length - UNSETTLED)) + 1
    const part = end > from ? settled(source.slice(from, end)) : null
    if (!part?.closed) break
    node.append(...part.nodes)
    Object.assign(drawn, { settled: source.slice(0, end), count: node.childNodes.length })
  }
  node.append(...inline(source.slice(drawn.settled.length), partial))
  leaf.stale = false
}

/**
 * A code block that a fence starts.
 *
 * @param {RegExpExecArray} fence
 * @returns {{ node: HTMLElement, leaf: CodeLeaf }}
 */
export function startCode([, indent, mark, info]) {
  /** @type {string[]} */
  const lines = []
  const code = h('code')
  const language = info.trim().split(/\s/, 1)[0]
  const copier = copyButton(() => lines.join('\n'), 'Copy code')
  const text = codePiece(code)
  return {
    node: codeBlock(code, language, copier),
    leaf: { kind: 'code', code, mark, indent: indent.length, lines, text, count: 0 },
  }
}

/** Whether a line ends the code. @param {CodeLeaf} leaf @param {string} rest */
export function endsCode({ mark }, rest) {
  const end = rest.trim()
  return end.length >= mark.length && end === mark[0].repeat(end.length)
}

/** @param {CodeLeaf} leaf @param {string} rest @param {boolean} partial */
export function addCode(leaf, rest, partial) {
  const line = leaf.indent ? rest.replace(/^ {0,3}/, (lead) => lead.slice(leaf.indent)) : rest
  if (leaf.count >= CODE_PIECE && line) {
    leaf.text = codePiece(leaf.code)
    leaf.count = 0
  }
  leaf.text.data = leaf.count === 0 ? line : `${leaf.text.data}\n${line}`
  leaf.count += 1
  if (!partial) leaf.lines.push(line)
}

/**
 * The table that a delimiter line starts below the last line of a paragraph, or null. Takes that line away
 * from the paragraph.
 *
 * @param {TextLeaf} leaf
 * @param {string} rest
 * @returns {{ node: HTMLElement, leaf: TableLeaf } | null}
 */
export function startTable(leaf, rest) {
  if (!DELIMITERS.test(rest.trim())) return null
  const cut = leaf.source.lastIndexOf('\n')
  const above = leaf.source.slice(cut + 1)
  const head = cells(above)
  const sides = cells(rest).map((one) => (/^:-+:$/.test(one) ? 'center' : /-:$/.test(one) ? 'right' : ''))
  if (head.length !== sides.length || !above.includes('|')) return null
  if (cut < 0) leaf.drawn.node.remove()
  else {
    leaf.source = leaf.source.slice(0, cut)
    drawText(leaf, false)
  }
  const heads = head.map((cell, at) => h('th', { scope: 'col', class: sides[at] || null }, ...inline(cell)))
  const body = h('tbody')
  const table = h('table', null, h('thead', null, h('tr', null, heads)), body)
  const props = { class: 'md-table scroll', tabindex: '0', role: 'group', 'aria-label': 'Table' }
  return { node: h('div', props, table), leaf: { kind: 'table', body, sides } }
}

/** @param {TableLeaf} leaf @param {string} rest */
export function addRow({ body, sides }, rest) {
  const found = cells(rest)
  const row = sides.map((side, at) => h('td', { class: side || null }, ...inline(found[at] ?? '')))
  body.append(h('tr', null, row))
}

/** The node of a leaf that gets more children with each line. @param {Leaf | null} leaf */
export function holderOf(leaf) {
  if (leaf?.kind === 'code') return leaf.code
  return leaf?.kind === 'table' ? leaf.body : null
}

/** @param {ParentNode} node @param {number} size */
export function shorten(node, size) {
  while (node.childNodes.length > size) node.lastChild?.remove()
}

/** A piece of code is an element, so that only the last one is laid out again. @param {HTMLElement} code */
function codePiece(code) {
  const text = document.createTextNode('')
  code.append(h('span', { class: 'code-piece' }, text))
  return text
}
