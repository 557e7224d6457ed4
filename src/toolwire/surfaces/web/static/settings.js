// Settings: the switch for tools in the chat, the models that may use tools, MCP servers, remembered grants,
// and the contents of the settings file.
//
// Law: this page changes only the switch, the list of models that may use tools, grants, rules that were
// saved on these pages, models that were added here, and the vault's folder unless it is set elsewhere. Only
// the settings file decides which notes of the vault may be seen.

/** @import { ClosePage, Context, Grant, OnError, Settings, Vault } from '../types' */

import * as api from './api.js'
import { confirm } from './dialog.js'
import { banner, clear, codeBlock, h, icon } from './dom.js'
import { folderPicker } from './folder-picker.js'
import { currentGrants, fact, grantEntry } from './grants.js'
import { appearance, codeSection, section, signInSection } from './settings-browser.js'
import { healthSection } from './settings-health.js'
import { modelsSection } from './settings-models.js'
import { serversSection } from './settings-servers.js'

export const title = 'Settings'

const DESCRIPTION =
  'Lets models in the chat on these pages ask to search, read and change your notes, and to call the tools ' +
  'of your MCP servers. You approve each call in a dialog, unless a remembered approval or a rule ' +
  'that you set for an MCP server allows it. This switch does not affect clients of the API and their tools.'
const WARNING = '⚠️ Experimental feature - tools may access your vault data.'
const CONTENTS = new Map([
  ['memory', 'Recent requests and responses are kept in memory, at most until the server stops.'],
  ['disk', 'Requests and responses are kept on disk. Only your user account can read them.'],
  ['off', 'Nothing is recorded, and the Wire page is empty.'],
])
const NO_GRANTS =
  'None. Each call in the chat needs your approval, unless a rule that you set for an MCP server allows it.'
const FEW = 4

/**
 * What the sections of the page share. `save` sends a change and shows the settings that the server returns.
 *
 * @typedef {object} SettingsPage
 * @property {Context} context
 * @property {OnError} showError
 * @property {() => void} clearError
 * @property {(change: Partial<Settings>) => Promise<void>} save
 */
/**
 * @typedef {object} Section
 * @property {HTMLElement} node
 * @property {(settings: Settings, modelIds: string[]) => unknown} [show]
 * @property {() => void} [close]
 */

