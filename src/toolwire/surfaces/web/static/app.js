// The shell: the session, the navigation, and the connection to the server.
//
// A page is a module with `title` and `open(main, context)`. `open` returns a function that closes the page.
// That function may have `go(id)`, which moves the page from one of its addresses to another.

/** @import { ClosePage, Context, PageModule } from '../types' */

import * as api from './api.js'
import { askForCode } from './approval-code.js'
import { banner, clear, focus, h, icon, text } from './dom.js'
import { live } from './live.js'
import { signIn } from './signin.js'

/**
 * @typedef {object} Page
 * @property {string} name
 * @property {string} label
 * @property {string} icon
 * @property {string} path
 * @property {RegExp} match its first group is the page's id
 * @property {() => Promise<PageModule>} load
 */

/** @type {Page[]} */
const PAGES = [
  {
    name: 'chat',
    label: 'Chat',
    icon: 'chat',
    path: '/',
    match: /^\/(?:ui(?:\/(?:(?:tour|chat(?:\/([^/]+))?)\/?)?)?)?$/,
    load: () => import('./chat.js'),
  },
  {
    name: 'inbox',
    label: 'Inbox',
    icon: 'inbox',
    path: '/ui/inbox',
    match: /^\/ui\/inbox\/?$/,
    load: () => import('./inbox.js'),
  },
  {
    name: 'wire',
    label: 'Wire',
    icon: 'wire',
    path: '/ui/wire',
    match: /^\/ui\/wire(?:\/([^/]+))?\/?$/,
    load: () => import('./wire.js'),
  },
  {
    name: 'connect',
    label: 'Connect',
    icon: 'plug',
    path: '/ui/connect',
    match: /^\/ui\/connect\/?$/,
    load: () => import('./connect.js'),
  },
  {
    name: 'settings',
    label: 'Settings',
    icon: 'sliders',
    path: '/ui/settings',
    match: /^\/ui\/settings\/?$/,
    load: () => import('./settings.js'),
  },
]
const SERVED_BY_SERVER = /^\/(?:ui\/(?:api|static|enter)|v1)/
const LOST_AFTER_MS = 1_500
const PROBE_MS = 3_000
const RETRY_MS = 2_000

const main = h('main', { id: 'main', tabindex: '-1' })
const announcer = h('div', { class: 'visually-hidden', 'aria-live': 'polite', role: 'status', id: 'news' })
const bar = h('div', { class: 'shell-banner' })
const connection = h('span', { class: 'connection' }, '')
const count = h('span', { class: 'count', hidden: true })
/** @type {Map<string, HTMLAnchorElement>} by the page's name */
const links = new Map()
const actions = { live, navigate, announce, setTitle }

/** @type {Context | null} null while signed out */
let context = null
/** @type {{ name: string, close: ClosePage } | null} */
let page = null
let title = ''
let pending = 0
let routes = 0
let lostTimer = 0
let probeTimer = 0
let wasLost = false

// --- the frame ---------------------------------------------------------------------------------------------

function shell() {
  const items = PAGES.map((one) => {
    const link = h(
      'a',
      { class: 'nav-link', href: one.path },
      icon(one.icon, 19),
      h('span', null, one.label),
      one.name === 'inbox' ? count : null,
    )
    links.set(one.name, link)
    return h('li', null, link)
  })
  const logo = h('img', { src: '/ui/static/favicon.svg', alt: '', width: '22', height: '22' })
  const nav = h(
    'nav',
    { class: 'shell-nav', 'aria-label': 'Pages' },
    h('a', { class: 'brand', href: '/' }, logo, 'Toolwire'),
    h('ul', { class: 'nav-links' }, items),
    h('div', { class: 'nav-foot' }, connection, themeButton()),
  )
  const skip = h('a', { class: 'skip', href: '#main' }, 'Skip to the content')
  skip.addEventListener('click', (event) => {
    event.preventDefault()
    main.focus()
  })
  showConnection()
  return [skip, h('div', { class: 'shell' }, nav, h('div', { class: 'shell-main' }, bar, main)), announcer]
}

