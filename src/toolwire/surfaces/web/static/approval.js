// The approval dialog. Law: nothing runs unless a person saw it here and approved it.
//
// Closing the dialog cancels, and cancelling denies. For half a second after the dialog opens, or after its
// content changes, the buttons do nothing, so that nobody approves by a click or a key that was meant for
// something else.

/** @import { Approval, Child, Context } from '../types' */

import * as api from './api.js'
import { frame, show } from './dialog.js'
import { banner, clear, counted, h, text, visible } from './dom.js'
import { Question } from './question.js'

const INERT_MS = 500

/** @typedef {{ decided: number, elsewhere: string[] }} Result */

/** @type {Promise<Result> | null} the open dialog's result */
let current = null

/**
 * Asks the person about approvals, all in one dialog. Resolves when none of them is left to decide;
 * `elsewhere` describes those that were not decided here. Aborting `signal` closes the dialog without a
 * decision.
 *
 * @param {Approval[]} approvals
 * @param {Context} context
 * @param {{ signal?: AbortSignal }} [options]
 * @returns {Promise<Result>}
 */
export function ask(approvals, context, { signal } = {}) {
  if (current) return current
  /** @type {Promise<Result>} */
  const result = new Promise((resolve) => new Dialog(approvals, context, resolve, signal))
  current = result.finally(() => {
    current = null
  })
  return current
}

/** Whether a dialog is open. */
export const asking = () => current !== null

/** @param {Question} question */
const path = (question) => /** @type {const} */ (`/approvals/${encodeURIComponent(question.approval.id)}`)

class Dialog {
  decided = 0
  inertUntil = 0
  busy = false
  finished = false
  timer = 0

  /**
   * @param {Approval[]} approvals
   * @param {Context} context
   * @param {(result: Result) => void} onclose
   * @param {AbortSignal} [signal]
   */
  constructor(approvals, context, onclose, signal) {
    this.context = context
    this.onclose = onclose
    const { dialog, heading, body, foot, close } = frame('Tool Approval Request', {
      wide: true,
      closeLabel: 'Cancel and close',
    })
    this.dialog = dialog
    this.close = close
    this.trouble = h('div', { class: 'approval-trouble stack' })
    this.time = h('span', { class: 'approval-time muted' })
    this.approve = h(
      'button',
      { type: 'button', class: 'button primary', onclick: () => this.accept() },
      'Approve and Execute',
    )
    this.deny = h('button', { type: 'button', class: 'button', onclick: () => this.cancel() }, 'Cancel')
    this.questions = approvals.map(
      (one) =>
        new Question(one, approvals.length > 1, (changed) => (changed ? this.makeInert() : this.enable())),
    )
    dialog.classList.add('approval')
    dialog.setAttribute('closedby', 'none')
    const id = `${heading.id}-lead`
    dialog.setAttribute('aria-describedby', id)
    body.append(h('p', { id, class: 'approval-lead' }, lead(approvals)), this.trouble)
    body.append(...this.questions.map((one) => one.node))
    body.tabIndex = 0
    body.setAttribute('role', 'group')
    body.setAttribute('aria-label', 'Tool calls to approve')
    foot.append(this.time, this.deny, this.approve)
    this.offs = [
      context.live.on('approvals', () => this.check()),
      context.live.on('lost', () => this.check()),
    ]
    this.clock = setInterval(() => this.tick(), 1000)
    signal?.addEventListener('abort', () => this.finish(), { once: true })
    document.addEventListener('keydown', this.key, true)
    close.addEventListener('click', () => this.cancel())
    dialog.addEventListener('cancel', (event) => {
      event.preventDefault()
      this.cancel()
    })
    dialog.addEventListener('close', () => this.closed())
    show(dialog, heading)
    this.makeInert()
    this.tick()
  }

  get pending() {
    return this.questions.filter((one) => one.pending)
  }

  // --- half a second ---------------------------------------------------------------------------------------

