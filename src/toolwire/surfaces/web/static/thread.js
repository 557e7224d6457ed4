// The thread of a conversation: its entries, and how they grow.
//
// Every live change is applied to the entry and to its view. An entry that is loaded again without a change
// keeps its view.

/** @import { AnswerEntry, CallPart, Ended, Entry, Operation, UserEntry } from '../types' */

import { CallCard } from './call-card.js'
import { banner, clear, copyButton, counted, h, icon, text, when } from './dom.js'
import { prose } from './invisible.js'
import { linked } from './links.js'
import { MarkdownStream } from './markdown.js'

/** @typedef {{ retry: () => unknown, review: () => unknown }} Actions */
/** @typedef {{ type: 'text' | 'thought', stream: MarkdownStream, title?: HTMLElement }} OpenPart */

/** Why an answer ended, where that needs to be said: kind of banner ('' for plain text), message. */
const ENDS = /** @type {const} */ ({
  length: ['warn', 'Cut at the token limit: the answer is not complete.'],
  budget: ['warn', 'The answer ended early, at the limit for tool calls, time or the size of results.'],
  failed: ['bad', 'The answer failed.'],
  stopped: ['', 'Stopped.'],
})

/** @param {string} why */
const endOf = (why) => (Object.hasOwn(ENDS, why) ? ENDS[/** @type {keyof typeof ENDS} */ (why)] : null)

export class Thread {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions
    /** @type {(UserView | AnswerView)[]} */
    this.views = []
    this.node = h('div', { class: 'thread' })
  }

  /**
   * Shows these entries. Entries that are already shown keep their views.
   *
   * @param {Entry[]} entries
   * @param {boolean} running
   */
  set(entries, running) {
    let same = 0
    while (same < this.views.length && same < entries.length && this.views[same].is(entries[same])) same += 1
    this.cut(same)
    for (const entry of entries.slice(same)) this.add(entry)
    this.run(running)
  }

  /** @param {Entry} entry */
  add(entry) {
    const view = entry.kind === 'user' ? new UserView(entry) : new AnswerView(entry, this.actions)
    this.views.push(view)
    this.node.append(view.node)
  }

  /** Removes all entries after the first `count`. @param {number} count */
  cut(count) {
    for (const view of this.views.splice(count)) view.node.remove()
  }

  /** Offers a retry of the last answer while nothing runs. @param {boolean} running */
  run(running) {
    const last = this.views.at(-1)
    for (const view of this.views) {
      if (view instanceof AnswerView) view.offerRetry(view === last && !running)
    }
  }

  /** The text of the last answer. */
  get lastText() {
    const last = this.views.at(-1)
    return last instanceof AnswerView ? last.text : ''
  }

  /** What a screen reader says when the last answer has ended. */
  get announcement() {
    const answer = this.lastText
    const brief = answer.length > 400 ? `${answer.slice(0, 400)}…` : answer
    return brief ? `Answer: ${brief}` : 'The answer has ended.'
  }

  /** Applies a live change. Returns false if the change does not fit what is shown. @param {Operation} op */
  apply(op) {
    if (op.op === 'user' || op.op === 'answer') {
      this.add(op.entry)
      return true
    }
    if (op.op === 'cut') {
      this.cut(op.entries)
      return true
    }
    const last = this.views.at(-1)
    if (!(last instanceof AnswerView)) return false
    if (op.op === 'call') return this.views.some((view) => view instanceof AnswerView && view.updateCall(op))
    if (op.op === 'text' || op.op === 'thought') last.grow(op.op, op.text)
    else if (op.op === 'calls') last.addCalls(op.parts)
    else if (op.op === 'ended') last.end(op.ended)
    return true
  }
}

class UserView {
  /** @param {UserEntry} entry */
  constructor(entry) {
    this.entry = entry
    this.node = h(
      'article',
      { class: 'message user', 'aria-label': 'You' },
      h('div', { class: 'user-text' }, linked(prose(entry.text))),
      h('div', { class: 'message-foot' }, when(entry.at), copyButton(entry.text)),
    )
  }

  /** @param {Entry} entry */
  is(entry) {
    return entry.kind === 'user' && entry.text === this.entry.text && entry.at === this.entry.at
  }
}

/** @param {AnswerEntry} entry */
const scriptedLabel = (entry) =>
  entry.scripted ? [' ', h('span', { class: 'badge' }, entry.scripted)] : null

