// Builds the page: elements, icons, common controls, and numbers and times as text.
//
// Law: all foreign content (what a model wrote, notes, arguments, names, errors) is shown as text. No
// function here accepts markup. `h` refuses what could become a script: handlers that are not functions,
// inline styles, and links that lead neither to this server nor to the web.

/** @import { Child, Props, SvgAttributes, TabItem, TabList } from '../types' */

import { ICONS } from './icons.js'

import { visible } from './invisible.js'

export { visible } from './invisible.js'

const SVG = 'http://www.w3.org/2000/svg'
const SAFE_HREF = /^(?:https?:|mailto:|blob:|[/#?])/i
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'hidden', 'readOnly', 'selected'])
const COPIED_MS = 1600

/**
 * An element. Handlers are functions (`onclick: fn`), `vars` are custom properties of CSS, and all other
 * props are attributes or properties under their own names. A prop that is null or undefined is left out.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props, ...children) {
  const node = document.createElement(tag)
  for (const [name, value] of Object.entries(props ?? {})) setProp(node, name, value)
  node.append(...nodes(children))
  return node
}

/**
 * An SVG element.
 *
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {SvgAttributes | null} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag)
  for (const [name, value] of Object.entries(attributes ?? {})) setProp(node, name, value)
  node.append(...nodes(children))
  return node
}

/** @param {HTMLElement | SVGElement} node @param {string} name @param {unknown} value */
function setProp(node, name, value) {
  if (value === null || value === undefined) return
  if (name.startsWith('on')) {
    if (typeof value !== 'function') throw new TypeError(`${name} takes a function`)
    node.addEventListener(name.slice(2).toLowerCase(), (event) => value(event))
  } else if (name === 'style' || name === 'srcdoc') {
    throw new TypeError(`${name} is not set by scripts here; use classes, or vars for custom properties`)
  } else if (name === 'dataset') {
    for (const [key, one] of Object.entries(value)) {
      if (one !== null && one !== undefined) node.dataset[key] = one
    }
  } else if (name === 'vars') {
    for (const [key, one] of Object.entries(value)) node.style.setProperty(key, String(one))
  } else if (PROPERTIES.has(name) && name in node) {
    Reflect.set(node, name, value)
  } else if ((name === 'href' || name === 'src') && !SAFE_HREF.test(String(value).trim())) {
    return
  } else if (typeof value === 'boolean' && !name.startsWith('aria-')) {
    node.toggleAttribute(name, value)
  } else {
    node.setAttribute(name, String(value))
  }
}

/**
 * Children as nodes. Null, undefined and booleans are left out, so that `condition ? node : null` works.
 *
 * @param {readonly Child[]} children
 * @param {Node[]} [out]
 */
function nodes(children, out = []) {
  for (const child of children) {
    if (Array.isArray(child)) nodes(child, out)
    else if (child instanceof Node) out.push(child)
    else if (child !== null && child !== undefined && typeof child !== 'boolean')
      out.push(document.createTextNode(String(child)))
  }
  return out
}

/**
 * Sets the text of a node, and touches the page only if the text is different.
 *
 * @template {Element} T
 * @param {T} node
 * @param {string | number | null | undefined} value
 */
export function text(node, value) {
  const wanted = String(value ?? '')
  if (node.textContent !== wanted) node.textContent = wanted
  return node
}

/**
 * Replaces all children of a node.
 *
 * @template {ParentNode} T
 * @param {T} node
 * @param {...Child} children
 */
export function clear(node, ...children) {
  node.replaceChildren(...nodes(children))
  return node
}

/**
 * A picture that is hidden from screen readers: its button or row must have a text or a label.
 *
 * @param {string} name
 * @param {number} [size]
 */
export function icon(name, size = 18) {
  const drawn = svg('svg', {
    class: 'icon',
    viewBox: '0 0 24 24',
    width: size,
    height: size,
    'aria-hidden': 'true',
    focusable: 'false',
  })
  drawn.append(svg('path', { d: ICONS.get(name) ?? ICONS.get('info') }))
  return drawn
}

