// The approval dialog. Law: nothing runs that a person did not see and say yes to here.
//
// Closing is cancelling, and cancelling is no. For half a second after the dialog opens, or after what it shows has changed, no button does anything,
// so that nobody approves by a click or a key that was meant for something else.

import { frame, show } from './dialog.js'
import { banner, clear, counted, h, text, visible } from './dom.js'
import { Question } from './question.js'

const INERT_MS = 500

let current = null

/**
 * Asks the person about approvals, all in one dialog. Resolves to `{decided: number, elsewhere: [words]}` when none is left to decide here.
 * With `signal`, the dialog goes away undecided when that is aborted.
 */
export function ask(approvals, context, { signal } = {}) {
  if (current) return current.promise
  current = new Dialog(approvals, context, signal)
  current.promise.finally(() => {
    current = null
  })
  return current.promise
}

/** Whether a dialog is open. */
export const asking = () => current !== null

class Dialog {
  constructor(approvals, context, signal) {
    this.context = context
    this.decided = 0
    this.until = 0
    this.busy = false
    this.promise = new Promise((resolve) => {
      this.resolve = resolve
    })
    this.questions = approvals.map(
      (one) => new Question(one, approvals.length > 1, (armed) => this.changed(armed)),
    )
    this.draw(approvals)
    this.offs = [context.live.on('approvals', () => this.look()), context.live.on('lost', () => this.look())]
    this.clock = setInterval(() => this.tick(), 1000)
    signal?.addEventListener('abort', () => this.finish(), { once: true })
    document.addEventListener('keydown', this.key, true)
    this.dialog.addEventListener('cancel', (event) => {
      event.preventDefault()
      this.cancel()
    })
    this.dialog.addEventListener('close', () => this.closed())
    show(this.dialog, this.heading)
    this.arm()
    this.tick()
  }

  draw(approvals) {
    const built = frame('Tool Approval Request', { wide: true, closeLabel: 'Cancel and close' })
    Object.assign(this, { dialog: built.dialog, heading: built.heading, body: built.body, foot: built.foot })
    this.dialog.classList.add('approval')
    this.dialog.setAttribute('closedby', 'none')
    this.trouble = h('div', { class: 'approval-trouble stack' })
    this.time = h('span', { class: 'approval-time muted' })
    this.approve = h(
      'button',
      { type: 'button', class: 'button primary', onclick: () => this.accept() },
      'Approve and Execute',
    )
    this.deny = h('button', { type: 'button', class: 'button', onclick: () => this.cancel() }, 'Cancel')
    this.close = built.close
    this.close.addEventListener('click', () => this.cancel())
    const models = [...new Set(approvals.map((one) => one.model))]
    const share = approvals.every((one) => one.stage === 'share')
    const what =
      approvals.length === 1 ? 'the following tool' : `the following ${counted(approvals.length, 'tool')}`
    const who = models.map((model, place) => [
      place ? ', ' : '',
      h('strong', { class: 'mono' }, visible(model)),
    ])
    const lead = share
      ? ['The search is done. Choose what ', who, ' may see of it:']
      : ['The AI (', who, `) wants to use ${what}:`]
    const id = `${this.heading.id}-lead`
    this.dialog.setAttribute('aria-describedby', id)
    this.body.append(
      h('p', { id, class: 'approval-lead' }, lead),
      this.trouble,
      ...this.questions.map((one) => one.node),
    )
    this.body.tabIndex = 0
    this.body.setAttribute('role', 'group')
    this.body.setAttribute('aria-label', 'What is asked')
    this.foot.append(this.time, this.deny, this.approve)
  }

  // --- half a second ---------------------------------------------------------------------------------------------------------------------------

