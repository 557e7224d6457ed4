// The sign-in page, for a browser without a session.

import * as api from './api.js'
import { banner, clear, h, icon } from './dom.js'

/**
 * Shows how to sign in. Calls `done` when the person has signed in with a key.
 *
 * @param {() => Promise<unknown>} done
 */
export function signIn(done) {
  const linkWasUsed = new URLSearchParams(location.search).has('link')
  const trouble = h('div', { class: 'trouble' })
  const input = h('input', {
    class: 'input',
    id: 'admin-key',
    type: 'password',
    autocomplete: 'current-password',
    required: true,
    spellcheck: 'false',
  })
  const button = h('button', { type: 'submit', class: 'button primary' }, 'Sign in')
  const form = h(
    'form',
    { class: 'stack', onsubmit: submit },
    h('label', { class: 'label', for: 'admin-key' }, 'Admin key'),
    h('div', { class: 'row nowrap' }, h('div', { class: 'grow' }, input), button),
    h(
      'p',
      { class: 'hint' },
      'A key from server.admin_keys in your settings, or a key that “toolwire keys add --admin” created.',
    ),
  )
  if (linkWasUsed)
    trouble.append(
      banner('This link was already used, or has expired. A link works only once, in one browser.', 'warn'),
    )

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault()
    button.disabled = true
    clear(trouble)
    try {
      api.keep((await api.post('/session', { key: input.value }, { quiet: true })).page)
      await done()
    } catch (error) {
      trouble.append(banner(api.messageOf(error), 'bad'))
      input.select()
      input.focus()
    } finally {
      button.disabled = false
    }
  }

  const heading = h('h1', { tabindex: '-1' }, 'Sign in to Toolwire')
  const lead =
    'Only you may approve what a model does with your notes. These pages therefore require a sign-in, even ' +
    'on this machine.'
  const byLink = h(
    'section',
    { class: 'stack', 'aria-labelledby': 'by-link' },
    h('h2', { id: 'by-link' }, icon('terminal'), ' From your terminal'),
    h(
      'p',
      null,
      'Run this command on the machine that runs Toolwire. It opens these pages and signs you in:',
    ),
    h('pre', { class: 'signin-sample mono' }, 'toolwire open'),
    h(
      'p',
      { class: 'hint' },
      h('code', null, 'toolwire open --print'),
      ' prints a link instead. After one of these two commands, the browser can approve calls only if you ' +
        'enter your approval code, a password that you set on the Settings page.',
    ),
    h(
      'p',
      { class: 'hint' },
      'The link that ',
      h('code', null, 'toolwire serve'),
      ' prints when it starts also signs you in. A browser that opens this link can approve calls from the ' +
        'chat on these pages without the code. You can also create a link on the Settings page of a ' +
        'browser that is already signed in.',
    ),
  )
  const byKey = h(
    'section',
    { class: 'stack', 'aria-labelledby': 'by-key' },
    h('h2', { id: 'by-key' }, icon('key'), ' With a key'),
    form,
  )
  document.body.replaceChildren(
    h(
      'main',
      { class: 'signin' },
      h(
        'div',
        { class: 'panel stack loose' },
        h('img', { src: '/ui/static/favicon.svg', alt: '', width: '40', height: '40' }),
        h('div', null, heading, h('p', { class: 'muted' }, lead)),
        trouble,
        byLink,
        byKey,
      ),
    ),
  )
  heading.focus()
}
