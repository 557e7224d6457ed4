// One call in the approval dialog: what it would touch, and what the person decides.
//
// Law: a decision is only about what was shown. The tool itself must preview edited arguments before the
// person can approve them, and the decision contains the digest of exactly that preview.

/** @import { Approval, DecisionRequest, JsonObject, Preview, Scope, Touched } from '../types' */

import * as api from './api.js'
import { Arguments, JsonArguments } from './arguments.js'
import { drawDiff } from './diff.js'
import { clear, h, icon, text, visible } from './dom.js'
import { callFacts, callProblem, callResult } from './facts.js'
import { Picks } from './picks.js'
import { approveLabel, decider } from './question-words.js'

const WAIT_MS = 350
/** The tool and the model of a call. @param {Approval} approval */
const callsOf = ({ title, tool, model }) => `${visible(title || tool)} by ${visible(model)}`
/** How an approval is remembered: as a grant with a scope, or as a rule. @typedef {Scope | 'rule'} Choice */
/** @type {[Choice, (approval: Approval) => string][]} */
const SCOPES = [
  ['once', () => 'Only this once'],
  ['session', (one) => `In this conversation, for calls of ${callsOf(one)}`],
  ['folder', (one) => `For calls of ${callsOf(one)} that touch only files in ${visible(one.folder)}/`],
  ['tool', (one) => `For every call of ${callsOf(one)}`],
  ['rule', () => 'Always allow exactly this call, for every model and client'],
]

let count = 0

export class Question {
  pending = true
  ready = true
  /** How the question ended, if it was not decided here; else ''. */
  outcome = ''
  /** @type {JsonObject | string | null} the arguments, if they were edited; for an MCP server, as JSON */
  edited = null
  /** The digest of the preview of the edited arguments. */
  digest = ''
  /** @type {Picks | null} */
  picks = null
  timer = 0
  /** @type {AbortController | undefined} */
  request = undefined