// --- common controls ---------------------------------------------------------------------------------------

/**
 * A button that copies a text. `name` is the accessible name, if the label alone is not clear enough.
 *
 * @param {string | (() => string)} content
 * @param {string} [label]
 * @param {string} [name]
 */
export function copyButton(content, label = 'Copy', name = label) {
  const shown = h('span', { class: 'copy-label' }, label)
  const button = h(
    'button',
    { type: 'button', class: 'button quiet small copy', 'aria-label': name },
    icon('copy', 15),
    shown,
  )
  let timer = 0
  button.addEventListener('click', async () => {
    const ok = await copy(typeof content === 'function' ? content() : content)
    const result = ok ? 'Copied' : 'Could not copy'
    text(shown, result)
    button.setAttribute('aria-label', result)
    button.classList.toggle('did', ok)
    clearTimeout(timer)
    timer = setTimeout(() => {
      text(shown, label)
      button.setAttribute('aria-label', name)
      button.classList.remove('did')
    }, COPIED_MS)
  })
  return button
}

/**
 * Copies a text to the clipboard, and returns whether that worked. Works on plain HTTP too.
 *
 * @param {string} content
 */
export async function copy(content) {
  try {
    await navigator.clipboard.writeText(content)
    return true
  } catch {
    const area = h('textarea', { class: 'visually-hidden', 'aria-hidden': 'true', tabindex: '-1' })
    area.value = content
    const before = document.activeElement
    // Only elements inside an open dialog can be selected while it is open.
    const parent = document.querySelector('dialog[open]') ?? document.body
    parent.append(area)
    area.select()
    const ok = document.execCommand('copy')
    area.remove()
    focus(before)
    return ok
  }
}

/**
 * Gives an element the focus, if it can have it and is still on the page.
 *
 * @param {Element | null | undefined} node
 * @param {FocusOptions} [options]
 */
export function focus(node, options) {
  if ((node instanceof HTMLElement || node instanceof SVGElement) && node.isConnected) node.focus(options)
}

/**
 * A block of code with the name of its language and a copy button. `content`: the text, or an element with
 * it.
 *
 * @param {string | HTMLElement} content
 * @param {string} [language]
 * @param {HTMLButtonElement} [copier]
 */
export function codeBlock(content, language = '', copier) {
  const code = typeof content === 'string' ? h('code', null, content) : content
  const head = h(
    'div',
    { class: 'code-head' },
    h('span', { class: 'code-language' }, language),
    copier ?? copyButton(() => code.textContent),
  )
  return h('div', { class: 'code' }, head, h('pre', { tabindex: '0' }, code))
}

const STRATEGIES = ['native', 'parked', 'emulated', 'constrained', 'none']

/**
 * A badge with the strategy with which a model gets tools.
 *
 * @param {string} strategy
 */
export function strategyBadge(strategy) {
  const kind = STRATEGIES.includes(strategy) ? strategy : 'none'
  return h('span', { class: `badge ${kind}` }, strategy === 'none' ? 'no tools' : strategy)
}

/**
 * A tab list that works by arrow keys. `pick(id)` of the returned element selects a tab without calling
 * `onpick`.
 *
 * @param {TabItem[]} items
 * @param {string} selected
 * @param {(id: string) => unknown} onpick
 * @param {string} [label]
 * @returns {TabList}
 */