  /** Nothing can be decided for a moment. */
  arm() {
    this.until = performance.now() + INERT_MS
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.enable(), INERT_MS)
    this.enable()
  }

  get inert() {
    return this.busy || performance.now() < this.until
  }

  get ready() {
    return this.questions.every((one) => !one.wanted || one.ready)
  }

  enable() {
    const asked = this.questions.filter((one) => one.pending)
    const broken = asked.length > 0 && asked.every((one) => one.shown.problem)
    text(this.approve, broken ? 'Approve and Tell the Reason' : 'Approve and Execute')
    for (const button of [this.approve, this.deny, this.close])
      button.setAttribute('aria-disabled', String(this.inert || (button === this.approve && !this.ready)))
  }

  /** What a question shows is another by now (`armed`), or is about to be. */
  changed(armed) {
    if (armed) this.arm()
    else this.enable()
  }

  key = (event) => {
    if (event.key !== 'Escape' || event.isComposing) return
    event.preventDefault()
    event.stopPropagation()
    this.cancel()
  }

  // --- deciding --------------------------------------------------------------------------------------------------------------------------------

  accept() {
    if (this.inert || !this.ready) return
    this.decide((one) => one.wanted)
  }

  cancel() {
    if (this.inert) return
    this.decide(() => false)
  }

  async decide(approved) {
    this.busy = true
    this.enable()
    clear(this.trouble)
    for (const one of this.questions.filter((each) => each.pending)) {
      try {
        await this.context.api.post(
          `/approvals/${encodeURIComponent(one.approval.id)}/decision`,
          one.decision(approved(one)),
        )
        one.over(null, true)
        this.decided += 1
      } catch (error) {
        if (error.status === 401) return this.finish()
        if (error.status !== 409 && error.status !== 404) this.trouble.append(banner(error.message, 'bad'))
        else if (!(await this.fresh(one)) && one.pending) this.trouble.append(banner(error.message, 'bad'))
      }
    }
    this.busy = false
    this.settle()
    return undefined
  }

  /** Looks at what became of the questions elsewhere. */
  async look() {
    if (this.busy) return
    const before = this.questions.filter((one) => one.pending).length
    await Promise.all(this.questions.filter((one) => one.pending).map((one) => this.fresh(one)))
    if (this.busy || this.questions.filter((one) => one.pending).length === before) return
    this.context.announce('A question was decided elsewhere.')
    this.settle()
  }

  /** Whether a question is over by now. */
  async fresh(one) {
    try {
      const now = await this.context.api.get(`/approvals/${encodeURIComponent(one.approval.id)}`)
      if (now.status === 'pending' || !one.pending) return false
      one.over(now)
      return true
    } catch (error) {
      if (error.status !== 404 || !one.pending) return false
      one.over(null)
      return true
    }
  }

  settle() {
    if (this.questions.some((one) => one.pending)) this.arm()
    else this.finish()
  }

  tick() {
    const left = Math.min(
      ...this.questions
        .filter((one) => one.pending)
        .map((one) => one.approval.expires_at - Date.now() / 1000),
    )
    if (!Number.isFinite(left)) return
    text(
      this.time,
      left > 90 ? `Expires in ${Math.round(left / 60)} min` : `Expires in ${Math.max(0, Math.ceil(left))} s`,
    )
    if (left <= 0) this.look()
  }

  finish() {
    this.leaving = true
    if (this.dialog.open) this.dialog.close()
    else this.closed()
  }

  /** The dialog is gone; should it have gone by other means than ours, that was a no. */
  closed() {
    clearInterval(this.clock)
    clearTimeout(this.timer)
    for (const off of this.offs.splice(0)) off()
    document.removeEventListener('keydown', this.key, true)
    if (!this.leaving) {
      for (const one of this.questions.filter((each) => each.pending)) {
        this.context.api
          .post(`/approvals/${encodeURIComponent(one.approval.id)}/decision`, one.decision(false))
          .catch(() => {})
      }
    }
    this.resolve({ decided: this.decided, elsewhere: this.questions.map((one) => one.fate).filter(Boolean) })
  }
}
