// The settings section with the models that may use tools: one model id or pattern per line.

/** @import { Settings } from '../types' */
/** @import { Section, SettingsPage } from './settings.js' */

import { clear, counted, h, icon, text } from './dom.js'
import { section } from './settings-browser.js'

/** @param {SettingsPage} page @returns {Section} */
export function modelsSection(page) {
  /** @type {string[]} */
  let models = []
  /** @type {string | null} the patterns that are saved, one per line; null before they are loaded */
  let saved = null
  const area = h('textarea', {
    class: 'textarea mono',
    id: 'tool-models',
    rows: '4',
    spellcheck: 'false',
    autocapitalize: 'off',
    'aria-describedby': 'tool-models-hint',
    oninput: draw,
  })
  const save = h('button', { type: 'submit', class: 'button primary', disabled: true }, 'Save')
  const undo = h('button', { type: 'button', class: 'button quiet', hidden: true, onclick: reset }, 'Undo')
  const tally = h('p', { class: 'muted small', role: 'status' })
  const list = h('ul', { class: 'model-matches' })
  const hint = [
    h('code', null, '*'),
    ' matches anything, as in ',
    h('code', null, 'ollama/*'),
    '. If the list is empty, no model in the chat may use tools. Clients of the API are not affected.',
  ]
  const node = section(
    'Models that may use tools in the chat',
    '',
    h(
      'form',
      { class: 'columns', onsubmit: submit },
      h(
        'div',
        { class: 'field' },
        h('label', { class: 'label', for: 'tool-models' }, 'One model or pattern per line'),
        area,
        h('p', { class: 'hint', id: 'tool-models-hint' }, hint),
        h('div', { class: 'row' }, save, undo),
      ),
      h(
        'div',
        { class: 'stack' },
        tally,
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

  const written = () =>
    area.value
      .split('\n')
      .map((line) => line.trim())
      .filter(Boolean)

  function draw() {
    const patterns = written()
    const tests = patterns.map(glob)
    const rows = models.map((id) => ({ id, may: tests.some((test) => test.test(id)) }))
    text(tally, `${rows.filter((row) => row.may).length} of ${counted(models.length, 'model')} may use tools`)
    clear(
      list,
      rows.map(({ id, may }) =>
        h(
          'li',
          { class: may ? 'may' : 'may-not' },
          icon(may ? 'check' : 'close', 15),
          h('span', { class: 'visually-hidden' }, may ? 'May use tools: ' : 'May not use tools: '),
          h('span', { class: 'mono' }, id),
        ),
      ),
    )
    const changed = patterns.join('\n') !== saved
    save.disabled = !changed
    undo.hidden = !changed
  }

  function reset() {
    area.value = saved ?? ''
    draw()
  }

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault()
    save.disabled = true
    const before = saved
    const patterns = written()
    saved = patterns.join('\n') // so that `show` does not take the text for a draft
    try {
      await page.save({ tool_models: patterns })
      page.context.announce('The list of models that may use tools has been saved.')
    } catch (error) {
      saved = before
      page.showError(error)
    }
    draw()
  }

  /** @param {Settings} settings @param {string[]} ids */
  function show(settings, ids) {
    models = ids
    const now = settings.tool_models.join('\n')
    if (saved === null || written().join('\n') === saved) area.value = now // else it is a draft, which stays
    saved = now
    draw()
  }
  return { node, show }
}

/**
 * A pattern as the server reads it: `*` matches anything, `?` one character, `[…]` one of these characters.
 *
 * @param {string} pattern
 */
export function glob(pattern) {
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
