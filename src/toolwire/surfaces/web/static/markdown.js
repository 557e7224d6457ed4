// Markdown as it arrives: from text to nodes, line by line.
//
// Every whole line is read once, and only adds to the end of what is open. The line that is still being
// written is shown as if it were whole, and removed again before more of it is read. Work is therefore linear
// however the text is cut, and only the last open block is drawn again. Lines, paragraphs, pieces of code and
// nesting have a limit; what exceeds it is shown as plain text. Headings rank below the page's own, and none
// skips a level. Raw HTML is text.

import { prose } from './invisible.js'
import { Blocks } from './markdown-blocks.js'
import { LONGEST_LINE } from './markdown-leaves.js'
import { cutPoint } from './markdown-lines.js'

const BUDGET_MS = 7

/** A whole text as a fragment. @param {string} source */
export function render(source) {
  const fragment = document.createDocumentFragment()
  const blocks = new Blocks(fragment)
  for (const line of source.replaceAll('\r\n', '\n').split('\n')) blocks.addLine(line)
  blocks.end()
  return fragment
}

/** Text that arrives in pieces. It is drawn with the browser's frames, a few milliseconds at a time. */
export class MarkdownStream {
  #blocks
  /** @type {string[]} */
  #waiting = []
  #rest = ''
  #frame = 0
  #ended = false

  /** @param {HTMLElement} element */
  constructor(element) {
    element.classList.add('md')
    this.#blocks = new Blocks(element)
  }

  /** @param {string} piece */
  append(piece) {
    if (!piece || this.#ended) return
    this.#waiting.push(prose(piece))
    this.#schedule()
  }

  end() {
    this.#ended = true
    this.#schedule()
  }

  #schedule() {
    if (this.#frame) return
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0
      this.#draw(performance.now() + BUDGET_MS)
    })
  }

  /** @param {number} until when to stop and leave the rest to the next frame */
  #draw(until) {
    this.#blocks.removePartial()
    const source = this.#rest + this.#waiting.join('')
    this.#waiting.length = 0
    let from = 0
    for (let end = source.indexOf('\n'); end >= 0; end = source.indexOf('\n', from)) {
      this.#blocks.addLine(source.slice(from, source[end - 1] === '\r' ? end - 1 : end))
      from = end + 1
      if (performance.now() > until) break
    }
    while (
      source.length - from > LONGEST_LINE &&
      performance.now() <= until &&
      !source.includes('\n', from)
    ) {
      const end = cutPoint(source, from, LONGEST_LINE)
      this.#blocks.addLine(source.slice(from, end), true)
      from = end
    }
    this.#rest = source.slice(from)
    const more = this.#rest.length > LONGEST_LINE || this.#rest.includes('\n')
    if (more) this.#schedule()
    else if (this.#ended) this.#finish()
    else this.#blocks.showPartial(this.#rest)
  }

  #finish() {
    if (this.#rest) this.#blocks.addLine(this.#rest)
    this.#rest = ''
    this.#blocks.end()
  }
}