class AnswerView {
  /** @param {AnswerEntry} entry @param {Actions} actions */
  constructor(entry, actions) {
    this.actions = actions
    /** @type {AnswerEntry} */
    this.entry = { ...entry, parts: [], ended: null }
    /**
     * @type {Map<string, { card: CallCard, index: number }>} by id; `index` counts in the parts
     */
    this.cards = new Map()
    /**
     * @type {OpenPart | null} the part that grows
     */
    this.open = null
    this.parts = h('div', { class: 'answer-parts' })
    this.wait = h(
      'div',
      { class: 'answer-wait muted' },
      h('span', { class: 'spinner' }),
      h('span', null, 'Waiting for the model…'),
    )
    this.foot = h('div', { class: 'message-foot' })
    this.retry = h(
      'button',
      { type: 'button', class: 'button quiet small', hidden: true, onclick: actions.retry },
      icon('retry', 15),
      'Retry',
    )
    this.node = h(
      'article',
      { class: 'message answer', 'aria-label': `Answer from ${entry.model}` },
      h('div', { class: 'answer-model mono' }, entry.model, scriptedLabel(entry)),
      this.parts,
      this.wait,
      this.foot,
    )
    for (const part of entry.parts) {
      if (part.type === 'call') this.addCalls([part])
      else this.grow(part.type, part.text)
    }
    if (entry.ended) this.end(entry.ended)
  }

  /** @param {Entry} entry */
  is(entry) {
    return entry.kind === 'answer' && JSON.stringify(entry) === JSON.stringify(this.entry)
  }

  /**
   * Adds text to the last part, or starts a new part.
   *
   * @param {'text' | 'thought'} type
   * @param {string} added
   */
  grow(type, added) {
    if (this.open?.type !== type) {
      this.closePart()
      this.entry.parts.push({ type, text: '' })
      this.open = type === 'text' ? this.openText() : this.openThought()
    }
    const part = this.entry.parts.at(-1)
    if (part && part.type !== 'call') part.text += added
    this.open.stream.append(added)
    this.updateWait()
  }

  openText() {
    const node = h('div', { class: 'answer-text' })
    this.parts.append(node)
    return { type: /** @type {const} */ ('text'), stream: new MarkdownStream(node) }
  }

  openThought() {
    const node = h('div', { class: 'thought-text' })
    const title = h('span', null, 'Thinking…')
    const summary = h('summary', null, icon('thought', 15), title)
    this.parts.append(h('details', { class: 'thought-box' }, summary, node))
    return { type: /** @type {const} */ ('thought'), stream: new MarkdownStream(node), title }
  }

  closePart() {
    if (!this.open) return
    this.open.stream.end()
    if (this.open.title) text(this.open.title, 'Thoughts')
    this.open = null
  }

  /** @param {CallPart[]} parts */
  addCalls(parts) {
    this.closePart()
    for (const part of parts) {
      const card = new CallCard(part, this.entry.model, this.actions.review)
      this.cards.set(part.id, { card, index: this.entry.parts.length })
      this.entry.parts.push(part)
      this.parts.append(card.node)
    }
    this.updateWait()
  }

  /**
   * Updates a call. Returns false if it is not one of this answer.
   *
   * @param {Operation & { op: 'call' }} change
   */
  updateCall({ conversation: _conversation, prev: _prev, seq: _seq, op: _op, id, ...changed }) {
    const found = this.cards.get(id)
    if (!found) return false
    const part = { .../** @type {CallPart} */ (this.entry.parts[found.index]), ...changed }
    this.entry.parts[found.index] = part
    found.card.update(part)
    this.updateWait()
    return true
  }

  /** Shows the spinner while nothing else shows that more is to come. */
  updateWait() {
    const last = this.entry.parts.at(-1)
    const quiet = !last || (last.type === 'call' && last.state !== 'asked')
    this.wait.hidden = this.entry.ended !== null || !quiet
  }

  /** @param {Ended} ended */
  end(ended) {
    this.closePart()
    this.entry.ended = ended
    this.updateWait()
    const end = endOf(ended.why)
    if (end) {
      const [kind, message] = end
      const shown = ended.words || message
      this.parts.append(kind ? banner(shown, kind) : h('p', { class: 'muted' }, shown))
    } else if (!this.entry.parts.length) {
      this.parts.append(h('p', { class: 'muted' }, 'The model returned an empty answer.'))
    }
    const tokens = ended.usage?.output_tokens ?? ended.usage?.completion_tokens
    clear(
      this.foot,
      when(this.entry.at),
      tokens ? h('span', null, counted(tokens, 'token')) : null,
      this.text ? copyButton(() => this.text) : null,
      this.retry,
    )
  }

  /** @param {boolean} on */
  offerRetry(on) {
    this.retry.hidden = !on
  }

  get text() {
    return this.entry.parts
      .map((part) => (part.type === 'text' ? part.text : ''))
      .filter(Boolean)
      .join('\n\n')
      .trim()
  }
}
