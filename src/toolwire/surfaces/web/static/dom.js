// Building the page: elements, icons, times and sizes.
//
// Law: everything foreign (what a model wrote, notes, arguments, names, errors) is text. Nothing here takes markup; there is no way to hand any in.
// `h` refuses what could become a script: handlers that are no functions, inline styles, and addresses that are neither of this server nor of the web.

export { visible } from './invisible.js'

const SVG = 'http://www.w3.org/2000/svg'
const SAFE_HREF = /^(?:https?:|mailto:|blob:|[/#?])/i
const PROPERTIES = new Set([
  'value',
  'checked',
  'disabled',
  'open',
  'hidden',
  'indeterminate',
  'readOnly',
  'selected',
  'tabIndex',
  'htmlFor',
])

/** An element. Props: `class`, handlers (`onclick: fn`), `dataset`, `vars` (custom properties), booleans, attributes by their own names. */
export function h(tag, props, ...children) {
  const node = document.createElement(tag)
  for (const [name, value] of Object.entries(props ?? {})) set(node, name, value)
  node.append(...nodes(children))
  return node
}

/** An element of SVG; attributes by their own names. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag)
  for (const [name, value] of Object.entries(attributes ?? {})) set(node, name, value)
  node.append(...nodes(children))
  return node
}

function set(node, name, value) {
  if (value === null || value === undefined) return
  if (name.startsWith('on')) {
    if (typeof value !== 'function') throw new TypeError(`${name} takes a function`)
    node.addEventListener(name.slice(2).toLowerCase(), value)
  } else if (name === 'style' || name === 'srcdoc') {
    throw new TypeError(`${name} is not written by scripts here; use classes, or vars for custom properties`)
  } else if (name === 'dataset') {
    for (const [key, one] of Object.entries(value))
      if (one !== null && one !== undefined) node.dataset[key] = one
  } else if (name === 'vars') {
    for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one)
  } else if (PROPERTIES.has(name) && name in node) {
    node[name] = value
  } else if ((name === 'href' || name === 'src') && !SAFE_HREF.test(String(value).trim())) {
    return
  } else if (typeof value === 'boolean') {
    if (name.startsWith('aria-')) node.setAttribute(name, String(value))
    else node.toggleAttribute(name, value)
  } else {
    node.setAttribute(name, String(value))
  }
}

function nodes(children) {
  const out = []
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue
    out.push(child instanceof Node ? child : document.createTextNode(String(child)))
  }
  return out
}

/** Sets the text of a node, and touches the page only when it is another. */
export function text(node, value) {
  const wanted = value === null || value === undefined ? '' : String(value)
  if (node.textContent !== wanted) node.textContent = wanted
  return node
}

/** Empties a node; with children, fills it with them. */
export function clear(node, ...children) {
  node.replaceChildren(...nodes(children))
  return node
}

// --- icons ---------------------------------------------------------------------------------------------------------------------------------------

// Strokes on a field of 24 × 24.
const ICONS = {
  chat: 'M4 5.5h16v11H10l-4.5 3.5v-3.5H4z',
  inbox: 'M4 13.5 6.5 5h11l2.5 8.5V19H4z M4 13.5h4.5l1.5 2.5h4l1.5-2.5H20',
  wire: 'M3 12h4l2.5-6.5 5 13L17 12h4',
  plug: 'M9 3v5 M15 3v5 M6.5 8h11v3.5a5.5 5.5 0 0 1-11 0z M12 17v4',
  sliders: 'M4 7h9 M17 7h3 M4 17h3 M11 17h9 M15 4.8v4.4 M9 14.8v4.4',
  sun: 'M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8 M12 2.5v2 M12 19.5v2 M2.5 12h2 M19.5 12h2 M5.3 5.3l1.4 1.4 M17.3 17.3l1.4 1.4 M5.3 18.7l1.4-1.4 M17.3 6.7l1.4-1.4',
  moon: 'M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z',
  plus: 'M12 5v14 M5 12h14',
  minus: 'M5 12h14',
  close: 'M6 6l12 12 M18 6L6 18',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  copy: 'M9 9h11v11H9z M15 9V4H4v11h5',
  search: 'M11 4a7 7 0 1 0 0 14a7 7 0 1 0 0-14 M16 16l4.5 4.5',
  pencil: 'M4 20l1-4.5L16 4.5l3.5 3.5L8.5 19z M14 6.5l3.5 3.5',
  trash: 'M4.5 7h15 M9.5 7V4.5h5V7 M6.5 7l1 13h9l1-13 M10 11v5.5 M14 11v5.5',
  send: 'M12 19V5 M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  retry: 'M19.5 12a7.5 7.5 0 1 1-2.2-5.3L19.5 9 M19.5 4.5V9H15',
  download: 'M12 4v11 M7.5 11l4.5 4.5 4.5-4.5 M5 20h14',
  down: 'M12 5v14 M6 13l6 6 6-6',
  chevron: 'M6 9.5l6 6 6-6',
  right: 'M9.5 6l6 6-6 6',
  left: 'M14.5 6l-6 6 6 6',
  list: 'M4 6.5h16 M4 12h16 M4 17.5h16',
  tool: 'M14.7 6.3a4 4 0 0 1 5-1.3l-2.7 2.7 1.8 1.8 2.7-2.7a4 4 0 0 1-5.3 5.2l-7.5 7.5a1.9 1.9 0 0 1-2.7-2.7l7.5-7.5a4 4 0 0 1 1.2-3z',
  file: 'M6.5 3.5h7.5l4 4v13H6.5z M13.5 3.5v4.5h4.5',
  folder: 'M3.5 6h6l2 2.5h9v10.5h-17z',
  warning: 'M12 4.5L21 19.5H3z M12 10v4.5 M12 17v.1',
  info: 'M12 3.5a8.5 8.5 0 1 0 0 17a8.5 8.5 0 1 0 0-17 M12 11v5.5 M12 7.6v.1',
  shield: 'M12 3.5l7.5 2.5v6c0 4.5-3.2 7.3-7.5 8.7-4.3-1.4-7.5-4.2-7.5-8.7V6z M8.7 12l2.3 2.3 4.3-4.6',
  key: 'M8 11a4 4 0 1 0 0 8a4 4 0 1 0 0-8 M11 12.2L20 4 M16.5 7.2l2.5 2.8',
  clock: 'M12 3.5a8.5 8.5 0 1 0 0 17a8.5 8.5 0 1 0 0-17 M12 7.5V12l3 2.5',
  thought: 'M12 4a7 7 0 0 0-4 12.7V19h8v-2.3A7 7 0 0 0 12 4z M9.5 21.5h5',
  play: 'M8 5.5l10.5 6.5L8 18.5z',
  pause: 'M8.5 6v12 M15.5 6v12',
  external: 'M13.5 4.5h6v6 M19.5 4.5L11 13 M17.5 14v5.5h-13v-13H10',
  filter: 'M4 5.5h16l-6.2 7.5v6l-3.6-2v-4z',
  more: 'M5 12v.1 M12 12v.1 M19 12v.1',
  terminal: 'M3.5 5h17v14h-17z M7 9.5l3 2.5-3 2.5 M12.5 15H17',
  chart: 'M4 20V4 M4 20h16 M8 16v-4 M12 16V8 M16 16v-6',
}

/** A picture that says nothing by itself: whoever uses it gives the button its words. */
export function icon(name, size = 18) {
  const drawn = svg('svg', {
    class: 'icon',
    viewBox: '0 0 24 24',
    width: size,
    height: size,
    'aria-hidden': 'true',
    focusable: 'false',
  })
  drawn.append(svg('path', { d: ICONS[name] ?? ICONS.info }))
  return drawn
}

// --- controls that every page has ----------------------------------------------------------------------------------------------------------------

/** A button that copies. `words` is a text or a function that gives one; `name` is for those who hear it, where more than the label is needed. */
export function copyButton(words, label = 'Copy', name = label) {
  const said = h('span', { class: 'copy-label' }, label)
  const button = h(
    'button',
    { type: 'button', class: 'button quiet small copy', 'aria-label': name },
    icon('copy', 15),
    said,
  )
  let timer = 0
  button.addEventListener('click', async () => {
    const ok = await copy(typeof words === 'function' ? words() : words)
    text(said, ok ? 'Copied' : 'Could not copy')
    button.setAttribute('aria-label', said.textContent)
    button.classList.toggle('did', ok)
    clearTimeout(timer)
    timer = setTimeout(() => {
      text(said, label)
      button.setAttribute('aria-label', name)
      button.classList.remove('did')
    }, 1600)
  })
  return button
}

/** Copies a text to the clipboard; tells whether that worked. Works on plain HTTP too. */
export async function copy(words) {
  try {
    await navigator.clipboard.writeText(words)
    return true
  } catch {
    const area = h('textarea', { class: 'visually-hidden', 'aria-hidden': 'true', tabindex: '-1' })
    area.value = words
    const before = document.activeElement
    ;(document.querySelector('dialog[open]') ?? document.body).append(area)
    area.select()
    const ok = document.execCommand('copy')
    area.remove()
    before?.focus?.()
    return ok
  }
}

/** Text as code, with its language and a copy button. */
export function codeBlock(words, language = '') {
  const code = h('code', null, words)
  const head = h(
    'div',
    { class: 'code-head' },
    h('span', { class: 'code-language' }, language),
    copyButton(() => code.textContent),
  )
  return h('div', { class: 'code' }, head, h('pre', { tabindex: '0' }, code))
}

/** How tools reach a model, as a badge. */
export function strategyBadge(strategy) {
  const known = ['native', 'parked', 'emulated', 'constrained', 'none']
  return h(
    'span',
    { class: `badge ${known.includes(strategy) ? strategy : 'none'}` },
    strategy === 'none' ? 'no tools' : strategy,
  )
}

/** A tab list that works by arrow keys. `items`: [{id, label}]. Returns the element; `element.pick(id)` chooses without calling back. */
export function tabList(items, chosen, onpick, label = 'Views') {
  const list = h('div', { class: 'tabs', role: 'tablist', 'aria-label': label })
  const tabs = items.map((item) =>
    h(
      'button',
      {
        type: 'button',
        class: 'tab',
        role: 'tab',
        id: item.domId ?? null,
        dataset: { id: item.id },
        onclick: () => choose(item.id),
      },
      item.label,
    ),
  )
  list.append(...tabs)
  list.pick = (id) => {
    for (const tab of tabs) {
      const on = tab.dataset.id === id
      tab.setAttribute('aria-selected', String(on))
      tab.tabIndex = on ? 0 : -1
      if (on && list.scrollWidth > list.clientWidth)
        list.scrollLeft += tab.getBoundingClientRect().left - list.getBoundingClientRect().left - 24
    }
  }
  function choose(id) {
    list.pick(id)
    onpick(id)
  }
  list.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key]
    if (step === undefined) return
    event.preventDefault()
    const at = tabs.indexOf(document.activeElement)
    const to =
      step === Infinity ? tabs.length - 1 : step === -Infinity ? 0 : (at + step + tabs.length) % tabs.length
    tabs[to].focus()
    choose(tabs[to].dataset.id)
  })
  list.pick(chosen)
  return list
}