function themeButton() {
  const html = document.documentElement
  const system = matchMedia('(prefers-color-scheme: dark)')
  const isDark = () => (html.dataset.theme ? html.dataset.theme === 'dark' : system.matches)
  const button = h('button', { type: 'button', class: 'button quiet square', onclick: toggle })
  function draw() {
    const label = isDark() ? 'Use the light theme' : 'Use the dark theme'
    button.setAttribute('aria-label', label)
    button.title = label
    clear(button, icon(isDark() ? 'sun' : 'moon'))
  }
  function toggle() {
    const theme = isDark() ? 'light' : 'dark'
    html.dataset.theme = theme
    try {
      localStorage.setItem('toolwire-theme', theme)
    } catch {
      // Without storage the theme applies to this tab.
    }
  }
  system.addEventListener('change', draw)
  new MutationObserver(draw).observe(html, { attributeFilter: ['data-theme'] }) // the settings change it too
  draw()
  return button
}

function showConnection() {
  const open = live.state === 'open'
  clearInterval(probeTimer)
  clearTimeout(lostTimer)
  // A server that is back after a restart may not know this session any more.
  if (!open && context) probeTimer = setInterval(refreshSession, PROBE_MS)
  connection.classList.toggle('lost', !open)
  text(connection, open ? 'Connected' : 'Connecting…')
  if (!open) {
    lostTimer = setTimeout(showLost, LOST_AFTER_MS)
    return
  }
  if (wasLost) announce('The server is back.')
  wasLost = false
  clear(bar)
}

function showLost() {
  if (live.state === 'open' || !context || document.hidden) return
  wasLost = true
  const retry = h('button', { type: 'button', class: 'button small', onclick: live.now }, 'Try now')
  clear(bar, banner('The server does not answer. Trying again… Your drafts are kept.', 'warn', null, retry))
}

/** Reads a message to people who use a screen reader. @param {string} message */
function announce(message) {
  text(announcer, '')
  requestAnimationFrame(() => text(announcer, message))
}

/** Sets the title of what the page shows, such as a conversation. @param {string} name */
function setTitle(name) {
  title = name
  showTitle()
}

function showTitle() {
  const name = [title, 'Toolwire'].filter(Boolean).join(' · ')
  document.title = pending ? `(${pending}) ${name}` : name
}

/** @param {number} number */
function showPending(number) {
  if (number > pending)
    announce(`${number} ${number === 1 ? 'request waits' : 'requests wait'} for your decision.`)
  pending = number
  count.hidden = number === 0
  clear(count, number > 99 ? '99+' : number, h('span', { class: 'visually-hidden' }, ' waiting'))
  showTitle()
}

async function loadPending() {
  try {
    showPending((await api.get('/approvals?status=pending&limit=1')).pending)
  } catch {
    // The banner or the sign-in page says what is wrong.
  }
}

// --- going from page to page -------------------------------------------------------------------------------

/** @param {string} path */
function pageOf(path) {
  for (const one of PAGES) {
    const match = one.match.exec(path)
    if (match) return { wanted: one, id: match[1] === undefined ? undefined : decoded(match[1]) }
  }
  return { wanted: PAGES[0], id: undefined }
}

/** @param {string} written */
function decoded(written) {
  try {
    return decodeURIComponent(written)
  } catch {
    return written
  }
}

/** @param {string} path @param {{ replace?: boolean }} [options] */
function navigate(path, { replace = false } = {}) {
  if (path !== location.pathname + location.search)
    history[replace ? 'replaceState' : 'pushState'](null, '', path)
  return route()
}

