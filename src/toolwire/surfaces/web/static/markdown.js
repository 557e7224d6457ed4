// Markdown as it arrives: from text to nodes, line by line.
//
// Rules: every whole line is read once, and only ever adds to the end of what is open; the line that is still being written is shown as if it were
// whole, and taken back before more of it is read. So work is linear however the text is cut, and only the last open block is drawn anew. A line, a
// paragraph and a piece of code have a greatest size, and nesting has a greatest depth: what goes beyond it is shown, but plainly. Headings stand
// below that of the page, and none skips a level. Raw HTML is text.

import { Blocks, MOST_LINE } from './markdown-blocks.js'

const BUDGET_MS = 7

/** A whole text as a fragment. */
export function render(source) {
  const fragment = document.createDocumentFragment()
  const blocks = new Blocks(fragment)
  for (const line of source.replaceAll('\r\n', '\n').split('\n')) blocks.lines(line)
  blocks.end()
  return fragment
}

/** Text that arrives in pieces. `append` as often as wanted; `end` when there is no more. What it shows follows with the browser's frames. */
export class MarkdownStream {
  #blocks
  #waiting = []
  #rest = ''
  #frame = 0
  #ended = false
  #settled = null
  ondraw = null

  constructor(element) {
    element.classList.add('md')
    this.#blocks = new Blocks(element)
  }

  append(piece) {
    if (!piece || this.#ended) return
    this.#waiting.push(piece)
    this.#schedule()
  }

  /** No more will come. Resolves when all of it is shown. */
  end() {
    this.#ended = true
    this.#schedule()
    this.#settled ??= Promise.withResolvers?.() ?? deferred()
    return this.#settled.promise
  }

  /** Shows all that came, now. For what must not wait for a frame, such as a page that is not seen. */
  flush() {
    cancelAnimationFrame(this.#frame)
    this.#frame = 0
    this.#draw(Infinity)
  }

  #schedule() {
    if (!this.#frame)
      this.#frame = requestAnimationFrame(() => {
        this.#frame = 0
        this.#draw(BUDGET_MS)
      })
  }

  #draw(budget) {
    const until = performance.now() + budget
    this.#blocks.takeBack()
    let source = this.#rest + this.#waiting.join('')
    this.#waiting.length = 0
    let from = 0
    for (let end = source.indexOf('\n'); end >= 0; end = source.indexOf('\n', from)) {
      this.#blocks.lines(source.slice(from, source[end - 1] === '\r' ? end - 1 : end))
      from = end + 1
      if (performance.now() > until) break
    }
    while (source.length - from > MOST_LINE && performance.now() <= until && source.indexOf('\n', from) < 0) {
      this.#blocks.lines(source.slice(from, from + MOST_LINE), true)
      from += MOST_LINE
    }
    this.#rest = source.slice(from)
    const more = this.#rest.length > MOST_LINE || this.#rest.includes('\n')
    if (more) this.#schedule()
    else if (this.#ended) this.#finish()
    else this.#blocks.show(this.#rest)
    this.ondraw?.()
  }

  #finish() {
    if (this.#rest) this.#blocks.lines(this.#rest)
    this.#rest = ''
    this.#blocks.end()
    this.#settled?.resolve()
  }
}

function deferred() {
  const out = {}
  out.promise = new Promise((resolve) => {
    out.resolve = resolve
  })
  return out
}
