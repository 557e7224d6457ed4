// One question of the approval dialog: a call, what it would touch, and what the person makes of it.
//
// Law: what is decided is what is shown. Edited arguments are shown again by the tool itself before they can be approved, and the decision carries the
// digest of exactly that.

import * as api from './api.js'
import { Arguments } from './arguments.js'
import { clear, h, icon, text, visible } from './dom.js'
import { drawDiff } from './diff.js'
import { Picks } from './picks.js'

const WAIT_MS = 350
const SCOPES = [
  ['once', () => 'Only this once'],
  ['session', () => 'In this conversation'],
  ['folder', (one) => `For everything in ${visible(one.folder)}/`],
  ['tool', (one) => `Always, for ${visible(one.title || one.tool)} by ${visible(one.model)}`],
]

let count = 0

const sentence = (words) => words.slice(0, 1).toUpperCase() + words.slice(1)

/** Why a call cannot work, and what approving it means then. */
function problem(reason, note) {
  const words = [
    h('p', null, h('strong', null, 'This call cannot work: '), visible(reason)),
    h('p', null, visible(note)),
  ]
  return h(
    'div',
    { class: 'banner warn question-problem', role: 'note' },
    icon('warning'),
    h('div', { class: 'banner-words' }, words),
  )
}

export class Question {
  /** `several`: there are others in the dialog. `onchange`: what is shown has changed, so nothing may be decided for a moment. */
  constructor(approval, several, onchange) {
    this.approval = approval
    this.onchange = onchange
    this.id = `question-${(count += 1)}`
    this.open = true
    this.shown = approval.shown
    this.problemNote = approval.problem_note
    this.fate = '' // what became of it, when that was not decided here
    this.edited = null // arguments, when they were changed
    this.seen = ''
    this.ready = true
    this.run = h('input', {
      type: 'checkbox',
      id: `${this.id}-run`,
      checked: true,
      onchange: () => this.node.classList.toggle('off', !this.run.checked),
    })
    this.said = h('div', { class: 'question-said', role: 'status' })
    this.preview = h('div', { class: 'question-preview' })
    this.body = h('div', { class: 'question-body' })
    this.draw(several)
  }

  get pending() {
    return this.open
  }

  /** Whether it would be approved, as it stands. */
  get wanted() {
    return this.open && this.run.checked
  }

  draw(several) {
    const one = this.approval
    const share = one.stage === 'share'
    const title = share ? 'Which results may be shared?' : one.title || one.tool
    const head = h(
      'div',
      { class: 'question-head' },
      h(
        'h3',
        { id: `${this.id}-title` },
        visible(title),
        ' ',
        h('code', { class: 'question-tool' }, visible(one.tool)),
      ),
      share ? null : h('p', { class: 'muted' }, visible(one.purpose ?? '')),
    )
    const choice = several
      ? h('label', { class: 'question-run', for: this.run.id }, this.run, 'Run this call')
      : null
    this.arguments = new Arguments(one.arguments, one.schema, one.editable && !share, (value) =>
      this.edit(value),
    )
    this.restore = h(
      'button',
      { type: 'button', class: 'button quiet small', hidden: true, onclick: () => this.back() },
      icon('retry', 14),
      'As the model wrote it',
    )
    const given = h(
      'div',
      { class: 'question-arguments' },
      h('div', { class: 'row between' }, h('h4', null, 'Arguments'), this.restore),
      this.arguments.node,
    )
    const asked = share
      ? h('details', { class: 'folded' }, h('summary', null, 'What was searched for'), given)
      : given
    const order = one.shown.diff || one.shown.problem ? [this.preview, asked] : [asked, this.preview] // what it changes comes first
    this.body.append(...[...order, this.note(), this.remember()].filter(Boolean))
    this.node = h(
      'section',
      { class: 'question', 'aria-labelledby': `${this.id}-title` },
      choice,
      head,
      this.said,
      this.body,
    )
    this.drawPreview((touched) => this.first(touched))
  }

  /** What is selected before the person looked: what a model asked to read; of what a search found, nothing. */
  first() {
    return this.approval.stage === 'run'
  }

  note() {
    if (!this.approval.note) return null
    return h(
      'div',
      { class: 'privacy' },
      icon('shield'),
      h('p', null, h('strong', null, 'Privacy Note: '), visible(this.approval.note)),
    )
  }

  remember() {
    const one = this.approval
    this.scopes = SCOPES.filter(([scope]) => scope !== 'folder' || one.folder).map(([scope, words]) => {
      const id = `${this.id}-${scope}`
      const input = h('input', {
        type: 'radio',
        id,
        name: `${this.id}-remember`,
        value: scope,
        checked: scope === 'once',
        onchange: () => this.drawScope(),
      })
      return { scope, input, row: h('label', { class: 'remember-row', for: id }, input, words(one)) }
    })
    this.scoped = h('span', { class: 'muted' })
    const words =
      'A remembered yes answers later questions of the same kind by itself. You can take it back in the inbox.'
    return h(
      'details',
      { class: 'folded remember' },
      h('summary', null, 'Remember this choice ', this.scoped),
      h(
        'div',
        { class: 'stack', role: 'radiogroup', 'aria-label': 'Remember this choice' },
        this.scopes.map((row) => row.row),
        h('p', { class: 'hint' }, words),
      ),
    )
  }