export function tabList(items, selected, onpick, label = 'Views') {
  const list = h('div', { class: 'tabs', role: 'tablist', 'aria-label': label })
  const tabs = items.map((item) =>
    h(
      'button',
      {
        type: 'button',
        class: 'tab',
        role: 'tab',
        id: item.domId,
        dataset: { id: item.id },
        onclick: () => choose(item.id),
      },
      item.label,
    ),
  )
  list.append(...tabs)

  /** @param {string} id */
  function pick(id) {
    for (const tab of tabs) {
      const on = tab.dataset.id === id
      tab.setAttribute('aria-selected', String(on))
      tab.tabIndex = on ? 0 : -1
      if (on && list.scrollWidth > list.clientWidth)
        list.scrollLeft += tab.getBoundingClientRect().left - list.getBoundingClientRect().left - 24
    }
  }
  /** @param {string} id */
  function choose(id) {
    pick(id)
    onpick(id)
  }
  list.addEventListener('keydown', (event) => {
    const at = tabs.findIndex((tab) => tab.matches(':focus'))
    /** @type {{ [key: string]: number }} */
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }
    const to = steps[event.key]
    if (to === undefined) return
    event.preventDefault()
    const index = (to + tabs.length) % tabs.length
    tabs[index].focus()
    choose(items[index].id)
  })
  pick(selected)
  return Object.assign(list, { pick })
}

/**
 * A message in a coloured box. With `onclose`, the person can dismiss the message.
 *
 * @param {Child} message
 * @param {'' | 'ok' | 'warn' | 'bad'} [kind]
 * @param {boolean | (() => void) | null} [onclose]
 * @param {...Child} more
 */
export function banner(message, kind = '', onclose = null, ...more) {
  const node = h('div', { class: `banner ${kind}`, role: kind === 'bad' ? 'alert' : 'status' })
  node.append(
    icon(kind === 'bad' || kind === 'warn' ? 'warning' : kind === 'ok' ? 'check' : 'info'),
    h('div', { class: 'banner-text' }, typeof message === 'string' ? visible(message) : message),
    ...nodes(more),
  )
  if (onclose) {
    const dismiss = () => {
      node.remove()
      if (typeof onclose === 'function') onclose()
    }
    const props = { type: 'button', class: 'button quiet small', 'aria-label': 'Dismiss', onclick: dismiss }
    node.append(h('button', props, icon('close', 15)))
  }
  return node
}

// --- numbers and times -------------------------------------------------------------------------------------

/**
 * A moment (seconds since 1970, or ISO text) as "5 min ago". The exact time is in the element's title.
 *
 * @param {number | string} at
 */
export function when(at) {
  const moment = new Date(typeof at === 'number' ? at * 1000 : at)
  if (Number.isNaN(moment.getTime())) return h('time', null, '')
  return h('time', { datetime: moment.toISOString(), title: moment.toLocaleString() }, ago(moment))
}

/** @param {Date} moment @param {number} [now] */
export function ago(moment, now = Date.now()) {
  const seconds = (now - moment.getTime()) / 1000
  if (seconds < -60) return moment.toLocaleString(undefined, { dateStyle: 'short', timeStyle: 'short' })
  if (seconds < 45) return 'just now'
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`
  if (seconds < 7 * 86400) return `${Math.round(seconds / 86400)} d ago`
  return moment.toLocaleDateString(undefined, { dateStyle: 'medium' })
}

/** @param {number | null | undefined} count */
export function bytes(count) {
  if (count === null || count === undefined) return ''
  const units = ['B', 'KB', 'MB', 'GB']
  let size = count
  let unit = 0
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000
    unit += 1
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`
}

/** @param {number | null | undefined} count */
export function ms(count) {
  if (count === null || count === undefined) return ''
  if (count < 1) return `${count.toFixed(1)} ms`
  if (count < 1000) return `${Math.round(count)} ms`
  if (count < 60000) return `${(count / 1000).toFixed(count < 10000 ? 2 : 1)} s`
  const minutes = Math.floor(count / 60000)
  if (minutes < 60) return `${minutes} min ${Math.round((count % 60000) / 1000)} s`
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}

/**
 * A number with its noun: `counted(2, 'file')` is "2 files".
 *
 * @param {number} count
 * @param {string} one
 * @param {string} [several]
 */
export function counted(count, one, several = `${one}s`) {
  return `${count.toLocaleString()} ${count === 1 ? one : several}`
}
