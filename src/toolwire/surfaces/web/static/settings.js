// Settings: the switch for tool calling, the models that may use tools, what is remembered, and what the configuration file says.
//
// Law: these pages change only the switch, the list of models and grants. Where the vault is, and what of it may be seen, stands in the file alone.

import { confirmed } from './confirm.js'
import { banner, clear, codeBlock, counted, h, icon, text } from './dom.js'
import { fact, grantList } from './grants.js'
import { appearance, section, signIn } from './settings-browser.js'

export const title = 'Settings'

const DESCRIPTION =
  'Allow the AI to use tools like vault search and file reading. All tool calls require your explicit approval via popup.'
const WARNING = '⚠️ Experimental feature - tools may access your vault data.'
const CONTENTS = {
  memory: 'Requests and answers of recent turns are kept in memory only, and are gone when the server ends.',
  disk: 'Requests and answers are kept on disk, readable by you alone.',
  off: 'Requests and answers are not kept; only what a turn was, never what was said.',
}
const FEW = 4

export async function open(main, context) {
  const trouble = h('div', { class: 'trouble' })
  const sections = h('div', { class: 'settings' })
  main.append(
    h(
      'div',
      { class: 'page' },
      h(
        'div',
        { class: 'page-head' },
        h(
          'div',
          null,
          h('h1', null, 'Settings'),
          h('p', null, 'What models may do here. Everything else stands in the configuration file.'),
        ),
      ),
      trouble,
      sections,
    ),
  )
  const failed = (error) => clear(trouble, banner(error.message, 'bad', true))
  const page = { context, failed, worked: () => clear(trouble), models: [], settings: null }
  const parts = [
    toolCalling(page),
    toolModels(page),
    grants(page),
    vault(page),
    journal(page),
    signIn(page),
    appearance(page),
    configuration(page),
  ]
  clear(sections, h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner' }), 'Loading'))

  async function refresh() {
    try {
      const [settings, { models }] = await Promise.all([
        context.api.get('/settings'),
        context.api.get('/models'),
      ])
      page.models = models
      page.show(settings)
      if (!sections.contains(parts[0].node))
        clear(
          sections,
          parts.map(({ node }) => node),
        )
    } catch (error) {
      if (!page.settings) clear(sections)
      failed(error)
    }
  }
  page.show = (settings) => {
    page.settings = settings
    for (const part of parts) part.show?.(settings)
  }
  const offs = [
    context.live.on('settings', refresh),
    context.live.on('approvals', () => parts[2].show()),
    context.live.on('lost', refresh),
  ]
  await refresh()
  return () => {
    for (const off of offs) off()
    for (const part of parts) part.close?.()
  }
}

// --- the switch ----------------------------------------------------------------------------------------------------------------------------------

function toolCalling(page) {
  const toggle = h('input', {
    type: 'checkbox',
    class: 'switch',
    role: 'switch',
    id: 'tool-calling',
    'aria-describedby': 'tool-calling-words tool-calling-warning',
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
        h('h2', null, h('label', { for: 'tool-calling' }, 'Enable AI Tool Calling (Experimental)')),
        h('p', { class: 'muted small', id: 'tool-calling-words' }, DESCRIPTION),
      ),
      toggle,
    ),
    h('p', { class: 'setting-warning', id: 'tool-calling-warning' }, WARNING),
    status,
  )

  async function change() {
    const wanted = toggle.checked
    if (wanted && !(await agreed(page.settings.vault))) {
      toggle.checked = false
      return
    }
    toggle.disabled = true
    try {
      page.show(await page.context.api.put('/settings', { tool_calling: wanted }))
      page.worked()
      page.context.announce(wanted ? 'Tool calling is on.' : 'Tool calling is off.')
    } catch (error) {
      toggle.checked = !wanted
      page.failed(error)
    }
    toggle.disabled = false
    // A disabled switch loses the focus. The person may have moved on while the server answered.
    if (document.activeElement === document.body) toggle.focus()
  }
  function show({ tool_calling: on, vault: { root, open, error } }) {
    if (!toggle.disabled || toggle.checked !== on) toggle.checked = on
    if (!on)
      clear(
        status,
        h(
          'p',
          { class: 'row nowrap small muted' },
          icon('shield', 16),
          'Off: no model is offered a tool of the vault.',
        ),
      )
    else if (error) clear(status, banner(['The vault could not be opened: ', error], 'bad'))
    else if (open)
      clear(
        status,
        h(
          'p',
          { class: 'row nowrap small' },
          icon('check', 16),
          h('span', null, 'On. Indexed on this machine: ', h('span', { class: 'mono' }, root)),
        ),
      )
    else clear(status, banner('The vault is not open.', 'warn'))
  }
  return { node, show }
}

