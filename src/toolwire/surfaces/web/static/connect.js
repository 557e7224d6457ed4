// Connecting a client: the settings to paste, with this server's address and the chosen model, and a test of the whole round trip.

import { banner, clear, codeBlock, copyButton, h, icon, ms, tabList, text } from './dom.js'

export const title = 'Connect'

const APIS = { chat: 'chat completions', responses: 'Responses' }
const MODEL = 'toolwire-connect-model'

export async function open(main, context) {
  const page = h('div', { class: 'page connect' })
  const head = h(
    'div',
    { class: 'page-head' },
    h(
      'div',
      null,
      h('h1', null, 'Connect a client'),
      h('p', null, 'Point a client at this server, and its tool calls work with any model behind it.'),
    ),
  )
  const trouble = h('div', { class: 'trouble' })
  const body = h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading')
  page.append(head, trouble, body)
  main.append(page)

  const state = { told: null, client: new URLSearchParams(location.search).get('client'), tests: new Map() }
  const failed = (error) => clear(trouble, banner(error.message, 'bad', true))
  const panel = h('section', {
    class: 'panel stack loose connect-panel',
    role: 'tabpanel',
    'aria-labelledby': 'connect-client',
  })

  async function load(model) {
    state.told = await context.api.get(`/connect${model ? `?model=${encodeURIComponent(model)}` : ''}`)
    if (!state.told.clients.some(({ id }) => id === state.client)) state.client = state.told.clients[0].id
  }

  function draw() {
    const { told } = state
    clear(
      trouble,
      told.needs_key
        ? banner(
            'This server wants a key. Wherever YOUR_KEY stands, put one of the keys of server.keys; this page does not know them.',
            '',
          )
        : null,
    )
    const picker = modelPicker(told, async (model) => {
      remember(model)
      panel.inert = true // what it shows, and would test, is the model before
      try {
        await load(model)
        drawClient()
      } catch (error) {
        failed(error)
      }
      panel.inert = false
    })
    const list = tabList(
      told.clients.map(({ id, name }) => ({ id, label: name, domId: `connect-${id}` })),
      state.client,
      pick,
      'Clients',
    )
    list.classList.add('client-tabs')
    list.addEventListener('keydown', (event) => {
      // it stands upright on wide screens
      const key = { ArrowDown: 'ArrowRight', ArrowUp: 'ArrowLeft' }[event.key]
      if (!key) return
      event.preventDefault()
      list.dispatchEvent(new KeyboardEvent('keydown', { key }))
    })
    body.replaceWith(
      h(
        'div',
        { class: 'stack loose' },
        h(
          'div',
          { class: 'panel connect-basics' },
          h(
            'div',
            { class: 'field' },
            h('span', { class: 'label' }, 'Address'),
            copied(told.base_url, 'Copy the address'),
          ),
          h('div', { class: 'field' }, h('label', { class: 'label', for: 'connect-model' }, 'Model'), picker),
        ),
        h('div', { class: 'client-columns' }, list, panel),
      ),
    )
    drawClient()
  }

  function pick(id) {
    state.client = id
    const address = new URL(location.href)
    address.searchParams.set('client', id)
    history.replaceState(history.state, '', address)
    drawClient()
  }

  function drawClient() {
    const client = state.told.clients.find(({ id }) => id === state.client)
    panel.setAttribute('aria-labelledby', `connect-${client.id}`)
    clear(
      panel,
      h(
        'div',
        null,
        h(
          'div',
          { class: 'row' },
          h('h2', null, client.name),
          h('span', { class: 'badge' }, APIS[client.api] ?? client.api),
        ),
        h('p', { class: 'muted' }, client.summary),
      ),
      h('ol', { class: 'connect-steps' }, client.steps.map(step)),
      tester(client),
      h('p', { class: 'hint' }, 'The same in words: ', h('code', null, client.docs)),
    )
  }

  function tester(client) {
    const model = state.told.model
    const key = `${client.id}\n${model}`
    const result = h('div', { 'aria-live': 'polite', 'aria-atomic': 'false' })
    const words = h('span', null, 'Test the round trip')
    const button = h(
      'button',
      { type: 'button', class: 'button primary', disabled: !model, onclick: run },
      icon('play', 15),
      words,
    )
    async function run() {
      button.disabled = true
      text(words, 'Testing…')
      clear(
        result,
        h(
          'p',
          { class: 'row muted' },
          h('span', { class: 'spinner' }),
          `Asking ${model} as ${client.name} would.`,
        ),
      )
      try {
        state.tests.set(
          key,
          await context.api.post(`/connect/${encodeURIComponent(client.id)}/test`, { model }),
        )
        clear(result, outcome(state.tests.get(key)))
      } catch (error) {
        clear(result, banner(error.message, 'bad'))
      }
      button.disabled = false
      text(words, 'Test again')
    }
    if (state.tests.has(key)) {
      result.append(outcome(state.tests.get(key)))
      text(words, 'Test again')
    }
    return h(
      'section',
      { class: 'tester stack', 'aria-label': `Test of ${client.name}` },
      h(
        'div',
        { class: 'row between' },
        h(
          'div',
          { class: 'grow tester-words' },
          h('h3', null, 'Does it work?'),
          h(
            'p',
            { class: 'muted small' },
            'A real round trip to this server, in the shape this client uses: one call of a harmless tool, its result, the answer. Nothing of your vault is part of it.',
          ),
        ),
        button,
      ),
      result,
    )
  }

  try {
    await load(remembered())
    if (!state.told.models.some(({ id }) => id === state.told.model)) await load('')
    draw()
  } catch (error) {
    clear(body)
    failed(error)
  }
  return () => {}
}