  /** Nothing can be decided for a moment. */
  makeInert() {
    this.inertUntil = performance.now() + INERT_MS
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.enable(), INERT_MS)
    this.enable()
  }

  get inert() {
    return this.busy || performance.now() < this.inertUntil
  }

  get ready() {
    return this.questions.every((one) => !one.wanted || one.ready)
  }

  enable() {
    const { inert, pending } = this
    const allFail = pending.length > 0 && pending.every((one) => one.shown.problem)
    text(this.approve, allFail ? 'Approve and Tell the Model Why' : 'Approve and Execute')
    this.approve.setAttribute('aria-disabled', String(inert || !this.ready))
    this.deny.setAttribute('aria-disabled', String(inert))
    this.close.setAttribute('aria-disabled', String(inert))
  }

  /** @param {KeyboardEvent} event */
  key = (event) => {
    if (event.key !== 'Escape' || event.isComposing) return
    event.preventDefault()
    event.stopPropagation()
    this.cancel()
  }

  // --- deciding --------------------------------------------------------------------------------------------

  accept() {
    if (!this.inert && this.ready) this.decide((one) => one.wanted)
  }

  cancel() {
    if (!this.inert) this.decide(() => false)
  }

  /** @param {(question: Question) => boolean} approved */
  async decide(approved) {
    this.busy = true
    this.enable()
    clear(this.trouble)
    for (const one of this.pending) {
      try {
        await api.post(`${path(one)}/decision`, one.decision(approved(one)))
        one.decidedHere()
        this.decided += 1
      } catch (error) {
        const status = api.statusOf(error)
        if (status === 401) return this.finish()
        const known = status === 409 || status === 404 // it was decided elsewhere, or has expired
        if (!known || (!(await this.refresh(one)) && one.pending))
          this.trouble.append(banner(api.messageOf(error), 'bad'))
      }
    }
    this.busy = false
    this.settle()
  }

  /** Checks whether questions were decided elsewhere. */
  async check() {
    if (this.busy) return
    const before = this.pending.length
    await Promise.all(this.pending.map((one) => this.refresh(one)))
    if (this.busy || this.pending.length === before) return
    this.context.announce('A tool call was decided elsewhere.')
    this.settle()
  }

  /** Loads a question again, and returns whether it is no longer pending. @param {Question} question */
  async refresh(question) {
    try {
      const now = await api.get(path(question))
      if (now.status === 'pending' || !question.pending) return false
      question.decidedElsewhere(now)
      return true
    } catch (error) {
      if (api.statusOf(error) !== 404 || !question.pending) return false
      question.decidedElsewhere(null)
      return true
    }
  }

  settle() {
    if (this.pending.length) this.makeInert()
    else this.finish()
  }

  tick() {
    const left = Math.min(...this.pending.map((one) => one.approval.expires_at)) - Date.now() / 1000
    if (!Number.isFinite(left)) return
    const time = left > 90 ? `${Math.round(left / 60)} min` : `${Math.max(0, Math.ceil(left))} s`
    text(this.time, `Expires in ${time}`)
    if (left <= 0) this.check()
  }

  finish() {
    this.finished = true
    if (this.dialog.open) this.dialog.close()
    else this.closed()
  }

  /** Cleans up. If the browser closed the dialog on its own, that denies. */
  closed() {
    clearInterval(this.clock)
    clearTimeout(this.timer)
    for (const off of this.offs.splice(0)) off()
    document.removeEventListener('keydown', this.key, true)
    if (!this.finished) {
      for (const one of this.pending) api.post(`${path(one)}/decision`, one.decision(false)).catch(() => {})
    }
    const elsewhere = this.questions.map((one) => one.outcome).filter(Boolean)
    this.onclose({ decided: this.decided, elsewhere })
  }
}

/** @param {Approval[]} approvals @returns {Child} */
function lead(approvals) {
  const scripted = new Map(approvals.map((one) => [one.model, one.scripted]))
  const models = [...scripted].map(([name, label], at) => [
    at ? ', ' : '',
    h('strong', { class: 'mono' }, visible(name)),
    label ? `, ${label}` : '',
  ])
  if (approvals.every((one) => one.stage === 'share'))
    return ['The search is done. Choose which results ', models, ' may see:']
  const wish =
    approvals.length === 1
      ? 'use the following tool'
      : `make the following ${counted(approvals.length, 'call')}`
  return ['The AI (', models, `) wants to ${wish}:`]
}
