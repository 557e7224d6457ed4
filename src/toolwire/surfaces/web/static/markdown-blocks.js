// The blocks of a Markdown text. Each line that `markdown.js` adds opens, continues or closes blocks.

/** @import { Drawn, Leaf } from './markdown-leaves.js' */
/** @import { Container } from './markdown-lines.js' */

import { h } from './dom.js'
import { inline } from './markdown-inline.js'
import {
  addCode,
  addRow,
  CODE_PIECE,
  drawText,
  endsCode,
  holderOf,
  LONGEST_LINE,
  shorten,
  startCode,
  startTable,
} from './markdown-leaves.js'
import {
  continued,
  cutPoint,
  FENCE,
  HEADING,
  ITEM,
  interrupts,
  markerOf,
  QUOTE,
  RULE,
  spaces,
  startsBlock,
} from './markdown-lines.js'

const MOST_DEPTH = 12
const PIECE = 24 // blocks
const MOST_ITEMS = 60
const HALF_MARK = /^ *(?:`{1,2}|~{1,2})$/
const HEADINGS = /** @type {const} */ (['h2', 'h3', 'h4', 'h5', 'h6', 'h6'])

/** @typedef {Container & { node: HTMLElement, marker: string, start: number }} OpenBlock */

/**
 * What to restore when a partial line is removed.
 *
 * @typedef {object} Snapshot
 * @property {OpenBlock[]} open
 * @property {Leaf | null} leaf
 * @property {string} code the text of the last piece of code
 * @property {HTMLElement | null} piece
 * @property {number[]} levels
 * @property {[ParentNode, number][]} sizes how many children each open node had
 */

/** The open blocks, innermost last, and the leaf that lines are added to. */
export class Blocks {
  /** @type {HTMLElement | null} */
  piece = null
  /** @type {number[]} levels of the headings above the next one */
  levels = []
  /** @type {OpenBlock[]} */
  open = []
  /** @type {Leaf | null} */
  leaf = null
  /** @type {Snapshot | null} */
  snapshot = null
  /** @type {Drawn | null} a removed paragraph, which will most likely come again with more text */
  spare = null
  /** Whether a partial line is being shown. */
  partial = false

  /** @param {HTMLElement | DocumentFragment} root */
  constructor(root) {
    this.root = root
  }

  /**
   * The node that the next block goes into. Outermost blocks are in pieces, so that a long text is laid out
   * piece by piece.
   */
  get parent() {
    const inner = this.open.at(-1)
    if (inner) return inner.node
    const { piece } = this
    const isFull = piece && (piece.childNodes.length >= PIECE || piece.lastElementChild?.matches('.goes-on'))
    if (piece && (!isFull || this.partial)) return piece
    piece?.classList.add('full')
    this.piece = h('div', { class: 'md-piece' })
    this.root.append(this.piece)
    return this.piece
  }

  /**
   * Adds a whole line. A line that is too long is cut.
   *
   * @param {string} line
   * @param {boolean} [cut] whether the line continues
   */
  addLine(line, cut = false) {
    let from = 0
    do {
      const end = cutPoint(line, from, LONGEST_LINE)
      this.line(line.slice(from, end))
      if (cut || end < line.length) this.cut()
      from = end
    } while (from < line.length)
  }

  /** The next line continues this one, but in a new paragraph or piece of code. */
  cut() {
    if (this.leaf?.kind === 'text') this.closeLeaf()
    if (this.leaf?.kind === 'code') this.leaf.count = CODE_PIECE
  }

  end() {
    this.closeLeaf()
    this.open.length = 0
  }

  // --- the line that is still being written ----------------------------------------------------------------

  /** Shows a line that is not complete yet. @param {string} line */
  showPartial(line) {
    const { leaf, piece, open, levels } = this
    if (this.isAmbiguous(line)) {
      if (leaf?.kind === 'text' && leaf.stale) drawText(leaf, false)
      return
    }
    const nodes = [this.root, piece, ...open.map((one) => one.node), holderOf(leaf)]
    this.snapshot = {
      open: open.map((one) => ({ ...one })),
      leaf: leaf && { ...leaf },
      code: leaf?.kind === 'code' ? leaf.text.data : '',
      piece,
      levels: [...levels],
      sizes: nodes.flatMap((node) => (node ? [[node, node.childNodes.length]] : [])),
    }
    this.partial = true
    this.line(line)
    if (this.leaf?.kind === 'text') drawText(this.leaf, true)
    this.partial = false
  }

  /**
   * Whether a partial line may become the mark that ends code or starts a table, so that it is not shown yet.
   *
   * @param {string} line
   */
  isAmbiguous(line) {
    const { leaf } = this
    if (line.trim() === '' || HALF_MARK.test(line)) return true
    if (leaf?.kind === 'code') return /^ *(`+|~+)$/.test(line)
    return leaf?.kind === 'text' && leaf.source.includes('|') && /^[ |:-]+$/.test(line)
  }

  removePartial() {
    const { snapshot } = this
    if (snapshot === null) return
    this.snapshot = null
    const drawn = this.leaf?.kind === 'text' ? this.leaf.drawn : null
    const before = snapshot.leaf?.kind === 'text' ? snapshot.leaf.drawn : null
    if (drawn && drawn !== before) this.spare = drawn
    for (const [node, size] of snapshot.sizes) shorten(node, size)
    this.piece = snapshot.piece
    this.levels = snapshot.levels
    this.open = snapshot.open
    this.leaf = snapshot.leaf
    if (this.leaf?.kind === 'code') this.leaf.text.data = snapshot.code
    if (this.leaf?.kind === 'text') this.leaf.stale = true
  }

  // --- a line ----------------------------------------------------------------------------------------------

  /** @param {string} written */
  line(written) {
    let rest = spaces(written)
    let depth = 0
    for (; depth < this.open.length; depth += 1) {
      const next = continued(this.open[depth], rest)
      if (next === null) break
      rest = next
    }
    const inside = depth === this.open.length
    if (inside && this.leaf?.kind === 'code') {
      if (endsCode(this.leaf, rest)) this.leaf = null
      else addCode(this.leaf, rest, this.partial)
    } else if (!inside && this.leaf?.kind === 'text' && rest.trim() && !startsBlock(rest)) {
      this.textLine(rest.trimStart()) // a lazy continuation: the paragraph goes on without its marks
    } else {
      if (!inside) this.closeTo(depth, rest)
      this.block(this.containers(rest))
    }
  }

  /**
   * Closes the blocks that the line is not part of. A list stays open for its next item.
   *
   * @param {number} depth
   * @param {string} rest
   */
  closeTo(depth, rest) {
    this.closeLeaf()
    const list = this.open[depth].kind === 'item' ? this.open[depth - 1] : null
    const item = list && !RULE.test(rest) ? ITEM.exec(rest) : null
    const goesOn = item && list && markerOf(item[2]) === list.marker
    this.open.length = list && !goesOn ? depth - 1 : depth
  }

  /**
   * Opens the quotes and items that the line starts with, and returns the rest of the line.
   *
   * @param {string} line
   */
  containers(line) {
    let rest = line
    while (this.open.length < MOST_DEPTH * 2) {
      const quote = QUOTE.exec(rest)
      if (quote) {
        this.add({ kind: 'quote', node: h('blockquote'), marker: '', start: 0 })
        rest = rest.slice(quote[0].length)
        continue
      }
      const item = RULE.test(rest) ? null : ITEM.exec(rest)
      if (!item || (this.leaf?.kind === 'text' && !interrupts(item[2], rest))) break
      rest = this.item(item, rest)
    }
    return rest
  }

  /** @param {RegExpExecArray} found @param {string} rest */
  item([all, indent, mark, gap], rest) {
    this.closeLeaf()
    this.openList(mark)
    const width = indent.length + mark.length + (gap.length > 4 || gap.length === 0 ? 1 : gap.length)
    const node = h('li')
    this.add({ kind: 'item', node, indent: width, least: indent.length + 2, marker: '', start: 0 })
    const left = rest.slice(gap.length > 4 ? width : all.length)
    const task = /^\[([ xX])\] +/.exec(left)
    if (!task) return left
    const done = task[1] !== ' '
    const label = done ? 'done:' : 'to do:'
    node.className = 'task'
    node.append(h('span', { class: done ? 'task-box done' : 'task-box', role: 'img', 'aria-label': label }))
    return left.slice(task[0].length)
  }

  /**
   * Opens a list, unless the item continues the open one. A long list is cut into several, for the layout.
   *
   * @param {string} mark
   */
  openList(mark) {
    const marker = markerOf(mark)
    const last = this.open.at(-1)
    const list = last?.kind === 'list' ? last : null
    const goesOn = list?.marker === marker
    const isFull =
      goesOn && this.open.length === 1 && !this.partial && list.node.childNodes.length >= MOST_ITEMS
    if (goesOn && !isFull) return
    if (list) this.open.pop()
    if (isFull) list.node.classList.add('goes-on')
    const ordered = marker === '.' || marker === ')'
    const first = ordered ? Number.parseInt(mark, 10) : 1
    const start = isFull ? list.start + list.node.childNodes.length : first
    const node = ordered ? h('ol', { start: start === 1 ? null : start }) : h('ul')
    this.add({ kind: 'list', marker, start, node })
  }

  /** @param {OpenBlock} block */
  add(block) {
    this.closeLeaf()
    this.parent.append(block.node)
    this.open.push(block)
  }

  /** Adds the rest of a line to the open leaf, or starts another block. @param {string} rest */
  block(rest) {
    if (!rest.trim()) {
      this.closeLeaf()
      return
    }
    if (this.open.at(-1)?.kind === 'list') this.open.pop()
    const fence = FENCE.exec(rest)
    const heading = fence ? null : HEADING.exec(rest)
    if (fence) this.addLeaf(startCode(fence))
    else if (heading) this.heading(heading[1].length, rest.slice(heading[0].length))
    else if (RULE.test(rest)) this.single(h('hr'))
    else if (this.leaf?.kind === 'table' && rest.includes('|')) addRow(this.leaf, rest)
    else {
      const table = this.leaf?.kind === 'text' && !this.partial ? startTable(this.leaf, rest) : null
      if (table) this.addLeaf(table)
      else this.textLine(rest.trimStart())
    }
  }

  /** @param {{ node: HTMLElement, leaf: Leaf }} block */
  addLeaf({ node, leaf }) {
    this.single(node)
    this.leaf = leaf
  }

  /** Adds a block that one line makes. @param {HTMLElement} node */
  single(node) {
    this.closeLeaf()
    this.parent.append(node)
  }

  /** @param {number} level @param {string} rest */
  heading(level, rest) {
    const title = rest
      .trim()
      .replace(/(^| )#{1,20}$/, '')
      .trimEnd()
    while ((this.levels.at(-1) ?? 0) >= level) this.levels.pop()
    this.levels.push(level)
    const tag = HEADINGS[this.levels.length - 1]
    this.single(h(tag, { class: `md-h${level}` }, ...inline(title, this.partial)))
  }

  // --- leaves ----------------------------------------------------------------------------------------------

  /** @param {string} words */
  textLine(words) {
    const { leaf } = this
    if (leaf?.kind === 'text' && leaf.source.length + words.length <= LONGEST_LINE) {
      leaf.source += `\n${words}`
      leaf.stale = true
      return
    }
    this.closeLeaf()
    const { spare } = this
    const drawn =
      spare?.settled && words.startsWith(spare.settled) ? spare : { node: h('p'), settled: '', count: 0 }
    this.spare = null
    this.leaf = { kind: 'text', drawn, source: words, stale: true }
    this.parent.append(drawn.node)
  }

  closeLeaf() {
    if (this.leaf?.kind === 'text' && this.leaf.stale) drawText(this.leaf, this.partial)
    this.leaf = null
  }
}
