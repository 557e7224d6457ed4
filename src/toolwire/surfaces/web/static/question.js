// One call in the approval dialog: what it would touch, and what the person decides.
//
// Law: what is decided is what is shown. Edited arguments must be previewed by the tool itself before they
// can be approved, and the decision carries the digest of exactly that preview.

/** @import { Approval, DecisionRequest, JsonObject, Preview, Scope, Stage, Touched } from '../types' */

import * as api from './api.js'
import { Arguments } from './arguments.js'
import { drawDiff } from './diff.js'
import { clear, counted, h, icon, text, visible } from './dom.js'
import { Picks } from './picks.js'

const WAIT_MS = 350
/** @type {[Scope, (approval: Approval) => string][]} */
const SCOPES = [
  ['once', () => 'Only this once'],
  ['session', () => 'In this conversation'],
  ['folder', (one) => `For everything in ${visible(one.folder)}/`],
  ['tool', (one) => `For every call of ${visible(one.title || one.tool)} by ${visible(one.model)}`],
]

let count = 0

const SEND_REASON = 'Tell the model why'
/** By stage: what an approval does, with what, and what if there is nothing to pick. */
const PICKS = {
  run: ['Read', 'note', 'Tell the model that nothing can be read'],
  share: ['Share', 'result', 'Tell the model that nothing was found'],
}

/**
 * What an approval does, as its button says it: "Search", "Share 3 results", "Create note". The same words as
 * `approve_label` in tools/contract.py, which a test compares.
 *
 * @param {Preview} shown
 * @param {Stage} stage
 * @param {number} picked how many things are picked
 */
export function approveLabel(shown, stage, picked) {
  if (shown.problem) return SEND_REASON
  if (!shown.pick) return shown.action || 'Run'
  const [verb, noun, nothing] = PICKS[stage]
  if (shown.touched.every((one) => one.missing)) return nothing
  return `${verb} ${picked ? counted(picked, noun) : `${noun}s`}`
}

export class Question {
  pending = true
  ready = true
  /** How it ended, if it was not decided here. */
  outcome = ''
  /** @type {JsonObject | null} the arguments, if they were edited */
  edited = null
  /** The digest of the preview of the edited arguments. */
  digest = ''
  /** @type {Picks | null} */
  picks = null
  timer = 0
  /** @type {AbortController | undefined} */
  request = undefined

  /**
   * `several`: there are other calls in the dialog. `onchange(true)`: the content has changed, so that
   * nothing may be decided for a moment; `onchange(false)`: it is about to change.
   *
   * @param {Approval} approval
   * @param {boolean} several
   * @param {(changed: boolean) => void} onchange
   */
  constructor(approval, several, onchange) {
    this.approval = approval
    this.onchange = onchange
    count += 1
    this.id = `question-${count}`
    this.shown = approval.shown
    this.problemNote = approval.problem_note
    this.run = h('input', { type: 'checkbox', id: `${this.id}-run`, checked: true })
    this.status = h('div', { class: 'question-status', role: 'status' })
    this.preview = h('div', { class: 'question-preview' })
    this.body = h('div', { class: 'question-body' })
    const share = approval.stage === 'share'
    this.arguments = new Arguments(
      approval.arguments,
      approval.schema,
      approval.editable && !share,
      (value) => this.edit(value),
    )
    this.restore = h(
      'button',
      { type: 'button', class: 'button quiet small', hidden: true, onclick: () => this.reset() },
      icon('retry', 14),
      'Restore the model’s arguments',
    )
    this.scopes = SCOPES.filter(([scope]) => scope !== 'folder' || approval.folder).map(([scope, label]) => {
      const id = `${this.id}-${scope}`
      const props = {
        type: 'radio',
        id,
        name: `${this.id}-remember`,
        value: scope,
        checked: scope === 'once',
      }
      const input = h('input', { ...props, onchange: () => this.showScope() })
      return { scope, input, row: h('label', { class: 'remember-row', for: id }, input, label(approval)) }
    })
    this.scopeLabel = h('span', { class: 'muted' })
    this.node = this.draw(several)
    this.run.addEventListener('change', () => {
      this.node.classList.toggle('off', !this.run.checked)
      this.onchange(false)
    })
  }