async function route({ first = false } = {}) {
  if (!context) return
  const { wanted, id } = pageOf(location.pathname)
  context.id = id
  if (page?.name === wanted.name && page.close.go) {
    await page.close.go(id)
    return
  }
  routes += 1
  const current = routes
  page?.close()
  page = null
  for (const [name, link] of links) {
    if (name === wanted.name) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  clear(
    main,
    h('h1', { class: 'visually-hidden' }, wanted.label),
    h('div', { class: 'loading' }, h('span', { class: 'spinner' }), 'Loading…'),
  )
  main.scrollTop = 0
  try {
    const module = await wanted.load()
    if (current !== routes) return
    setTitle(module.title)
    clear(main)
    const close = await module.open(main, context)
    if (current !== routes) {
      close()
      return
    }
    page = { name: wanted.name, close }
    if (!first) focusHeading()
  } catch (error) {
    if (current !== routes || api.statusOf(error) === 401) return
    const retry = h('button', { type: 'button', class: 'button small', onclick: () => route() }, 'Try again')
    const message = `This page could not be opened: ${api.messageOf(error)}`
    clear(main, h('div', { class: 'page' }, h('h1', null, wanted.label), banner(message, 'bad', null, retry)))
    if (!(error instanceof api.ApiError)) reportError(error)
  }
}

function focusHeading() {
  const heading = main.querySelector('h1')
  if (!heading || main.contains(document.activeElement)) return
  heading.tabIndex = -1
  focus(heading, { preventScroll: true })
}

/**
 * Whether a click opens a page here, instead of a new tab, a download or another site.
 *
 * @param {MouseEvent} event
 * @param {HTMLAnchorElement} link
 */
function opensHere(event, link) {
  if (event.defaultPrevented || event.button) return false
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return false
  if (link.target || link.hasAttribute('download') || link.origin !== location.origin) return false
  return !SERVED_BY_SERVER.test(link.pathname) && !link.getAttribute('href')?.startsWith('#')
}

document.addEventListener('click', (event) => {
  const link = event.target instanceof Element ? event.target.closest('a[href]') : null
  if (!(link instanceof HTMLAnchorElement) || !opensHere(event, link)) return
  event.preventDefault()
  navigate(link.pathname + link.search)
})
addEventListener('popstate', () => route())

// --- sessions ----------------------------------------------------------------------------------------------

async function start() {
  try {
    context = { ...actions, session: await api.session(), id: undefined }
  } catch (error) {
    if (api.statusOf(error) === 401) signedOut()
    else showUnreachable(api.messageOf(error))
    return
  }
  if (location.search.includes('link=used')) history.replaceState(null, '', location.pathname)
  document.body.replaceChildren(...shell())
  live.start()
  loadPending()
  await route({ first: true })
}

/** @param {string} message */
function showUnreachable(message) {
  const shown = banner(`${message} Trying again…`, 'warn')
  document.body.replaceChildren(h('main', { class: 'page' }, h('h1', null, 'Toolwire'), shown))
  setTimeout(start, RETRY_MS)
}

function signedOut() {
  if (document.body.dataset.signedOut) return
  document.body.dataset.signedOut = 'yes'
  context = null
  live.stop()
  page?.close()
  page = null
  routes += 1
  document.title = 'Sign in · Toolwire'
  for (const dialog of document.querySelectorAll('dialog')) dialog.close()
  signIn(() => {
    delete document.body.dataset.signedOut
    return start()
  })
}

async function refreshSession() {
  if (!context) return
  try {
    const session = await api.session()
    if (context) Object.assign(context.session, session)
  } catch (error) {
    if (api.statusOf(error) === 401) signedOut()
  }
}

api.onSignedOut(signedOut)
api.onCodeNeeded(askForCode)
live.on('state', (state) => {
  showConnection()
  if (state === 'lost') refreshSession() // the session may have ended in another tab
})
live.on('approvals', ({ pending: number }) => (number === undefined ? loadPending() : showPending(number)))
live.on('lost', loadPending)
live.on('settings', refreshSession)
live.on('boot', ({ version }) => {
  if (context && version !== context.session.version) {
    const reload = h(
      'button',
      { type: 'button', class: 'button small', onclick: () => location.reload() },
      'Reload',
    )
    bar.append(banner(`Toolwire was updated to ${version}.`, '', null, reload))
  }
  refreshSession()
})

start()
