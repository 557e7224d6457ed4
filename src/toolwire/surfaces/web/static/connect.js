// The Connect page: settings to paste into a client, with this server's address and the chosen model, and a
// test that makes a whole tool call.

/** @import { Client, ClientStep, ClosePage, Connect, ConnectTest, Context, TestStep } from '../types' */

import * as api from './api.js'
import { banner, clear, codeBlock, copyButton, h, icon, ms, tabList, text } from './dom.js'
import { ABOUT } from './model-picker.js'

export const title = 'Connect'

const NEEDS_KEY =
  'This server requires an API key. Replace YOUR_KEY with a key from server.keys, or create one with ' +
  'toolwire keys add.'

const APIS = new Map([
  ['chat', 'chat completions'],
  ['responses', 'Responses'],
  ['messages', 'Messages'],
])
const STORED = 'toolwire-connect-model'

/** @param {HTMLElement} main @param {Context} _context @returns {Promise<ClosePage>} */
export async function open(main, _context) {
  const lead = 'Connect a client to this server. The client’s tool calls then work with any model.'
  const head = h(
    'div',
    { class: 'page-head' },
    h('div', null, h('h1', null, 'Connect a client'), h('p', null, lead)),
  )
  const trouble = h('div', { class: 'trouble' })
  const body = h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading')
  main.append(h('div', { class: 'page connect' }, head, trouble, body))
  try {
    let connect = await load(remembered())
    if (!connect.models.some(({ id }) => id === connect.model)) connect = await load('')
    body.replaceWith(new Page(connect, trouble).node)
  } catch (error) {
    clear(body)
    clear(trouble, banner(api.messageOf(error), 'bad', true))
  }
  return () => {}
}

/** @param {string} model */
const load = (model) => api.get(api.query('/connect', { model }))

class Page {
  /** @type {Map<string, ConnectTest>} by client and model */
  tests = new Map()

  /** @param {Connect} connect @param {HTMLElement} trouble */
  constructor(connect, trouble) {
    this.connect = connect
    this.trouble = trouble
    this.client = this.clientOf(new URLSearchParams(location.search).get('client'))
    this.panel = h('section', { class: 'panel stack loose connect-panel', role: 'tabpanel' })
    if (connect.needs_key) clear(trouble, banner(NEEDS_KEY, ''))
    const tabs = tabList(
      connect.clients.map(({ id, name }) => ({ id, label: name, domId: `connect-${id}` })),
      this.client.id,
      (id) => this.pick(id),
      'Clients',
    )
    tabs.classList.add('client-tabs')
    tabs.addEventListener('keydown', (event) => {
      // On a wide screen the tabs are a column.
      const key = new Map([
        ['ArrowDown', 'ArrowRight'],
        ['ArrowUp', 'ArrowLeft'],
      ]).get(event.key)
      if (!key) return
      event.preventDefault()
      tabs.dispatchEvent(new KeyboardEvent('keydown', { key }))
    })
    const address = h('span', { class: 'label' }, 'Address')
    const model = h('label', { class: 'label', for: 'connect-model' }, 'Model')
    const basics = h(
      'div',
      { class: 'panel connect-basics' },
      h('div', { class: 'field' }, address, copied(connect.base_url, 'Copy the address')),
      h(
        'div',
        { class: 'field' },
        model,
        modelPicker(connect, (id) => this.changeModel(id)),
      ),
    )
    this.node = h(
      'div',
      { class: 'stack loose' },
      basics,
      h('div', { class: 'client-columns' }, tabs, this.panel),
    )
    this.draw()
  }

  /** @param {string | null} id */
  clientOf(id) {
    return this.connect.clients.find((one) => one.id === id) ?? this.connect.clients[0]
  }

  /** @param {string} id */
  pick(id) {
    this.client = this.clientOf(id)
    const address = new URL(location.href)
    address.searchParams.set('client', id)
    history.replaceState(history.state, '', address)
    this.draw()
  }

  /** @param {string} model */
  async changeModel(model) {
    remember(model)
    this.panel.inert = true // until the new model is loaded, the panel still shows the previous model
    try {
      this.connect = await load(model)
      this.client = this.clientOf(this.client.id)
      this.draw()
    } catch (error) {
      clear(this.trouble, banner(api.messageOf(error), 'bad', true))
    }
    this.panel.inert = false
  }

