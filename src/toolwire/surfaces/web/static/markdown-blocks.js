// The blocks of a Markdown text, as its lines open and close them: the state that `markdown.js` feeds.

import { codeBlock, copyButton, h } from './dom.js'
import { inline, settled } from './markdown-inline.js'
import {
  cells,
  continued,
  DELIMITERS,
  FENCE,
  HEADING,
  interrupts,
  ITEM,
  kindOf,
  QUOTE,
  RULE,
  spaces,
  starts,
} from './markdown-lines.js'

export const MOST_LINE = 8_000
const MOST_DEPTH = 12
const CODE_PIECE = 120
const PIECE = 24
const MOST_ITEMS = 60
const DRY_AFTER = 700 // so much of a paragraph is drawn anew; what stands before dries
const WET = 200
const HALF_MARK = /^ *(?:`{1,2}|~{1,2})$/

/** The open blocks, innermost last, and the leaf that lines go to. */
export class Blocks {
  constructor(root) {
    this.root = root
    this.piece = null
    this.levels = [] // of the headings that the next one stands below
    this.open = [] // {kind: 'quote' | 'list' | 'item', node, …}
    this.leaf = null // {kind: 'text' | 'code' | 'table', node, …}
    this.before = null
    this.spare = null // a paragraph that was taken back: it will most likely come again, and longer
    this.showing = false
  }

  /** Where the next block goes. Outermost blocks stand in pieces, so that a long text is laid out and painted piece by piece. */
  get place() {
    if (this.open.length) return this.open.at(-1).node
    if (
      this.piece === null ||
      ((this.piece.childNodes.length >= PIECE || this.piece.lastChild?.classList.contains('goes-on')) &&
        !this.showing)
    ) {
      this.piece?.classList.add('full')
      this.piece = h('div', { class: 'md-piece' })
      this.root.append(this.piece)
    }
    return this.piece
  }

  /** A whole line; one that is too long is cut into pieces. `cut`: its end is not a line's end. */
  lines(line, cut = false) {
    for (let from = 0; from === 0 || from < line.length; from += MOST_LINE) {
      this.line(line.slice(from, from + MOST_LINE))
      if (cut || from + MOST_LINE < line.length) this.cut()
    }
  }

  cut() {
    if (this.leaf?.kind === 'text') this.closeLeaf()
    if (this.leaf?.kind === 'code') this.leaf.count = CODE_PIECE
  }

  end() {
    this.closeLeaf()
    this.open.length = 0
  }

  // --- the line that is still written ----------------------------------------------------------------------------------------------------------

  /** Shows a line that is not whole yet. */
  show(line) {
    const { leaf } = this
    if (this.untold(line)) {
      if (leaf?.kind === 'text' && leaf.stale) this.draw(leaf)
      return
    }
    this.before = {
      open: this.open.map((one) => ({ ...one })),
      leaf: leaf && { ...leaf },
      words: leaf?.kind === 'code' ? leaf.words.data : '',
      piece: this.piece,
      levels: [...this.levels],
      sizes: [
        this.root,
        ...(this.piece ? [this.piece] : []),
        ...this.open.map((one) => one.node),
        ...(leaf?.holder ? [leaf.holder] : []),
      ].map((node) => [node, node.childNodes.length]),
    }
    this.showing = true
    this.line(line)
    if (this.leaf?.kind === 'text') this.draw(this.leaf)
    this.showing = false
  }

  /** Whether nothing can be said of the line yet: it may become the mark that ends code, or that makes a table. */
  untold(line) {
    if (line.trim() === '' || HALF_MARK.test(line)) return true
    if (this.leaf?.kind === 'code') return /^ *(`+|~+)$/.test(line)
    return this.leaf?.kind === 'text' && this.leaf.source.includes('|') && /^[ |:-]+$/.test(line)
  }

  takeBack() {
    const { before } = this
    if (before === null) return
    this.before = null
    if (this.leaf?.kind === 'text' && this.leaf.paint !== before.leaf?.paint) this.spare = this.leaf.paint
    for (const [node, size] of before.sizes) while (node.childNodes.length > size) node.lastChild.remove()
    this.piece = before.piece
    this.levels = before.levels
    this.open = before.open
    this.leaf = before.leaf
    if (this.leaf?.kind === 'code') this.leaf.words.data = before.words
    if (this.leaf?.kind === 'text') this.leaf.stale = true
  }

  // --- a line ----------------------------------------------------------------------------------------------------------------------------------

  line(written) {
    let rest = spaces(written)
    let depth = 0
    for (; depth < this.open.length; depth += 1) {
      const next = continued(this.open[depth], rest)
      if (next === null) break
      rest = next
    }
    const inside = depth === this.open.length
    if (inside && this.leaf?.kind === 'code') return this.codeLine(rest)
    if (!inside && this.leaf?.kind === 'text' && rest.trim() && !starts(rest))
      return this.textLine(rest.trimStart()) // goes on lazily
    if (!inside) this.closeTo(depth, rest)
    return this.begin(this.containers(rest))
  }

  /** Closes what the line is no part of. A list stays open for its next item. */
  closeTo(depth, rest) {
    this.closeLeaf()
    const list = this.open[depth]?.kind === 'item' ? this.open[depth - 1] : null
    const marker = list && !RULE.test(rest) ? ITEM.exec(rest) : null
    this.open.length = list && !(marker && kindOf(marker[2]) === list.marker) ? depth - 1 : depth
  }

  /** Opens quotes and items that the line begins with; what is left of it. */
  containers(line) {
    let rest = line
    while (this.open.length < MOST_DEPTH * 2) {
      const quote = QUOTE.exec(rest)
      if (quote) {
        this.add({ kind: 'quote', node: h('blockquote') })
        rest = rest.slice(quote[0].length)
        continue
      }
      const item = RULE.test(rest) ? null : ITEM.exec(rest)
      if (!item || (this.leaf?.kind === 'text' && !interrupts(item, rest))) break
      rest = this.item(item, rest)
    }
    return rest
  }

  item(found, rest) {
    const [whole, indent, mark, gap] = found
    const marker = kindOf(mark)
    this.closeLeaf()
    const list = this.open.at(-1)?.kind === 'list' ? this.open.at(-1) : null
    const goesOn = list?.marker === marker
    const full =
      goesOn && this.open.length === 1 && !this.showing && list.node.childNodes.length >= MOST_ITEMS
    if (!goesOn || full) {
      if (list) this.open.pop()
      if (full) list.node.classList.add('goes-on')
      const ordered = marker === '.' || marker === ')'
      const start = full ? list.start + list.node.childNodes.length : ordered ? parseInt(mark, 10) : 1
      this.add({
        kind: 'list',
        marker,
        start,
        node: ordered ? h('ol', { start: start === 1 ? null : start }) : h('ul'),
      })
    }
    const width = indent.length + mark.length + (gap.length > 4 || gap.length === 0 ? 1 : gap.length)
    const node = h('li')
    this.add({ kind: 'item', node, indent: width, least: indent.length + 2 })
    let left = rest.slice(gap.length > 4 ? width : whole.length)
    const task = /^\[([ xX])\] +/.exec(left)
    if (task) {
      const done = task[1] !== ' '
      node.className = 'task'
      node.append(
        h('span', {
          class: done ? 'task-box done' : 'task-box',
          role: 'img',
          'aria-label': done ? 'done:' : 'to do:',
        }),
      )
      left = left.slice(task[0].length)
    }
    return left
  }

  add(container) {
    this.closeLeaf()
    this.place.append(container.node)
    this.open.push(container)
  }

  /** What is left of a line goes to the open leaf, or begins another. */
  begin(rest) {
    if (!rest.trim()) return this.closeLeaf()
    if (this.open.at(-1)?.kind === 'list') this.open.pop()
    const fence = FENCE.exec(rest)
    if (fence) return this.codeBegins(fence)
    const heading = HEADING.exec(rest)
    if (heading) return this.heading(heading, rest)
    if (RULE.test(rest)) return this.whole(h('hr'))
    if (this.leaf?.kind === 'table') {
      if (rest.includes('|')) return this.tableRow(rest)
      this.closeLeaf()
    }
    if (this.leaf?.kind === 'text' && !this.showing && this.tableBegins(rest)) return undefined
    return this.textLine(rest.trimStart())
  }

  whole(node) {
    this.closeLeaf()
    this.place.append(node)
  }

  heading(found, rest) {
    const words = rest
      .slice(found[0].length)
      .trim()
      .replace(/(^| )#{1,20}$/, '')
      .trimEnd()
    const level = found[1].length
    while (this.levels.at(-1) >= level) this.levels.pop()
    this.levels.push(level)
    this.whole(
      h(
        `h${this.levels.length < 6 ? this.levels.length + 1 : 6}`,
        { class: `md-h${level}` },
        ...inline(words, this.showing),
      ),
    )
  }

  // --- leaves ----------------------------------------------------------------------------------------------------------------------------------

  textLine(words) {
    if (
      this.leaf !== null &&
      (this.leaf.kind !== 'text' || this.leaf.source.length + words.length > MOST_LINE)
    )
      this.closeLeaf()
    if (this.leaf === null) {
      const paint =
        this.spare?.dry && words.startsWith(this.spare.dry) ? this.spare : { dry: '', node: h('p'), count: 0 }
      this.spare = null
      this.leaf = { kind: 'text', node: paint.node, paint, source: words, stale: true }
      this.place.append(paint.node)
      return
    }
    this.leaf.source += `\n${words}`
    this.leaf.stale = true
  }

  /** Draws a paragraph. While it grows, its beginning dries as soon as nothing in it is open, and stays as it is. */
  draw(leaf) {
    const { node, paint } = leaf
    const source = leaf.source.trimEnd()
    if (!source.startsWith(paint.dry)) Object.assign(paint, { dry: '', count: 0 })
    while (node.childNodes.length > paint.count) node.lastChild.remove()
    while (source.length - paint.dry.length > DRY_AFTER) {
      const end = source.lastIndexOf(' ', Math.min(paint.dry.length + MOST_LINE / 4, source.length - WET)) + 1
      const part = end > paint.dry.length ? settled(source.slice(paint.dry.length, end)) : null
      if (!part?.whole) break
      node.append(...part.nodes)
      Object.assign(paint, { dry: source.slice(0, end), count: node.childNodes.length })
    }
    node.append(...inline(source.slice(paint.dry.length), this.showing))
    leaf.stale = false
  }

  closeLeaf() {
    if (this.leaf?.kind === 'text' && this.leaf.stale) this.draw(this.leaf)
    this.leaf = null
  }

  codeBegins([, indent, mark, info]) {
    this.closeLeaf()
    const language = info.trim().split(/\s/, 1)[0]
    const block = codeBlock('', language)
    const code = block.querySelector('code')
    const raw = { lines: [] }
    block.querySelector('.copy').replaceWith(copyButton(() => raw.lines.join('\n'), 'Copy code'))
    this.place.append(block)
    const words = piece(code)
    this.leaf = { kind: 'code', node: block, holder: code, mark, raw, words, count: 0, indent: indent.length }
  }

  codeLine(rest) {
    const { leaf } = this
    const end = rest.trim()
    if (
      end.length >= leaf.mark.length &&
      end[0] === leaf.mark[0] &&
      end === leaf.mark[0].repeat(end.length)
    ) {
      this.leaf = null
      return
    }
    const line = leaf.indent ? rest.replace(/^ {0,3}/, (lead) => lead.slice(leaf.indent)) : rest
    if (leaf.count >= CODE_PIECE && line) {
      leaf.words = piece(leaf.holder)
      leaf.count = 0
    }
    leaf.words.data = leaf.count === 0 ? line : `${leaf.words.data}\n${line}`
    leaf.count += 1
    if (!this.showing) leaf.raw.lines.push(line)
  }

  tableBegins(rest) {
    const { leaf } = this
    if (!DELIMITERS.test(rest.trim())) return false
    const cut = leaf.source.lastIndexOf('\n')
    const head = cells(leaf.source.slice(cut + 1))
    const sides = cells(rest).map((one) => (/^:-+:$/.test(one) ? 'center' : /-:$/.test(one) ? 'right' : ''))
    if (head.length !== sides.length || !leaf.source.slice(cut + 1).includes('|')) return false
    const above = leaf.node
    if (cut < 0) above.remove()
    else {
      leaf.source = leaf.source.slice(0, cut)
      this.draw(leaf)
    }
    const body = h('tbody')
    const row = h(
      'tr',
      null,
      head.map((words, place) => h('th', { scope: 'col', class: sides[place] || null }, ...inline(words))),
    )
    const node = h(
      'div',
      { class: 'md-table scroll', tabindex: '0', role: 'group', 'aria-label': 'Table' },
      h('table', null, h('thead', null, row), body),
    )
    this.leaf = { kind: 'table', node, holder: body, sides }
    this.place.append(node)
    return true
  }

  tableRow(rest) {
    const { holder, sides } = this.leaf
    const found = cells(rest)
    holder.append(
      h(
        'tr',
        null,
        sides.map((side, place) => h('td', { class: side || null }, ...inline(found[place] ?? ''))),
      ),
    )
  }
}

/** A piece of code: a block of its own, so that only the last is laid out anew. */
function piece(code) {
  const words = document.createTextNode('')
  code.append(h('span', { class: 'code-piece' }, words))
  return words
}
