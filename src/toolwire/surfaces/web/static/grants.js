// Remembered grants, as the inbox and the settings list them.

/** @import { Child, Grant, OnError } from '../types' */

import * as api from './api.js'
import { confirm } from './dialog.js'
import { h, visible, when } from './dom.js'

/** By scope: its name, and what a grant with this scope covers. */
const SCOPES = new Map([
  ['session', ['One conversation', 'calls of this tool in the conversation']],
  ['folder', ['A folder', 'calls of this tool that touch only files in the folder']],
  ['tool', ['All calls of the tool', 'all calls of this tool']],
])
const STAGES = { run: 'may run', share: 'its results may be shared' }
const LASTS = {
  until_revoked: 'until you revoke it',
  until_exit: 'until the Toolwire program that asked you for the approval exits',
  never: 'not valid: this grant is not signed with your current approval code',
}

/** The grants that are not revoked. */
export async function currentGrants() {
  const { grants } = await api.get('/grants')
  return grants.filter((grant) => !grant.revoked_at)
}

/**
 * A grant with a button that revokes it after a confirmation. `revoked` is called afterwards.
 *
 * @param {Grant} grant
 * @param {{ revoked: (grant: Grant) => void, showError: OnError }} actions
 */
export function grantEntry(grant, { revoked, showError }) {
  const [scope, covers] = SCOPES.get(grant.scope) ?? [grant.scope, '']
  const of = grant.model ? ` by ${visible(grant.model)}` : ''
  const name = `the grant for ${visible(grant.tool)}${of}, ${scope}, ${STAGES[grant.stage] ?? grant.stage}`
  const button = h(
    'button',
    {
      type: 'button',
      class: 'button danger small',
      'aria-label': `Revoke ${name}`,
      onclick: revoke,
    },
    'Revoke',
  )
  async function revoke() {
    const model = visible(grant.model || 'the model')
    const tool = h('code', null, visible(grant.tool))
    const content = [
      h(
        'p',
        null,
        'Toolwire asks you again about calls of ',
        tool,
        ` by ${model}, unless another grant or a rule covers them.`,
      ),
      h('p', { class: 'muted' }, 'This does not undo what was already shared or changed.'),
    ]
    if (!(await confirm({ title: 'Revoke this grant?', content, action: 'Revoke', danger: true }))) return
    button.disabled = true
    try {
      await api.del(`/grants/${encodeURIComponent(grant.id)}`)
      revoked(grant)
    } catch (error) {
      button.disabled = false
      showError(error)
    }
  }
  const target = h('span', { class: 'mono' }, visible(grant.target))
  return h(
    'li',
    { class: 'case', 'aria-label': name },
    h(
      'div',
      { class: 'case-main' },
      h(
        'div',
        { class: 'row' },
        h('code', { class: 'strong' }, visible(grant.tool)),
        h('span', { class: 'badge' }, scope),
        h('span', { class: 'muted small' }, STAGES[grant.stage] ?? grant.stage),
      ),
      h(
        'dl',
        { class: 'facts' },
        fact('Covers', covers, ' ', grant.target ? target : ''),
        fact('Model', h('span', { class: 'mono' }, visible(grant.model || 'any'))),
        fact('Vault or server', h('span', { class: 'mono' }, visible(grant.source || 'none'))),
        fact('Granted', when(grant.created_at)),
        fact('Lasts', LASTS[grant.lasts]),
      ),
    ),
    h('div', { class: 'case-actions' }, button),
  )
}

/** A name and its value, in a list of facts. @param {string} name @param {...Child} value */
export function fact(name, ...value) {
  return h('div', null, h('dt', null, name), h('dd', null, value))
}
