// The settings section with the MCP servers: state, tools, rules, and definitions that are withheld.
//
// Law: a server can be added only in the settings file, because its command runs on this machine. This page
// can start a configured server, remove a rule that was saved on these pages, and show withheld definitions.

/** @import { Definition, McpServer } from '../types' */
/** @import { Section, SettingsPage } from './settings.js' */

import * as api from './api.js'
import { review } from './definitions.js'
import { confirm } from './dialog.js'
import { banner, clear, counted, h, visible } from './dom.js'
import { fact } from './grants.js'
import { section } from './settings-browser.js'

/** By state: kind of badge, text. @type {Record<McpServer['state'], [string, string]>} */
const STATES = {
  idle: ['', 'not started'],
  starting: ['', 'starting'],
  ready: ['ok', 'ready'],
  failed: ['bad', 'not available'],
}
const ABOUT =
  'Models in the chat get the tools of these servers, in addition to the tools for your notes. Each call ' +
  'needs your approval, unless a rule or a remembered approval decides it. You set servers and their rules ' +
  'in your toolwire.toml. You can also save a rule when you approve a call.'

const PACKAGES =
  'These servers need the optional packages “mcp”. Install the packages with this command, then start ' +
  'Toolwire again: '

/** @param {SettingsPage} page @returns {Section} */
export function serversSection(page) {
  const notes = h('div', { class: 'stack' })
  const list = h('ul', { class: 'cases', 'aria-label': 'MCP servers and their state' })
  const node = section('MCP servers', ABOUT, notes, list)
  node.hidden = true
  let stopped = false
  /** What is shown, as JSON. */
  let drawn = ''

  async function refresh() {
    try {
      const [found, { definitions }] = await Promise.all([api.get('/servers'), api.get('/definitions')])
      const now = JSON.stringify([found, definitions])
      if (stopped || now === drawn) return
      drawn = now
      draw(found, definitions)
    } catch (error) {
      page.showError(error)
    }
  }

  /** @param {import('../types').McpServers} found @param {Definition[]} definitions */
  function draw({ servers, lacks, restart }, definitions) {
    node.hidden = !servers.length
    clear(
      notes,
      lacks ? banner([PACKAGES, h('code', null, lacks)], 'warn') : null,
      restart ? h('p', { class: 'hint' }, restart) : null,
    )
    notes.hidden = !notes.childElementCount
    const open = new Set([...list.querySelectorAll('details[open]')].map((one) => one.id))
    const focused = document.activeElement?.id
    clear(
      list,
      servers.map((one) =>
        row(
          one,
          definitions.filter(({ server }) => server === one.name),
        ),
      ),
    )
    for (const one of list.querySelectorAll('details')) one.open = open.has(one.id)
    if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus()
  }

  /** @param {McpServer} server @param {Definition[]} definitions */
  function row(server, definitions) {
    const name = visible(server.name)
    const [kind, label] = STATES[server.state]
    const pressed = server.state === 'ready' ? 'Check' : 'Start and check'
    const check = h(
      'button',
      {
        type: 'button',
        class: 'button small',
        id: `server-${server.name}-check`,
        'aria-label': `${pressed} ${name}`,
      },
      pressed,
    )
    check.addEventListener('click', () => start(check, server))
    const tools = server.tools.length ? counted(server.tools.length, 'tool') : ''
    return h(
      'li',
      { class: 'case' },
      h(
        'div',
        { class: 'case-main' },
        h(
          'div',
          { class: 'row' },
          h('code', { class: 'strong' }, name),
          h('span', { class: `badge ${kind}` }, label),
          definitions.length
            ? h('span', { class: 'badge warn' }, `${counted(definitions.length, 'tool')} hidden from models`)
            : null,
          h('span', { class: 'muted small' }, tools),
        ),
        h('p', { class: 'small mono server-address' }, visible(server.address)),
        server.error ? h('p', { class: 'small setting-warning' }, visible(server.error)) : null,
        server.warnings.map((line) => h('p', { class: 'small setting-warning' }, visible(line))),
        Object.entries(server.unusable).map(([tool, why]) =>
          h('p', { class: 'small setting-warning' }, `${visible(tool)} is not offered: ${visible(why)}`),
        ),
        definitions.map((one) => withheld(one)),
        details(server),
      ),
      h('div', { class: 'case-actions row tight' }, check),
    )
  }

  /** @param {Definition} one */
  function withheld(one) {
    const tool = visible(one.tool)
    const look = async () => {
      await review(one, page.context)
      await refresh()
    }
    const props = { type: /** @type {const} */ ('button'), class: 'button small', onclick: look }
    const button = h('button', { ...props, 'aria-label': `Review ${tool}` }, 'Review')
    const why = one.why === 'new' ? 'is new' : 'has changed'
    return h(
      'p',
      { class: 'row small' },
      h('span', null, h('code', null, tool), ` ${why}. Models do not see this tool until you agree.`),
      button,
    )
  }

  /** @param {McpServer} server */
  function details(server) {
    const { deny, ask, allow } = server.rules
    const id = `server-${server.name}`
    return h(
      'details',
      { class: 'unfold', id },
      h(
        'summary',
        { id: `${id}-rules` },
        'Tools and rules',
        h('span', { class: 'visually-hidden' }, ` of ${visible(server.name)}`),
      ),
      h(
        'dl',
        { class: 'facts wide' },
        fact('Tools', server.tools.length ? codes(server.tools) : 'not known yet'),
        deny.length ? fact('Refused', codes(deny)) : null,
        ask.length ? fact('Needs approval', codes(ask)) : null,
        allow.length ? fact('Allowed', codes(allow)) : null,
        fact(
          'Other calls',
          { ask: 'need approval', allow: 'allowed', deny: 'refused' }[server.default] ?? server.default,
        ),
        fact(
          'Results',
          server.share === 'ask' ? 'shown to you before the model sees them' : 'sent to the model at once',
        ),
        fact('Set in', h('code', null, visible(server.where))),
      ),
      server.saved.length ? h('p', { class: 'label' }, 'Rules that you saved on these pages') : null,
      h(
        'ul',
        { class: 'saved-rules' },
        server.saved.map((rule) => {
          const shown = visible(rule)
          const drop = () => forget(server, rule)
          const props = { type: /** @type {const} */ ('button'), class: 'button small danger', onclick: drop }
          const button = h('button', { ...props, 'aria-label': `Remove the rule ${shown}` }, 'Remove')
          return h('li', { class: 'row nowrap' }, h('code', { class: 'rule grow' }, shown), button)
        }),
      ),
    )
  }

  /** @param {HTMLButtonElement} button @param {McpServer} server */
  async function start(button, server) {
    button.disabled = true
    const path = /** @type {const} */ (`/servers/${encodeURIComponent(server.name)}/check`)
    try {
      const found = await api.post(path, {})
      const now = found.servers.find((one) => one.name === server.name)
      page.context.announce(`${server.name}: ${now ? STATES[now.state][1] : 'removed'}.`)
      page.clearError()
    } catch (error) {
      page.showError(error)
    }
    button.disabled = false
    await refresh()
    if (document.activeElement === document.body) document.getElementById(button.id)?.focus()
  }

  /** @param {McpServer} server @param {string} rule */
  async function forget(server, rule) {
    const content = h(
      'p',
      null,
      'Without this rule, Toolwire asks you about this call again: ',
      h('code', { class: 'rule' }, visible(rule)),
    )
    if (!(await confirm({ title: 'Remove this rule?', content, action: 'Remove', danger: true }))) return
    try {
      await api.post(/** @type {const} */ (`/servers/${encodeURIComponent(server.name)}/rules/remove`), {
        rule,
      })
      page.context.announce('The rule has been removed.')
    } catch (error) {
      page.showError(error)
    }
    await refresh()
    document.getElementById(`server-${server.name}-rules`)?.focus()
  }
  const off = page.context.live.on('servers', refresh)
  return {
    node,
    show: refresh,
    close() {
      stopped = true
      off()
    },
  }
}

/** @param {string[]} list */
const codes = (list) => list.map((one, at) => [at ? ', ' : '', h('code', null, visible(one))])
