// The approval dialog. Law: it approves only what it has shown to the person.
//
// Only two buttons decide: the label of one says what an approval does ("Share 3 results"), the other is
// "Deny". Escape and the close button mean "Decide later": the calls wait in the inbox. For half a second
// after the dialog opens, and after its content changes, the buttons do nothing, so that nobody decides by a
// click or a key that was meant for something else.

/** @import { Approval, Context } from '../types' */

import * as api from './api.js'
import { askForCode } from './approval-code.js'
import { frame, show } from './dialog.js'
import { banner, clear, counted, h, icon, text } from './dom.js'
import { Question } from './question.js'
import { lead } from './question-words.js'

const INERT_MS = 500
const MOST_REASON = 500
const LATER = 'Decide later'

/** @typedef {{ decided: number, elsewhere: string[], later: string[] }} Result */

/** @type {Promise<Result> | null} the open dialog's result */
let current = null

/**
 * Asks the person about all these approvals in one dialog. Resolves when the dialog is closed: `elsewhere`
 * describes the approvals that were not decided here, `later` contains the ids of those that still wait.
 * Aborting `signal` closes the dialog without a decision. `conversation`: the conversation on the page.
 *
 * @param {Approval[]} approvals
 * @param {Context} context
 * @param {{ signal?: AbortSignal, conversation?: string }} [options]
 * @returns {Promise<Result>}
 */