  get scope() {
    return this.scopes.find((row) => row.input.checked)?.scope ?? 'once'
  }

  drawScope() {
    text(
      this.scoped,
      this.scope === 'once' ? '' : `(${this.scopes.find((row) => row.input.checked).row.textContent})`,
    )
  }

  drawPreview(chosen) {
    const { shown, approval } = this
    this.picks = null
    const parts = []
    if (shown.problem) parts.push(problem(shown.problem, this.problemNote))
    if (shown.summary) parts.push(h('p', { class: 'question-summary' }, sentence(visible(shown.summary))))
    if (shown.problem) {
      // There is nothing to pick from, and nothing to show.
    } else if (shown.touched.length && !shown.diff) {
      const legend = !shown.pick
        ? 'Files'
        : approval.stage === 'share'
          ? 'Select results to share:'
          : 'Select files to share:'
      this.picks = new Picks(shown, { legend, chosen, model: approval.model })
      parts.push(this.picks.node)
    } else if (shown.pick) parts.push(h('p', { class: 'muted' }, 'Nothing was found.'))
    if (shown.diff) parts.push(drawDiff(shown.diff))
    clear(this.preview, parts)
  }

  // --- edited arguments ------------------------------------------------------------------------------------------------------------------------

  edit(value) {
    clearTimeout(this.timer)
    this.asking?.abort()
    this.restore.hidden = !this.arguments.changed
    this.ready = false
    if (value === null) {
      this.say('bad', 'The arguments do not fit their fields yet.')
    } else if (!this.arguments.changed) {
      this.edited = null
      this.seen = ''
      this.show(this.approval.shown, this.approval.problem_note)
    } else {
      this.say('', 'Looking at what the edited call would touch…')
      this.timer = setTimeout(() => this.look(value), WAIT_MS)
    }
    this.onchange(this.ready)
  }

  async look(value) {
    this.asking = new AbortController()
    try {
      const {
        shown,
        digest,
        problem_note: note,
      } = await api.post(
        `/approvals/${encodeURIComponent(this.approval.id)}/preview`,
        { arguments: value },
        { signal: this.asking.signal },
      )
      this.edited = value
      this.seen = digest
      this.show(shown, note)
    } catch (error) {
      if (error.name === 'AbortError') return
      this.say('bad', error.message)
    }
    this.onchange(true)
  }

  /** What the call as it stands would touch. What was deselected stays so. */
  show(shown, note) {
    const refused = new Set(
      (this.picks?.touched ?? [])
        .filter((one) => !one.missing && !this.picks.boxes.get(one.key)?.checked)
        .map((one) => one.key),
    )
    this.shown = shown
    this.problemNote = note
    this.drawPreview((one) => this.first(one) && !refused.has(one.key))
    this.ready = true
    this.say(
      '',
      this.edited === null ? '' : 'You edited the arguments. This is what the edited call would touch.',
    )
  }

  back() {
    this.arguments.reset()
    this.edit(this.approval.arguments)
    this.arguments.fields[0]?.control.focus()
  }

  say(kind, words) {
    clear(this.said, words ? h('p', { class: `hint ${kind}` }, words) : null)
  }

  // --- deciding --------------------------------------------------------------------------------------------------------------------------------

  decision(approved) {
    const out = { token: this.approval.token, approved }
    if (!approved) return out
    if (this.edited !== null) Object.assign(out, { arguments: this.edited, seen: this.seen })
    if (this.shown.pick && !(this.edited !== null && (this.picks?.all ?? true)))
      out.picked = this.picks?.chosen ?? []
    out.remember = this.scope
    if (out.remember === 'folder') out.folder = this.approval.folder
    return out
  }

  /** It was decided: here, elsewhere, or by time. */
  over(approval, here = false) {
    this.open = false
    clearTimeout(this.timer)
    this.asking?.abort()
    if (here) return
    const by = approval?.decided_by ? ` (${visible(approval.decided_by)})` : ''
    const words = {
      approved: `Approved elsewhere${by}.`,
      denied: `Denied elsewhere${by}.`,
      expired: 'Expired: nobody decided in time. It did not run.',
    }
    const fate = words[approval?.status] ?? 'This question is gone.'
    this.fate = `${visible(this.approval.title || this.approval.tool)}: ${fate}`
    this.node.classList.add('over')
    this.body.inert = true
    this.run.disabled = true
    clear(this.said, h('p', { class: 'badge warn' }, fate))
  }
}
