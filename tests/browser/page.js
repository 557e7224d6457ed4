// The page that the unit tests draw into: happy-dom, with frames and sizes under the tests' control.

import { Window } from 'happy-dom'

const window = new Window({ url: 'http://localhost/', settings: { disableJavaScriptEvaluation: true } })

/** @type {(() => void)[]} */
const frames = []
/** @type {Map<Element, ResizeObserverCallback>} */
const observers = new Map()

class ManualResizeObserver {
  /** @param {ResizeObserverCallback} callback */
  constructor(callback) {
    this.callback = callback
  }
  /** @param {Element} node */
  observe(node) {
    observers.set(node, this.callback)
  }
  unobserve() {}
  disconnect() {}
}

const names = [
  'document',
  'location',
  'history',
  'Node',
  'Element',
  'HTMLElement',
  'HTMLInputElement',
  'HTMLSelectElement',
  'SVGElement',
  'DOMException',
  'Event',
  'MouseEvent',
]
for (const name of names) Reflect.set(globalThis, name, Reflect.get(window, name))
Object.assign(globalThis, {
  ResizeObserver: ManualResizeObserver,
  requestAnimationFrame: (/** @type {() => void} */ frame) => frames.push(frame),
  cancelAnimationFrame: () => frames.splice(0),
})

/** Runs frames until none is waiting. */
export function runFrames() {
  while (frames.length) frames.shift()?.()
}

/**
 * Gives a node a size, as the browser's layout would.
 *
 * @param {Element} node
 * @param {number} width
 * @param {number} height
 */
export function resize(node, width, height) {
  const entry = /** @type {ResizeObserverEntry} */ ({ contentRect: { width, height } })
  observers.get(node)?.([entry], new ResizeObserver(() => {}))
}

/** The markup of a node's children. @param {ParentNode} node */
export function html(node) {
  const holder = document.createElement('div')
  for (const child of node.childNodes) holder.append(child.cloneNode(true))
  return holder.innerHTML
}

/** All elements of a node, outermost first. @param {ParentNode} node */
export const elements = (node) => [...node.querySelectorAll('*')]

/**
 * The first element that matches; a test fails if there is none.
 *
 * @param {ParentNode} node
 * @param {string} selector
 */
export function find(node, selector) {
  const found = node.querySelector(selector)
  if (!found) throw new Error(`There is no ${selector} in ${html(node)}`)
  return found
}
