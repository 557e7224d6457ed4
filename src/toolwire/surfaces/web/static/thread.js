// The thread of a conversation: entries as they are, and as they grow.
//
// Every live change is applied to the entry and to what is drawn of it; an entry that is told anew and is the same stays as it is drawn.

import { CallCard } from './call-card.js'
import { banner, clear, copyButton, h, icon, when } from './dom.js'
import { MarkdownStream } from './markdown.js'

const ENDS = {
  length: ['warn', 'The answer was cut off: the model reached its token limit.'],
  budget: ['warn', 'The turn ended: it had used up its rounds of tool calls.'],
  failed: ['bad', 'The turn failed.'],
  stopped: ['', 'Stopped.'],
}

export class Thread {
  /** `actions`: `retry()`, `review()`. */
  constructor(actions) {
    this.actions = actions
    this.views = []
    this.node = h('div', { class: 'thread' })
  }

  /** Shows these entries; those that are shown already stay. */
  set(entries, running) {
    let same = 0
    while (same < this.views.length && same < entries.length && this.views[same].is(entries[same])) same += 1
    this.cut(same)
    for (const entry of entries.slice(same)) this.add(entry)
    this.run(running)
  }

  add(entry) {
    const view = entry.kind === 'user' ? new UserView(entry) : new AnswerView(entry, this.actions)
    this.views.push(view)
    this.node.append(view.node)
    return view
  }

  cut(count) {
    for (const view of this.views.splice(count)) view.node.remove()
  }

  /** An answer can be asked for again when it is the last, and nothing runs. */
  run(running) {
    this.views.forEach((view, place) => view.last?.(place === this.views.length - 1 && !running))
  }

  /** Applies a live change; whether it made sense here. */
  apply(op) {
    const last = this.views.at(-1)
    if (op.op === 'user' || op.op === 'answer') this.add(op.entry)
    else if (op.op === 'cut') this.cut(op.entries)
    else if (!(last instanceof AnswerView)) return false
    else if (op.op === 'text' || op.op === 'thought') last.grow(op.op, op.text)
    else if (op.op === 'calls') last.calls(op.parts)
    else if (op.op === 'call') return this.views.some((view) => view.call?.(op))
    else if (op.op === 'ended') last.end(op.ended)
    return true
  }
}

class UserView {
  constructor(entry) {
    this.entry = entry
    this.node = h(
      'article',
      { class: 'message user', 'aria-label': 'You' },
      h('div', { class: 'user-text' }, entry.text),
      h('div', { class: 'message-foot' }, when(entry.at), copyButton(entry.text)),
    )
  }

  is(entry) {
    return entry.kind === 'user' && entry.text === this.entry.text && entry.at === this.entry.at
  }
}

class AnswerView {
  constructor(entry, actions) {
    this.actions = actions
    this.entry = { ...entry, parts: [], ended: null }
    this.cards = new Map()
    this.open = null // the part that grows: {type, stream, …}
    this.parts = h('div', { class: 'answer-parts' })
    this.wait = h(
      'div',
      { class: 'answer-wait muted' },
      h('span', { class: 'spinner' }),
      h('span', null, 'Waiting for the model…'),
    )
    this.foot = h('div', { class: 'message-foot' })
    this.node = h(
      'article',
      { class: 'message answer', 'aria-label': `Answer of ${entry.model}` },
      h('div', { class: 'answer-model mono' }, entry.model),
      this.parts,
      this.wait,
      this.foot,
    )
    for (const part of entry.parts) {
      if (part.type === 'call') this.calls([part])
      else this.grow(part.type, part.text)
    }
    if (entry.ended) this.end(entry.ended)
  }

  is(entry) {
    return entry.kind === 'answer' && JSON.stringify(entry) === JSON.stringify(this.entry)
  }

  grow(type, words) {
    if (this.open?.type !== type) {
      this.shut()
      this.entry.parts.push({ type, text: '' })
      this.open = type === 'text' ? this.textPart() : this.thoughtPart()
    }
    this.entry.parts.at(-1).text += words
    this.open.stream.append(words)
    this.waiting()
  }

  textPart() {
    const node = h('div', { class: 'answer-text' })
    this.parts.append(node)
    return { type: 'text', stream: new MarkdownStream(node) }
  }

  thoughtPart() {
    const node = h('div', { class: 'thought-text' })
    const said = h('span', null, 'Thinking…')
    this.parts.append(
      h('details', { class: 'thought-box' }, h('summary', null, icon('thought', 15), said), node),
    )
    return { type: 'thought', stream: new MarkdownStream(node), said }
  }

  shut() {
    this.open?.stream.end()
    if (this.open?.said) this.open.said.textContent = 'Thoughts'
    this.open = null
  }

  calls(parts) {
    this.shut()
    for (const part of parts) {
      const card = new CallCard(part, this.entry.model, this.actions.review)
      this.entry.parts.push(part)
      this.cards.set(part.id, { card, place: this.entry.parts.length - 1 })
      this.parts.append(card.node)
    }
    this.waiting()
  }

  /** A call changed; whether it is one of this answer. */
  call({ conversation, prev, seq, op, id, ...changed }) {
    const found = this.cards.get(id)
    if (!found) return false
    this.entry.parts[found.place] = { ...this.entry.parts[found.place], ...changed }
    found.card.update(this.entry.parts[found.place])
    this.waiting()
    return true
  }

  /** The sign that something is still to come, where nothing else shows it. */
  waiting() {
    const last = this.entry.parts.at(-1)
    const quiet = !last || (last.type === 'call' && last.state !== 'asked')
    this.wait.hidden = this.entry.ended !== null || !quiet
  }

  end(ended) {
    this.shut()
    this.entry.ended = ended
    this.waiting()
    const [kind, words] = ENDS[ended.why] ?? []
    if (words)
      this.parts.append(
        kind ? banner(ended.words || words, kind) : h('p', { class: 'muted' }, ended.words || words),
      )
    else if (!this.entry.parts.length)
      this.parts.append(h('p', { class: 'muted' }, 'The model answered nothing.'))
    this.retry = h(
      'button',
      { type: 'button', class: 'button quiet small', hidden: true, onclick: this.actions.retry },
      icon('retry', 15),
      'Retry',
    )
    const tokens = ended.usage?.output_tokens ?? ended.usage?.completion_tokens
    clear(
      this.foot,
      when(this.entry.at),
      tokens ? h('span', null, `${tokens.toLocaleString()} tokens`) : null,
      this.text ? copyButton(() => this.text) : null,
      this.retry,
    )
  }

  last(on) {
    if (this.retry) this.retry.hidden = !on
  }

  get text() {
    return this.entry.parts
      .filter((part) => part.type === 'text')
      .map((part) => part.text)
      .join('\n\n')
      .trim()
  }
}