/** @param {HTMLElement} main @param {Context} context @returns {Promise<ClosePage>} */
export async function open(main, context) {
  const trouble = h('div', { class: 'trouble' })
  const body = h('div', { class: 'settings' })
  const lead =
    'Set up models, the vault, and what models in the chat may do. If a model or the vault’s folder is set ' +
    'in toolwire.toml, in the environment or on the command line, you cannot change it here.'
  const head = h('div', { class: 'page-head' }, h('div', null, h('h1', null, 'Settings'), h('p', null, lead)))
  main.append(h('div', { class: 'page' }, head, trouble, body))
  /** @type {string[]} */
  let modelIds = []
  let loaded = false

  /** @type {SettingsPage} */
  const page = {
    context,
    showError: (error) => clear(trouble, banner(api.messageOf(error), 'bad', true)),
    clearError: () => clear(trouble),
    async save(change) {
      show(await api.put('/settings', change))
      clear(trouble)
    },
  }
  const grants = grantsSection(page)
  /** @type {Section[]} */
  const sections = [
    healthSection(page),
    toolCallingSection(page),
    vaultSection(page),
    modelsSection(page),
    serversSection(page),
    grants,
    journalSection(),
    codeSection(page),
    signInSection(page),
    appearance(),
    configurationSection(),
  ]
  clear(body, h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading'))

  async function refresh() {
    try {
      const [settings, { models }] = await Promise.all([api.get('/settings'), api.get('/models')])
      modelIds = models.map((model) => model.id)
      show(settings)
      if (!loaded)
        clear(
          body,
          sections.map(({ node }) => node),
        )
      loaded = true
    } catch (error) {
      if (!loaded) clear(body)
      page.showError(error)
    }
  }
  /** @param {Settings} settings */
  function show(settings) {
    for (const one of sections) one.show?.(settings, modelIds)
  }
  const { live } = context
  const offs = [live.on('settings', refresh), live.on('approvals', grants.show), live.on('lost', refresh)]
  await refresh()
  return () => {
    for (const off of offs) off()
    for (const one of sections) one.close?.()
  }
}

// --- the switch --------------------------------------------------------------------------------------------

/** @param {SettingsPage} page @returns {Section} */
function toolCallingSection(page) {
  /** @type {Vault | null} */
  let vault = null
  const toggle = h('input', {
    type: 'checkbox',
    class: 'switch',
    role: 'switch',
    id: 'tool-calling',
    'aria-describedby': 'tool-calling-description tool-calling-warning',
    onchange: change,
  })
  const status = h('div', { 'aria-live': 'polite' })
  const node = h(
    'section',
    { class: 'panel stack loose' },
    h(
      'div',
      { class: 'row nowrap switch-row' },
      h(
        'div',
        { class: 'grow' },
        h('h2', null, h('label', { for: 'tool-calling' }, 'Tools in the chat (experimental)')),
        h('p', { class: 'muted small', id: 'tool-calling-description' }, DESCRIPTION),
      ),
      toggle,
    ),
    h('p', { class: 'setting-warning', id: 'tool-calling-warning' }, WARNING),
    status,
  )

  async function change() {
    const wanted = toggle.checked
    if (wanted && vault && !(await confirmIndexing(vault))) {
      toggle.checked = false
      return
    }
    toggle.disabled = true
    try {
      await page.save({ tool_calling: wanted })
      page.context.announce(wanted ? 'Tools in the chat are on.' : 'Tools in the chat are off.')
    } catch (error) {
      toggle.checked = !wanted
      page.showError(error)
    }
    toggle.disabled = false
    // A disabled switch loses the focus. The person may have moved on while the server answered.
    if (document.activeElement === document.body) toggle.focus()
  }

  /** @param {Settings} settings */
  function show(settings) {
    vault = settings.vault
    toggle.checked = settings.tool_calling
    clear(status, state(settings))
  }
  return { node, show }
}

/** @param {Settings} settings */
function state({ tool_calling: on, vault: { root, open, error } }) {
  if (!on)
    return h(
      'p',
      { class: 'row nowrap small muted' },
      icon('shield', 16),
      'Off: models in the chat cannot use tools.',
    )
  if (error) return banner(['The vault could not be opened: ', error], 'bad')
  if (!open) return banner('The vault is not open.', 'warn')
  const folder = h('span', { class: 'mono' }, root)
  return h(
    'p',
    { class: 'row nowrap small' },
    icon('check', 16),
    h('span', null, 'On. This folder is indexed on this machine: ', folder),
  )
}

/**
 * Asks for confirmation, and shows which folder will be indexed when the switch is turned on.
 *
 * @param {Vault} vault
 */
function confirmIndexing({ root, exists, include, exclude, origin }) {
  const limits = [
    include.length ? fact('Included', patterns(include)) : null,
    exclude.length ? fact('Excluded', patterns(exclude)) : null,
  ]
  const fixed = origin && origin !== 'page'
  const change = fixed ? `The folder is set in ${origin}.` : 'Choose a folder in the section Vault.'
  const content = [
    h('p', null, 'This folder will be indexed on this machine, so that it can be searched:'),
    h('p', { class: 'vault-root mono' }, icon('folder', 16), root),
    exists ? null : banner(`This folder does not exist. ${change}`, 'warn'),
    include.length || exclude.length ? h('dl', { class: 'facts' }, limits) : null,
    h('p', null, 'The index stays on this machine. A model sees only what you approve.'),
    h('p', { class: 'muted small' }, WARNING),
  ]
  return confirm({ title: 'Enable tools in the chat?', content, action: 'Enable and index' })
}

/** @param {string[]} list */
const patterns = (list) => list.map((one, at) => [at ? ', ' : '', h('code', null, one)])

// --- grants ------------------------------------------------------------------------------------------------

/** @param {SettingsPage} page */
function grantsSection(page) {
  const body = h('div', { class: 'stack' })
  const link = h('a', { href: '/ui/inbox?tab=grants' }, 'All grants in the inbox')
  const node = section(
    'Remembered grants',
    'A grant is a remembered approval. Toolwire does not ask you about calls that a grant covers.',
    body,
  )
  /** @param {Grant} grant */
  const revoked = (grant) => {
    page.context.announce(`The grant for ${grant.tool} has been revoked.`)
    show()
  }
  async function show() {
    try {
      const grants = await currentGrants()
      if (!grants.length) {
        clear(body, h('p', { class: 'muted' }, NO_GRANTS))
        return
      }
      const entries = grants
        .slice(0, FEW)
        .map((one) => grantEntry(one, { showError: page.showError, revoked }))
      const more = grants.length > FEW ? `${grants.length - FEW} more. ` : ''
      clear(
        body,
        h('ul', { class: 'cases', 'aria-label': 'Remembered grants' }, entries),
        h('p', { class: 'small' }, more, link),
      )
    } catch (error) {
      page.showError(error)
    }
  }
  return { node, show }
}

// --- the settings file ------------------------------------------------------------------------------------

/** @param {SettingsPage} page @returns {Section} */
function vaultSection(page) {
  const facts = h('dl', { class: 'facts wide' })
  const where = h('p', { class: 'hint' })
  const choose = h(
    'button',
    { type: 'button', class: 'button', onclick: change },
    icon('folder', 16),
    'Choose a folder',
  )
  const node = section('Vault', '', facts, h('div', { class: 'row' }, choose), where)
  let root = ''
  async function change() {
    if (!(await folderPicker(root))) return
    page.context.announce('The vault’s folder has been saved.')
    await page.save({})
  }
  /** @param {Settings} settings */
  function show({ vault, config_path: path }) {
    const { exists, include, exclude, open, origin } = vault
    root = vault.root
    const [kind, badge] = open ? ['ok', 'open'] : exists ? ['', 'closed'] : ['warn', 'does not exist']
    clear(
      facts,
      fact('Folder', h('span', { class: 'mono' }, root), ' ', h('span', { class: `badge ${kind}` }, badge)),
      fact('Included', include.length ? patterns(include) : 'every note'),
      fact('Excluded', exclude.length ? patterns(exclude) : 'hidden files only'),
    )
    choose.hidden = Boolean(origin && origin !== 'page')
    const file = path
      ? ['edit ', h('code', null, path)]
      : 'create a toolwire.toml in the folder where you start the server'
    const fixed = choose.hidden ? ['The folder is set in ', h('code', null, origin), '. '] : null
    clear(
      where,
      fixed,
      choose.hidden
        ? 'To change the folder or which notes are included, '
        : 'To change which notes are included, ',
      file,
      '.',
    )
  }
  return { node, show }
}

/** @returns {Section} */
function journalSection() {
  const facts = h('dl', { class: 'facts wide' })
  const node = section(
    'Journal',
    'Records of recent requests, for the Wire page. To change these settings, edit the settings file.',
    facts,
  )
  /** @param {Settings} settings */
  function show({ journal: { contents, max_mb: most, path } }) {
    const inFiles = ' The journal’s files, in the folder below, contain only metadata.'
    const metadata = path && contents === 'memory' ? inFiles : ''
    clear(
      facts,
      fact('Contents', h('code', null, contents), ' ', CONTENTS.get(contents), metadata),
      path ? fact('Size of the files', `at most ${most} MB`) : null,
      path ? fact('Folder of the files', h('span', { class: 'mono' }, path)) : null,
    )
  }
  return { node, show }
}

/** @returns {Section} */
function configurationSection() {
  const body = h('div', { class: 'stack' })
  const node = section(
    'Settings in use',
    'These settings come from the settings file, this page, the environment and the command line. Secrets ' +
      'are masked.',
    h('details', { class: 'unfold' }, h('summary', null, 'Show the settings'), body),
  )
  /** @param {Settings} settings */
  function show({ config, config_path: path }) {
    const file = path ? h('p', { class: 'small muted' }, 'File: ', h('code', null, path)) : null
    clear(body, file, codeBlock(config.trimEnd(), 'toml'))
  }
  return { node, show }
}
