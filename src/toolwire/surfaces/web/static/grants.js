// Remembered grants, as the inbox and the settings list them.

import { confirmed } from './confirm.js'
import { h, visible, when } from './dom.js'

const SCOPES = {
  session: ['One conversation', 'every call in this conversation'],
  folder: ['A folder', 'every call that touches nothing outside of this folder'],
  tool: ['The whole tool', 'every call of this tool'],
}
const STAGES = { run: 'may run', share: 'may share what it finds' }

/** The grants as a list, each with a button that revokes it after asking. `revoked` is called when one is gone, `failed` with an error. */
export function grantList(grants, { api, revoked, failed }) {
  return h(
    'ul',
    { class: 'cases', 'aria-label': 'Remembered grants' },
    grants.map((grant) => grantEntry(grant, { api, revoked, failed })),
  )
}

export function grantEntry(grant, { api, revoked, failed }) {
  const [scope, words] = SCOPES[grant.scope] ?? [grant.scope, '']
  const button = h(
    'button',
    {
      type: 'button',
      class: 'button danger small',
      'aria-label': `Revoke the grant for ${grant.tool}`,
      onclick: revoke,
    },
    'Revoke',
  )
  async function revoke() {
    const content = [
      h(
        'p',
        null,
        h('code', null, visible(grant.tool)),
        ` will ask again before each call of ${visible(grant.model || 'the model')}.`,
      ),
      h('p', { class: 'muted' }, 'What was shared or changed already stays as it is.'),
    ]
    if (!(await confirmed({ title: 'Revoke this grant?', content, yes: 'Revoke', danger: true }))) return
    button.disabled = true
    try {
      await api.del(`/grants/${encodeURIComponent(grant.id)}`)
      revoked(grant)
    } catch (error) {
      button.disabled = false
      failed(error)
    }
  }
  return h(
    'li',
    { class: 'case' },
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
        fact(
          'Covers',
          grant.target
            ? [h('span', { class: 'mono' }, visible(grant.target)), words ? ` (${words})` : '']
            : words,
        ),
        fact('Model', h('span', { class: 'mono' }, visible(grant.model || 'any'))),
        fact('Vault', h('span', { class: 'mono' }, visible(grant.vault || 'none'))),
        fact('Since', when(grant.created_at)),
      ),
    ),
    h('div', { class: 'case-actions' }, button),
  )
}

/** A name and its value, in a list of facts. */
export function fact(name, ...value) {
  return h('div', null, h('dt', null, name), h('dd', null, value))
}