  /** Whether an approval of the dialog approves this call. */
  get wanted() {
    return this.pending && this.run.checked
  }

  /** What an approval does. */
  get label() {
    return approveLabel(this.shown, this.approval.stage, this.picks?.selected.length ?? 0)
  }

  /** Whether the person has yet to pick something. */
  get empty() {
    const { picks, shown } = this
    return shown.pick && picks !== null && picks.pickable > 0 && !picks.selected.length
  }

  /** @param {boolean} several */
  draw(several) {
    const { approval } = this
    const share = approval.stage === 'share'
    const title = share ? 'Which results may be shared?' : approval.title || approval.tool
    const tool = h('code', { class: 'question-tool' }, visible(approval.tool))
    const head = h(
      'div',
      { class: 'question-head' },
      h('h3', { id: `${this.id}-title` }, visible(title), ' ', tool),
      share ? null : h('p', { class: 'muted' }, visible(approval.purpose)),
    )
    const choice = several
      ? h('label', { class: 'question-run', for: this.run.id }, this.run, 'Run this call')
      : null
    const given = h(
      'div',
      { class: 'question-arguments' },
      h('div', { class: 'row between' }, h('h4', null, 'Arguments'), this.restore),
      this.arguments.node,
    )
    const asked = share
      ? h('details', { class: 'folded' }, h('summary', null, 'What was searched for'), given)
      : given
    // A change or a problem matters more than the arguments.
    const previewFirst = approval.shown.diff || approval.shown.problem
    const parts = previewFirst ? [this.preview, asked] : [asked, this.preview]
    clear(this.body, parts, this.note(), this.remember())
    this.drawPreview(() => this.selectedAtFirst)
    return h(
      'section',
      { class: 'question', 'aria-labelledby': `${this.id}-title` },
      approval.hint ? h('p', { class: 'question-hint', role: 'note' }, icon('info'), approval.hint) : null,
      choice,
      head,
      this.status,
      this.body,
    )
  }

  /** Files that a model asked to read are selected at first; results of a search are not. */
  get selectedAtFirst() {
    return this.approval.stage === 'run'
  }

  note() {
    if (!this.approval.note) return null
    const note = h('p', null, h('strong', null, 'Privacy Note: '), visible(this.approval.note))
    return h('div', { class: 'privacy' }, icon('shield'), note)
  }

  remember() {
    const hint =
      'Toolwire then runs such calls without asking you, until you revoke the grant in the inbox. If you ' +
      'did not enter your approval code, the grant ends when the program that asks exits.'
    return h(
      'details',
      { class: 'folded remember' },
      h('summary', null, 'Remember this approval ', this.scopeLabel),
      h(
        'div',
        { class: 'stack', role: 'radiogroup', 'aria-label': 'Remember this approval' },
        this.scopes.map((one) => one.row),
        h('p', { class: 'hint' }, hint),
      ),
    )
  }

  get scope() {
    return this.scopes.find((one) => one.input.checked) ?? this.scopes[0]
  }

  showScope() {
    const { scope, row } = this.scope
    text(this.scopeLabel, scope === 'once' ? '' : `(${row.textContent})`)
  }

  /** @param {(one: Touched) => boolean} selected */
  drawPreview(selected) {
    const { shown, approval } = this
    this.picks = null
    const parts = []
    if (shown.problem) parts.push(problem(shown.problem, this.problemNote))
    if (shown.summary) parts.push(h('p', { class: 'question-summary' }, sentence(visible(shown.summary))))
    if (!shown.problem && !shown.diff && shown.touched.length) {
      const what = approval.stage === 'share' ? 'results' : 'files'
      this.picks = new Picks(shown, shown.pick ? `Select ${what} to share:` : 'Files', selected, () =>
        this.onchange(false),
      )
      parts.push(this.picks.node)
    } else if (!shown.problem && shown.pick) {
      parts.push(h('p', { class: 'muted' }, 'Nothing was found.'))
    }
    if (shown.diff) parts.push(drawDiff(shown.diff))
    clear(this.preview, parts)
  }

  // --- edited arguments ------------------------------------------------------------------------------------

