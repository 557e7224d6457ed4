// The pointer on a timeline: it shows the time, a drag zooms in, and a click opens the nearest row.

/** @import { Layout, Timeline } from './timeline.js' */

import { svg, text } from './dom.js'
import { nearest } from './numbers.js'
import { momentText } from './timeline-phases.js'

const DRAG = 5 // pixels

/** @param {Timeline} timeline */
export function followPointer(timeline) {
  const { canvas } = timeline
  const band = svg('rect', { class: 'band', y: 0 })
  /** @type {{ x: number, at: number } | null} */
  let drag = null
  let dragged = false
  /** @param {MouseEvent} event @param {Layout} layout */
  const timeAt = (event, { from, to, start, space }) => {
    const x = event.clientX - canvas.getBoundingClientRect().left
    return from + ((x - start) / space) * (to - from)
  }
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button || !timeline.layout || event.pointerType === 'touch') return
    drag = { x: event.clientX, at: timeAt(event, timeline.layout) }
    dragged = false
  })
  canvas.addEventListener('pointermove', (event) => {
    if (!timeline.layout) return
    const at = timeAt(event, timeline.layout)
    text(timeline.readout, at >= timeline.layout.from && at <= timeline.layout.to ? momentText(at) : '')
    if (!drag || Math.abs(event.clientX - drag.x) < DRAG) return
    if (!dragged) {
      dragged = true
      canvas.setPointerCapture(event.pointerId)
    }
    const box = canvas.getBoundingClientRect()
    band.setAttribute('x', String(Math.min(drag.x, event.clientX) - box.left))
    band.setAttribute('width', String(Math.abs(drag.x - event.clientX)))
    band.setAttribute('height', String(box.height))
    if (!band.isConnected) canvas.append(band)
  })
  canvas.addEventListener('pointerleave', () => text(timeline.readout, ''))
  canvas.addEventListener('pointerup', (event) => {
    const begun = drag
    drag = null
    band.remove()
    if (!begun || !dragged || !timeline.layout) return
    const at = timeAt(event, timeline.layout)
    timeline.zoom(Math.min(begun.at, at), Math.max(begun.at, at))
  })
  canvas.addEventListener('click', (event) => {
    if (dragged || !timeline.layout) {
      dragged = false
      return
    }
    const y = event.clientY - canvas.getBoundingClientRect().top
    const lane = timeline.layout.lanes.find((one) => y >= one.top && y <= one.bottom)
    if (!lane) return
    const { at, index } = timeline.lanes[lane.kind]
    const row = nearest(at, timeAt(event, timeline.layout))
    if (row >= 0) timeline.onrow(lane.kind, index[row])
  })
}