/** Switching on means that the vault is indexed: the person sees which, and says yes. */
function agreed({ root, exists, include, exclude }) {
  const content = [
    h('p', null, 'This folder will be indexed on this machine, so that it can be searched:'),
    h('p', { class: 'vault-root mono' }, icon('folder', 16), root),
    exists ? null : banner('There is no such folder. Set vault.root in the configuration file.', 'warn'),
    include.length || exclude.length
      ? h(
          'dl',
          { class: 'facts' },
          include.length ? fact('Only', patterns(include)) : null,
          exclude.length ? fact('Not', patterns(exclude)) : null,
        )
      : null,
    h('p', null, 'Indexing shares nothing. A model sees of it only what you approve, call by call.'),
    h('p', { class: 'muted small' }, WARNING),
  ]
  return confirmed({ title: 'Enable AI Tool Calling?', content, yes: 'Enable and index' })
}

const patterns = (list) => list.map((one, at) => [at ? ', ' : '', h('code', null, one)])

// --- models --------------------------------------------------------------------------------------------------------------------------------------

function toolModels(page) {
  const area = h('textarea', {
    class: 'textarea mono',
    id: 'tool-models',
    rows: '4',
    spellcheck: 'false',
    autocapitalize: 'off',
    'aria-describedby': 'tool-models-hint',
    oninput: matched,
  })
  const save = h('button', { type: 'submit', class: 'button primary', disabled: true }, 'Save')
  const undo = h(
    'button',
    {
      type: 'button',
      class: 'button quiet',
      hidden: true,
      onclick: () => {
        area.value = saved()
        matched()
      },
    },
    'Undo',
  )
  const said = h('p', { class: 'muted small', role: 'status' })
  const list = h('ul', { class: 'model-matches' })
  const node = section(
    'Models allowed to use tools',
    null,
    h(
      'form',
      { class: 'columns', onsubmit: submit },
      h(
        'div',
        { class: 'field' },
        h('label', { class: 'label', for: 'tool-models' }, 'One model or pattern a line'),
        area,
        h(
          'p',
          { class: 'hint', id: 'tool-models-hint' },
          h('code', null, '*'),
          ' stands for anything: ',
          h('code', null, 'ollama/*'),
          '. No line, no model.',
        ),
        h('div', { class: 'row' }, save, undo),
      ),
      h(
        'div',
        { class: 'stack' },
        said,
        h(
          'div',
          {
            class: 'scroll matches-scroll',
            tabindex: '0',
            role: 'region',
            'aria-label': 'Models of this server',
          },
          list,
        ),
      ),
    ),
  )

  const saved = () => (page.settings?.tool_models ?? []).join('\n')
  const written = () =>
    area.value
      .split('\n')
      .map((line) => line.trim())
      .filter(Boolean)

  function matched() {
    const tests = written().map(glob)
    const fits = page.models.map(({ id }) => tests.some((test) => test.test(id)))
    const count = fits.filter(Boolean).length
    text(said, `${count} of ${counted(page.models.length, 'model')} may use tools`)
    clear(
      list,
      page.models.map(({ id }, at) =>
        h(
          'li',
          { class: fits[at] ? 'may' : 'may-not' },
          icon(fits[at] ? 'check' : 'close', 15),
          h('span', { class: 'visually-hidden' }, fits[at] ? 'May use tools: ' : 'May not: '),
          h('span', { class: 'mono' }, id),
        ),
      ),
    )
    const changed = written().join('\n') !== saved()
    save.disabled = !changed
    undo.hidden = !changed
  }
  async function submit(event) {
    event.preventDefault()
    save.disabled = true
    try {
      const settings = await page.context.api.put('/settings', { tool_models: written() })
      page.settings = settings
      area.value = saved()
      page.show(settings)
      page.worked()
      page.context.announce('The models that may use tools are saved.')
    } catch (error) {
      page.failed(error)
    }
    matched()
  }
  let shown = null
  function show() {
    if (shown === null || written().join('\n') === shown) area.value = saved() // what is being written stays
    shown = saved()
    matched()
  }
  return { node, show }
}