  /**
   * `several`: whether there are other calls in the dialog. `onchange` is called with true when the content
   * has changed, so that nothing may be decided for a moment, and with false when only the buttons must be
   * updated.
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
    const editable = approval.editable && approval.stage === 'run'
    /** @param {JsonObject | string | null} value */
    const onedit = (value) => this.edit(value)
    this.arguments = this.foreign
      ? new JsonArguments(approval.arguments_json, editable, onedit)
      : new Arguments(approval.arguments, approval.schema, editable, onedit)
    this.rule = approval.rule
    const hint =
      'A remembered approval is a grant. Toolwire does not ask you again about the calls that the grant ' +
      'covers. You can revoke the grant in the inbox. A grant for a conversation ends when you delete the ' +
      'conversation on these pages, when the terminal command exits, or when the MCP session ends. Other ' +
      'grants end when Toolwire restarts, unless you enter your approval code in Settings before you approve.'
    this.grantNote = h('p', { class: 'hint' }, hint)
    this.ruleText = h('code', { class: 'rule' }, visible(this.rule))
    this.ruleNote = h(
      'div',
      { class: 'rule-note', hidden: true, 'aria-live': 'polite' },
      h(
        'p',
        { class: 'hint' },
        'When you approve, Toolwire saves the rule below. You can remove the rule later in Settings.',
      ),
      this.ruleText,
    )
    this.restore = h(
      'button',
      { type: 'button', class: 'button quiet small', hidden: true, onclick: () => this.reset() },
      icon('retry', 14),
      'Restore the model’s arguments',
    )
    const offered = new Map([
      ['folder', approval.folder],
      ['rule', approval.rule],
    ])
    this.scopes = SCOPES.filter(([scope]) => offered.get(scope) !== '').map(([scope, label]) => {
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

  /** Whether it is a call to an MCP server. */
  get foreign() {
    return this.approval.effect === 'call'
  }

  /** What an approval does. */
  get label() {
    if (this.scope.scope === 'rule') return 'Run, and always allow this'
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
    const sharing = this.foreign ? 'May the result be shared?' : 'Which results may be shared?'
    const title = share ? sharing : approval.title || approval.tool
    const tool = h('code', { class: 'question-tool' }, visible(approval.tool))
    const head = h(
      'div',
      { class: 'question-head' },
      h('h3', { id: `${this.id}-title` }, visible(title), ' ', tool),
      share ? null : h('p', { class: 'muted' }, visible(approval.purpose)),
    )
    const choice = several
      ? h(
          'label',
          { class: 'question-run', for: this.run.id },
          this.run,
          share ? 'Share results' : 'Run this call',
        )
      : null
    const given = h(
      'div',
      { class: 'question-arguments' },
      h(
        'div',
        { class: 'row between' },
        h('h4', null, this.foreign ? 'Arguments, exactly as they are sent' : 'Arguments'),
        this.restore,
      ),
      this.arguments.node,
    )
    const asked = share
      ? h(
          'details',
          { class: 'folded' },
          h('summary', null, this.foreign ? 'The call' : 'What was searched for'),
          given,
        )
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
    if (this.approval.once) return null
    return h(
      'details',
      { class: 'folded remember' },
      h('summary', null, 'Remember this approval ', this.scopeLabel),
      h(
        'div',
        { class: 'stack', role: 'radiogroup', 'aria-label': 'Remember this approval' },
        this.scopes.map((one) => one.row),
        this.ruleNote,
        this.grantNote,
      ),
    )
  }

  get scope() {
    return this.scopes.find((one) => one.input.checked) ?? this.scopes[0]
  }

  showScope() {
    const { scope, row } = this.scope
    text(this.scopeLabel, scope === 'once' ? '' : `(${row.textContent})`)
    this.ruleNote.hidden = scope !== 'rule'
    this.grantNote.hidden = scope === 'rule'
    this.onchange(false)
  }

  /** Offers the rule for the arguments as they are now. @param {string} rule */
  showRule(rule) {
    this.rule = rule
    text(this.ruleText, visible(rule))
    const row = this.scopes.find((one) => one.scope === 'rule')
    if (!row) return
    row.row.hidden = !rule
    if (!rule && row.input.checked) {
      this.scopes[0].input.checked = true
      this.showScope()
    }
  }

  /** @param {(one: Touched) => boolean} selected */
  drawPreview(selected) {
    const { shown, approval } = this
    this.picks = null
    const parts = []
    if (shown.problem) parts.push(callProblem(shown.problem, this.problemNote))
    if (shown.summary) parts.push(h('p', { class: 'question-summary' }, sentence(visible(shown.summary))))
    parts.push(callResult(shown), callFacts(shown))
    if (!shown.problem && !shown.diff && shown.touched.length) {
      const what =
        approval.stage === 'share' ? 'results that the model may see' : 'notes that the model may read'
      this.picks = new Picks(shown, shown.pick ? `Select the ${what}:` : 'Files', selected, () =>
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

  /** @param {JsonObject | string | null} value null while a field is invalid */
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
      this.show(this.approval.shown, this.approval.problem_note, this.approval.rule)
    } else {
      this.say('', this.foreign ? 'Checking the edited call…' : 'Checking what the edited call would touch…')
      this.timer = setTimeout(() => this.load(value), WAIT_MS)
    }
    this.onchange(this.ready)
  }

  /** @param {JsonObject | string} value */
  async load(value) {
    this.request = new AbortController()
    const { signal } = this.request
    try {
      const path = /** @type {const} */ (`/approvals/${encodeURIComponent(this.approval.id)}/preview`)
      const { shown, digest, problem_note: note, rule } = await api.post(path, sent(value), { signal })
      this.edited = value
      this.digest = digest
      this.show(shown, note, rule)
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
   * @param {string} rule
   */
  show(shown, note, rule) {
    const { picks } = this
    const deselected = (picks?.touched ?? []).filter((one) => !one.missing && !picks?.isSelected(one))
    const keys = new Set(deselected.map((one) => one.key))
    this.shown = shown
    this.problemNote = note
    this.showRule(rule)
    this.drawPreview((one) => this.selectedAtFirst && !keys.has(one.key))
    this.ready = true
    const what = this.foreign
      ? 'If you approve, the call runs with your arguments.'
      : 'This is what the edited call would touch.'
    this.say('', this.edited === null ? '' : `You edited the arguments. ${what}`)
  }

  reset() {
    this.arguments.reset()
    this.edit(this.foreign ? this.approval.arguments_json : this.approval.arguments)
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
    if (edited !== null) Object.assign(out, sent(edited), { seen: this.digest })
    // Edited arguments with everything selected need no picks.
    const everything = edited !== null && (picks?.all ?? true)
    if (this.shown.pick && !everything) out.picked = picks?.selected ?? []
    const { scope } = this.scope
    if (scope === 'rule') return { ...out, rule: this.rule }
    out.remember = scope
    if (scope === 'folder') out.folder = approval.folder
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
    const by = approval?.decided_by
    const where = by === 'web' ? ['elsewhere ', decider(by)] : by ? decider(by) : 'elsewhere'
    const outcome = h(
      'p',
      { class: 'badge warn' },
      approval?.status === 'approved'
        ? ['Approved ', where, '.']
        : approval?.status === 'denied'
          ? ['Denied ', where, '.']
          : approval?.status === 'expired'
            ? `Expired. ${approval.stage === 'share' ? 'Nothing was shared.' : 'The call did not run.'}`
            : 'This call no longer waits for a decision.',
    )
    this.outcome = `${visible(this.approval.title || this.approval.tool)}: ${outcome.textContent}`
    this.node.classList.add('over')
    this.body.inert = true
    this.run.disabled = true
    clear(this.status, outcome)
  }
}

/** Edited arguments as the server takes them. @param {JsonObject | string} edited */
const sent = (edited) => (typeof edited === 'string' ? { arguments_json: edited } : { arguments: edited })

/** @param {string} summary */
const sentence = (summary) => summary.slice(0, 1).toUpperCase() + summary.slice(1)