  draw() {
    const { client } = this
    const badge = h('span', { class: 'badge' }, APIS.get(client.api) ?? client.api)
    this.panel.setAttribute('aria-labelledby', `connect-${client.id}`)
    clear(
      this.panel,
      h(
        'div',
        null,
        h('div', { class: 'row' }, h('h2', null, client.name), badge),
        h('p', { class: 'muted' }, client.summary),
      ),
      h('ol', { class: 'connect-steps' }, client.steps.map(step)),
      this.tester(client, this.connect.model),
      h('p', { class: 'hint' }, 'More in the documentation: ', h('code', null, client.docs)),
    )
  }

  /** @param {Client} client @param {string} model */
  tester(client, model) {
    const key = `${client.id}\n${model}`
    const before = this.tests.get(key)
    const result = h(
      'div',
      { 'aria-live': 'polite', 'aria-atomic': 'false' },
      before ? outcome(before) : null,
    )
    const label = h('span', null, before ? 'Test again' : 'Test the round trip')
    const button = h(
      'button',
      { type: 'button', class: 'button primary', disabled: !model, onclick: () => run() },
      icon('play', 15),
      label,
    )
    const run = async () => {
      button.disabled = true
      text(label, 'Testing…')
      const waiting = `Sending a request to ${model} as ${client.name} would.`
      clear(result, h('p', { class: 'row muted' }, h('span', { class: 'spinner' }), waiting))
      try {
        const test = await api.post(`/connect/${encodeURIComponent(client.id)}/test`, { model })
        this.tests.set(key, test)
        clear(result, outcome(test))
      } catch (error) {
        clear(result, banner(api.messageOf(error), 'bad'))
      }
      button.disabled = false
      text(label, 'Test again')
    }
    const about =
      'The test sends this server the requests that the client would send: a CORS preflight if the client ' +
      'runs in a browser, a request for the list of models, a question with a harmless tool, and the ' +
      'result of the tool. The test does not use your notes.'
    const heading = h('h3', null, 'Does it work?')
    const words = h('div', { class: 'grow tester-text' }, heading, h('p', { class: 'muted small' }, about))
    return h(
      'section',
      { class: 'tester stack', 'aria-label': `Test of ${client.name}` },
      h('div', { class: 'row between' }, words, button),
      result,
    )
  }
}

/** @param {Connect} connect @param {(id: string) => unknown} onpick */
function modelPicker(connect, onpick) {
  if (!connect.models.length)
    return h('p', { class: 'muted', id: 'connect-model' }, 'This server has no model.')
  const options = connect.models.map(({ id, tools }) =>
    h('option', { value: id, selected: id === connect.model }, `${id} · ${ABOUT.get(tools) ?? tools}`),
  )
  const picker = h('select', { class: 'select', id: 'connect-model' }, options)
  picker.addEventListener('change', () => onpick(picker.value))
  return picker
}

/** @param {ClientStep} step */
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

/** @param {string} value @param {string} label */
function copied(value, label) {
  return h('div', { class: 'copied' }, h('code', null, value), copyButton(value, 'Copy', label))
}

/** @param {ConnectTest} test */
function outcome({ ok, model, steps }) {
  const failed = steps.find((one) => one.ok === false)
  const message = ok
    ? `It works: ${model} called the tool and answered with the tool’s result.`
    : `It does not work yet: ${failed?.name ?? 'a step'} failed.`
  const checks = h('ol', { class: 'checks' }, steps.map(check))
  return h('div', { class: 'stack' }, banner(message, ok ? 'ok' : 'bad'), checks)
}

/** @param {TestStep} step */
function check({ name, ok, ms: took, detail }) {
  const [picture, kind, spoken] =
    ok === null ? ['more', 'idle', 'Not tried'] : ok ? ['check', 'ok', 'Passed'] : ['close', 'bad', 'Failed']
  return h(
    'li',
    { class: `check ${kind}` },
    icon(picture, 16),
    h('span', { class: 'visually-hidden' }, `${spoken}: `),
    h('span', { class: 'strong' }, name),
    h('span', { class: 'check-time' }, ok === null ? '' : ms(took)),
    h('p', { class: 'check-detail' }, detail),
  )
}

function remembered() {
  try {
    return localStorage.getItem(STORED) ?? ''
  } catch {
    return ''
  }
}

/** @param {string} model */
function remember(model) {
  try {
    localStorage.setItem(STORED, model)
  } catch {
    // Without storage the choice applies to this visit.
  }
}