/** A pattern as the server reads it: `*` anything, `?` one character, `[…]` one of these. */
function glob(pattern) {
  const source = pattern.replace(/\[(!?)([^\]]+)\]|[.*+?^${}()|[\]\\]/g, (found, not, chosen) => {
    if (chosen !== undefined) return `[${not ? '^' : ''}${chosen.replace(/[\\\]^[]/g, '\\$&')}]`
    return { '*': '.*', '?': '.' }[found] ?? `\\${found}`
  })
  try {
    return new RegExp(`^${source}$`, 's')
  } catch {
    return /(?!)/
  }
}

// --- grants --------------------------------------------------------------------------------------------------------------------------------------

function grants(page) {
  const list = h('div', { class: 'stack' })
  const link = h(
    'a',
    {
      href: '/ui/inbox?tab=grants',
      onclick: (event) => {
        event.preventDefault()
        page.context.navigate('/ui/inbox?tab=grants')
      },
    },
    'All grants, in the inbox',
  )
  const node = section('Remembered grants', 'Calls that you let go ahead without asking again.', list)
  async function show() {
    try {
      const current = (await page.context.api.get('/grants')).grants.filter((grant) => !grant.revoked_at)
      const changed = {
        api: page.context.api,
        failed: page.failed,
        revoked: (grant) => {
          page.context.announce(`The grant for ${grant.tool} is revoked.`)
          show()
        },
      }
      if (!current.length)
        clear(list, h('p', { class: 'muted' }, 'Nothing is remembered: every call asks you.'))
      else
        clear(
          list,
          grantList(current.slice(0, FEW), changed),
          h('p', { class: 'small' }, current.length > FEW ? `${current.length - FEW} more. ` : '', link),
        )
    } catch (error) {
      page.failed(error)
    }
  }
  return { node, show }
}

// --- what the file says --------------------------------------------------------------------------------------------------------------------------

function vault() {
  const facts = h('dl', { class: 'facts wide' })
  const where = h('p', { class: 'hint' })
  const node = section('Vault', null, facts, where)
  function show({ vault: { root, exists, include, exclude, open }, config_path: path }) {
    clear(
      facts,
      fact(
        'Root',
        h('span', { class: 'mono' }, root),
        ' ',
        open
          ? h('span', { class: 'badge ok' }, 'open')
          : exists
            ? h('span', { class: 'badge' }, 'closed')
            : h('span', { class: 'badge warn' }, 'not there'),
      ),
      fact('Only', include.length ? patterns(include) : 'every note'),
      fact('Not', exclude.length ? patterns(exclude) : 'nothing is left out, but for hidden files'),
    )
    clear(
      where,
      'Root and patterns are changed only in the configuration file',
      path
        ? [': ', h('code', null, path)]
        : '; there is none yet: write a toolwire.toml where you start the server',
      '.',
    )
  }
  return { node, show }
}

function journal() {
  const facts = h('dl', { class: 'facts wide' })
  const node = section(
    'Journal',
    'What the wire inspector shows is kept by these rules, set in the configuration file.',
    facts,
  )
  function show({ journal: { contents, max_mb: most, path } }) {
    clear(
      facts,
      fact('Contents', h('code', null, contents), ' ', CONTENTS[contents] ?? ''),
      fact('At most', `${most} MB`),
      path ? fact('Folder', h('span', { class: 'mono' }, path)) : null,
    )
  }
  return { node, show }
}

function configuration() {
  const held = h('div', { class: 'stack' })
  const node = section(
    'Configuration in force',
    'From file, environment and command line. Secrets are masked.',
    h('details', { class: 'unfold' }, h('summary', null, 'Show the configuration'), held),
  )
  return {
    node,
    show: ({ config, config_path: path }) =>
      clear(
        held,
        path ? h('p', { class: 'small muted' }, 'File: ', h('code', null, path)) : null,
        codeBlock(config.trimEnd(), 'toml'),
      ),
  }
}