export function ask(approvals, context, { signal, conversation } = {}) {
  if (current) return current
  /** @type {Promise<Result>} */
  const result = new Promise((resolve) => new Dialog(approvals, context, resolve, conversation, signal))
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
   * @param {string} [conversation] the one that the page shows
   * @param {AbortSignal} [signal]
   */
  constructor(approvals, context, onclose, conversation, signal) {
    this.context = context
    this.onclose = onclose
    const { dialog, heading, body, foot, close } = frame('Tool approval request', {
      wide: true,
      closeLabel: 'Close and decide later',
    })
    this.dialog = dialog
    this.close = close
    this.trouble = h('div', { class: 'approval-trouble stack' })
    this.time = h('span', { class: 'approval-time muted' })
    this.approve = h('button', { type: 'button', class: 'button primary', onclick: () => this.accept() })
    this.deny = h('button', { type: 'button', class: 'button danger', onclick: () => this.refuse() })
    this.later = h('button', { type: 'button', class: 'button', onclick: () => this.postpone() }, LATER)
    this.reason = h('input', {
      class: 'input',
      id: `${heading.id}-reason`,
      type: 'text',
      maxlength: String(MOST_REASON),
      autocomplete: 'off',
      placeholder: 'Optional',
      'aria-describedby': `${heading.id}-reason-hint`,
    })
    this.questions = approvals.map(
      (one) =>
        new Question(one, approvals.length > 1, (changed) => (changed ? this.makeInert() : this.enable())),
    )
    dialog.classList.add('approval')
    dialog.setAttribute('closedby', 'none')
    const id = `${heading.id}-lead`
    dialog.setAttribute('aria-describedby', id)
    body.append(h('p', { id, class: 'approval-lead' }, lead(approvals, conversation)), this.trouble)
    body.append(...this.questions.map((one) => one.node), ...this.drawReason())
    body.tabIndex = 0
    body.setAttribute('role', 'group')
    body.setAttribute('aria-label', 'Tool calls to approve')
    foot.append(this.time, this.later, this.deny, this.approve)
    this.offs = [
      context.live.on('approvals', () => this.check()),
      context.live.on('lost', () => this.check()),
    ]
    this.clock = setInterval(() => this.tick(), 1000)
    signal?.addEventListener('abort', () => this.finish(), { once: true })
    document.addEventListener('keydown', this.key, true)
    close.addEventListener('click', () => this.postpone())
    dialog.addEventListener('cancel', (event) => {
      event.preventDefault()
      this.postpone()
    })
    dialog.addEventListener('close', () => this.closed())
    show(dialog, heading)
    this.makeInert()
    this.tick()
  }

  drawReason() {
    const { id } = this.reason
    const needsCode = this.questions.find((one) => one.approval.needs_code)?.approval.needs_code
    const label = h('label', { class: 'label', for: id }, 'Reason, if you deny')
    const hint = h('span', { class: 'hint', id: `${id}-hint` }, 'The model receives this reason.')
    const field = h('div', { class: 'approval-reason' }, label, this.reason, hint)
    if (!needsCode) return [field]
    return [h('p', { class: 'approval-code-note' }, icon('key', 16), h('span', null, needsCode)), field]
  }

  get pending() {
    return this.questions.filter((one) => one.pending)
  }

  // --- half a second ---------------------------------------------------------------------------------------

  /** Makes the buttons do nothing for half a second. */
  makeInert() {
    this.inertUntil = performance.now() + INERT_MS
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.enable(), INERT_MS)
    this.enable()
  }

  get inert() {
    return this.busy || performance.now() < this.inertUntil
  }

  /** Whether the person can approve: every call that would be approved is ready. */
  get ready() {
    const wanted = this.questions.filter((one) => one.wanted)
    return wanted.length > 0 && wanted.every((one) => one.ready && !one.empty)
  }

  enable() {
    const { inert, pending } = this
    text(this.approve, actionOf(pending))
    text(this.deny, pending.length > 1 ? 'Deny all' : 'Deny')
    this.approve.setAttribute('aria-disabled', String(inert || !this.ready))
    for (const button of [this.deny, this.later, this.close])
      button.setAttribute('aria-disabled', String(inert))
  }

  /** @param {KeyboardEvent} event */
  key = (event) => {
    if (event.key !== 'Escape' || event.isComposing) return
    if (document.querySelector('dialog[open]:last-of-type') !== this.dialog) return // a dialog on top of it
    event.preventDefault()
    event.stopPropagation()
    this.postpone()
  }

  // --- deciding --------------------------------------------------------------------------------------------

  async accept() {
    if (this.inert || !this.ready || !(await this.hasCode())) return
    if (this.ready && this.dialog.open) this.decide((one) => one.wanted)
  }

  refuse() {
    if (!this.inert) this.decide(() => false)
  }

  postpone() {
    if (!this.inert) this.finish()
  }

  /** Asks for the approval code, if a call needs it. Resolves to whether the person may now approve. */
  async hasCode() {
    const message = this.questions.find((one) => one.wanted && one.approval.needs_code)?.approval.needs_code
    if (!message) return true
    this.busy = true
    this.enable()
    clear(this.trouble)
    let entered = false
    try {
      const answer = await askForCode(message)
      if (answer === null) this.trouble.append(banner(message, 'bad'))
      entered = answer === true
    } catch (error) {
      this.trouble.append(banner(api.messageOf(error), 'bad'))
    }
    if (entered) for (const one of this.questions) one.approval.needs_code = ''
    this.busy = false
    this.enable()
    return entered
  }

  /** @param {(question: Question) => boolean} approved */
  async decide(approved) {
    this.busy = true
    this.enable()
    clear(this.trouble)
    for (const one of this.pending) {
      try {
        await api.post(`${path(one)}/decision`, one.decision(approved(one), this.reason.value.trim()))
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

  /** Cleans up. Closing the dialog decides nothing, even if the browser closed it. */
  closed() {
    clearInterval(this.clock)
    clearTimeout(this.timer)
    for (const off of this.offs.splice(0)) off()
    document.removeEventListener('keydown', this.key, true)
    const elsewhere = this.questions.map((one) => one.outcome).filter(Boolean)
    const later = this.pending.map((one) => one.approval.id)
    this.onclose({ decided: this.decided, elsewhere, later })
  }
}

/** What the approving button does with these calls. @param {Question[]} pending */
function actionOf(pending) {
  const wanted = pending.filter((one) => one.wanted)
  if (pending.length <= 1) return pending[0]?.label ?? ''
  const rest = pending.length - wanted.length
  const run = wanted.length === 1 ? wanted[0].label : `Run ${counted(wanted.length, 'call')}`
  return rest && wanted.length ? `${run}, deny ${rest}` : run
}