  /** @param {JsonObject | null} value null while a field is invalid */
  edit(value) {
    clearTimeout(this.timer)
    this.request?.abort()
    const { changed } = this.arguments
    this.restore.hidden = !changed
    this.ready = false
    if (value === null) {
      this.say('bad', 'Some arguments are not valid yet.')
    } else if (!changed) {
      this.edited = null
      this.digest = ''
      this.show(this.approval.shown, this.approval.problem_note)
    } else {
      this.say('', 'Checking what the edited call would touch…')
      this.timer = setTimeout(() => this.load(value), WAIT_MS)
    }
    this.onchange(this.ready)
  }

  /** @param {JsonObject} value */
  async load(value) {
    this.request = new AbortController()
    const { signal } = this.request
    try {
      const path = /** @type {const} */ (`/approvals/${encodeURIComponent(this.approval.id)}/preview`)
      const { shown, digest, problem_note: note } = await api.post(path, { arguments: value }, { signal })
      this.edited = value
      this.digest = digest
      this.show(shown, note)
    } catch (error) {
      if (api.isAbort(error)) return
      this.say('bad', api.messageOf(error))
    }
    this.onchange(true)
  }

  /**
   * Shows what the call would touch now. What the person deselected stays deselected.
   *
   * @param {Preview} shown
   * @param {string} note
   */
  show(shown, note) {
    const { picks } = this
    const deselected = (picks?.touched ?? []).filter((one) => !one.missing && !picks?.isSelected(one))
    const keys = new Set(deselected.map((one) => one.key))
    this.shown = shown
    this.problemNote = note
    this.drawPreview((one) => this.selectedAtFirst && !keys.has(one.key))
    this.ready = true
    this.say(
      '',
      this.edited === null ? '' : 'You edited the arguments. This is what the edited call would touch.',
    )
  }

  reset() {
    this.arguments.reset()
    this.edit(this.approval.arguments)
    this.arguments.fields[0]?.control.focus()
  }

  /** @param {'' | 'bad'} kind @param {string} message */
  say(kind, message) {
    clear(this.status, message ? h('p', { class: `hint ${kind}` }, message) : null)
  }

  // --- deciding --------------------------------------------------------------------------------------------

  /** @param {boolean} approved @param {string} [reason] of a denial @returns {DecisionRequest} */
  decision(approved, reason = '') {
    const { approval, edited, picks } = this
    /** @type {DecisionRequest} */
    const out = { token: approval.token, approved }
    if (!approved) return reason ? { ...out, reason } : out
    if (edited !== null) Object.assign(out, { arguments: edited, seen: this.digest })
    // Edited arguments with everything selected need no picks.
    const everything = edited !== null && (picks?.all ?? true)
    if (this.shown.pick && !everything) out.picked = picks?.selected ?? []
    out.remember = this.scope.scope
    if (out.remember === 'folder') out.folder = approval.folder
    return out
  }

  decidedHere() {
    this.pending = false
    clearTimeout(this.timer)
    this.request?.abort()
  }

  /** @param {Approval | null} approval null if it no longer exists */
  decidedElsewhere(approval) {
    this.decidedHere()
    const by = approval?.decided_by ? ` (${visible(approval.decided_by)})` : ''
    const outcome =
      approval?.status === 'approved'
        ? `Approved elsewhere${by}.`
        : approval?.status === 'denied'
          ? `Denied elsewhere${by}.`
          : approval?.status === 'expired'
            ? 'Expired. It did not run.'
            : 'This call no longer waits for a decision.'
    this.outcome = `${visible(this.approval.title || this.approval.tool)}: ${outcome}`
    this.node.classList.add('over')
    this.body.inert = true
    this.run.disabled = true
    clear(this.status, h('p', { class: 'badge warn' }, outcome))
  }
}

/** @param {string} summary */
const sentence = (summary) => summary.slice(0, 1).toUpperCase() + summary.slice(1)

/** Why a call cannot work, and what approving it means. @param {string} reason @param {string} note */
function problem(reason, note) {
  const why = h('p', null, h('strong', null, 'This call cannot work: '), visible(reason))
  return h(
    'div',
    { class: 'banner warn question-problem', role: 'note' },
    icon('warning'),
    h('div', { class: 'banner-text' }, why, h('p', null, visible(note))),
  )
}