function modelPicker(told, onpick) {
  if (!told.models.length) return h('p', { class: 'muted', id: 'connect-model' }, 'This server has no model.')
  const picker = h(
    'select',
    { class: 'select', id: 'connect-model', onchange: () => onpick(picker.value) },
    told.models.map(({ id, tools }) =>
      h('option', { value: id, selected: id === told.model }, `${id} · ${tools}`),
    ),
  )
  return picker
}

function step({ label, value, code, language, note }) {
  return h(
    'li',
    null,
    h('span', { class: 'label' }, label),
    value ? copied(value, `Copy: ${label}`) : null,
    code ? codeBlock(code.replace(/\n$/, ''), language) : null,
    note ? h('p', { class: 'hint' }, note) : null,
  )
}

function copied(value, label) {
  return h('div', { class: 'copied' }, h('code', null, value), copyButton(value, 'Copy', label))
}

function outcome({ ok, model, steps }) {
  const failedAt = steps.find((one) => one.ok === false)
  return h(
    'div',
    { class: 'stack' },
    banner(
      ok
        ? `It works: ${model} called the tool and answered with its result.`
        : `It does not work yet: ${failedAt?.name ?? 'a step'} failed.`,
      ok ? 'ok' : 'bad',
    ),
    h('ol', { class: 'checks' }, steps.map(check)),
  )
}

function check({ name, ok, ms: took, detail }) {
  const [picture, kind, words] =
    ok === null ? ['more', 'idle', 'Not tried'] : ok ? ['check', 'ok', 'Passed'] : ['close', 'bad', 'Failed']
  return h(
    'li',
    { class: `check ${kind}` },
    icon(picture, 16),
    h('span', { class: 'visually-hidden' }, `${words}: `),
    h('span', { class: 'strong' }, name),
    h('span', { class: 'check-time' }, ok === null ? '' : ms(took)),
    h('p', { class: 'check-detail' }, detail),
  )
}

function remembered() {
  try {
    return localStorage.getItem(MODEL) ?? ''
  } catch {
    return ''
  }
}

function remember(model) {
  try {
    localStorage.setItem(MODEL, model)
  } catch {
    // a browser that keeps nothing: then it is asked again
  }
}