/** A line of news or trouble. `kind`: '', 'ok', 'warn' or 'bad'. With `onclose` it can be put away. */
export function banner(words, kind = '', onclose = null, ...more) {
  const node = h('div', { class: `banner ${kind}`, role: kind === 'bad' ? 'alert' : 'status' })
  node.append(
    icon(kind === 'bad' || kind === 'warn' ? 'warning' : kind === 'ok' ? 'check' : 'info'),
    h('div', { class: 'banner-words' }, words),
    ...nodes(more),
  )
  if (onclose) {
    const put = () => {
      node.remove()
      if (typeof onclose === 'function') onclose()
    }
    node.append(
      h(
        'button',
        { type: 'button', class: 'button quiet small', 'aria-label': 'Dismiss', onclick: put },
        icon('close', 15),
      ),
    )
  }
  return node
}

// --- numbers and times ---------------------------------------------------------------------------------------------------------------------------

/** A moment (seconds since 1970, or ISO text) in words, in a <time> that tells the exact one. */
export function when(at) {
  const moment = typeof at === 'number' ? new Date(at * 1000) : new Date(at)
  if (Number.isNaN(moment.getTime())) return h('time', null, '')
  return h('time', { datetime: moment.toISOString(), title: moment.toLocaleString() }, ago(moment))
}

export function ago(moment, now = Date.now()) {
  const seconds = (now - moment.getTime()) / 1000
  if (seconds < -60) return moment.toLocaleString(undefined, { dateStyle: 'short', timeStyle: 'short' })
  if (seconds < 45) return 'just now'
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`
  if (seconds < 7 * 86400) return `${Math.round(seconds / 86400)} d ago`
  return moment.toLocaleDateString(undefined, { dateStyle: 'medium' })
}

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

export function ms(count) {
  if (count === null || count === undefined) return ''
  if (count < 1) return `${count.toFixed(1)} ms`
  if (count < 1000) return `${Math.round(count)} ms`
  if (count < 60000) return `${(count / 1000).toFixed(count < 10000 ? 2 : 1)} s`
  const minutes = Math.floor(count / 60000)
  return minutes < 60
    ? `${minutes} min ${Math.round((count % 60000) / 1000)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}

/** One, or several of a thing: `counted(2, 'file')` is "2 files". */
export function counted(count, one, several = `${one}s`) {
  return `${count.toLocaleString()} ${count === 1 ? one : several}`
}
