// The dialog for the approval code: the person enters the code once in a session, or chooses a new code.

import * as api from './api.js'
import { frame, show } from './dialog.js'
import { banner, clear, h } from './dom.js'

const CHOOSE =
  'Choose an approval code of at least 8 characters. With the code, you can approve calls from other ' +
  'programs, such as MCP clients, on these pages. In a terminal, the code lets you approve calls that come ' +
  'from another terminal or program. Once you have entered the code, approvals that you let Toolwire ' +
  'remember stay valid when Toolwire restarts. Toolwire stores no copy of the code.'

/**
 * Asks for the code. Resolves to whether the session may now approve; null if no code is set and this session
 * may not set one.
 *
 * @param {string} message why the code is needed
 * @returns {Promise<boolean | null>}
 */
export async function askForCode(message) {
  const { decides, code } = (await api.session()).approving
  if (!code && !decides) return null
  return codeDialog(message, !code)
}

/**
 * Opens the dialog. Resolves to whether the code was accepted.
 *
 * @param {string} message why the code is needed
 * @param {boolean} isNew whether the person chooses a new code instead of entering the current one
 * @param {string} [dismiss] the label of the button that closes the dialog
 * @returns {Promise<boolean>}
 */
export function codeDialog(message, isNew, dismiss = 'Decide later') {
  return new Promise((resolve) => {
    const { dialog, close, body, foot } = frame(
      isNew ? 'Choose an approval code' : 'Enter your approval code',
    )
    const trouble = h('div', { class: 'trouble', 'aria-live': 'polite' })
    const input = h('input', {
      class: 'input',
      id: 'approval-code',
      type: 'password',
      autocomplete: isNew ? 'new-password' : 'current-password',
      required: true,
      spellcheck: 'false',
    })
    const submit = h('button', { type: 'submit', class: 'button primary' }, isNew ? 'Set code' : 'Continue')
    const cancel = h('button', { type: 'button', class: 'button', onclick: () => dialog.close() }, dismiss)
    const form = h(
      'form',
      { class: 'stack', id: 'approval-code-form', onsubmit: send },
      h('p', null, message),
      isNew ? h('p', { class: 'hint' }, CHOOSE) : null,
      h('label', { class: 'label', for: 'approval-code' }, 'Approval code'),
      input,
      trouble,
    )
    submit.setAttribute('form', 'approval-code-form')
    let done = false

    /** @param {SubmitEvent} event */
    async function send(event) {
      event.preventDefault()
      submit.disabled = true
      clear(trouble)
      try {
        await (isNew ? api.put : api.post)('/session/code', { code: input.value })
        done = true
        dialog.close()
      } catch (error) {
        trouble.append(banner(api.messageOf(error), 'bad'))
        input.select()
        input.focus()
      } finally {
        submit.disabled = false
      }
    }

    body.append(form)
    foot.append(cancel, submit)
    close.addEventListener('click', () => dialog.close())
    dialog.addEventListener('close', () => resolve(done), { once: true })
    show(dialog, input)
  })
}
