// The page of those who have no session: how one begins.

import * as api from './api.js'
import { banner, clear, h, icon } from './dom.js'

/** Shows how to sign in; calls back once somebody did. */
export function signIn(done) {
  const used = new URLSearchParams(location.search).has('link')
  const said = h('div', { class: 'trouble' })
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
    h('p', { class: 'hint' }, 'One of server.admin_keys of the configuration file.'),
  )
  if (used)
    said.append(
      banner('This link was used already, or is too old. Every link opens one browser, once.', 'warn'),
    )

  async function submit(event) {
    event.preventDefault()
    button.disabled = true
    clear(said)
    try {
      api.keep((await api.post('/session', { key: input.value }, { quiet: true })).page)
      await done()
    } catch (error) {
      said.append(banner(error.message, 'bad'))
      input.select()
      input.focus()
    } finally {
      button.disabled = false
    }
  }

  const heading = h('h1', { tabindex: '-1' }, 'Sign in to Toolwire')
  document.body.replaceChildren(
    h(
      'main',
      { class: 'signin' },
      h(
        'div',
        { class: 'panel stack loose' },
        h('img', { src: '/ui/static/favicon.svg', alt: '', width: '40', height: '40' }),
        h(
          'div',
          null,
          heading,
          h(
            'p',
            { class: 'muted' },
            'Only you may approve what a model does with your notes. So these pages open for a session of yours, and for nobody else on this machine or in the network.',
          ),
        ),
        said,
        h(
          'section',
          { class: 'stack', 'aria-labelledby': 'by-link' },
          h('h2', { id: 'by-link' }, icon('terminal'), ' From your terminal'),
          h(
            'p',
            null,
            h('code', null, 'toolwire serve'),
            ' printed a one-time address when it started. Open it in this browser:',
          ),
          h('pre', { class: 'signin-sample mono' }, `${location.origin}/ui/enter?token=…`),
          h(
            'p',
            { class: 'hint' },
            'It opens one browser, once. For a new one start ',
            h('code', null, 'toolwire serve'),
            ' again, or make one in the Settings of a browser that is signed in.',
          ),
        ),
        h(
          'section',
          { class: 'stack', 'aria-labelledby': 'by-key' },
          h('h2', { id: 'by-key' }, icon('key'), ' With a key'),
          form,
        ),
      ),
    ),
  )
  heading.focus()
}
