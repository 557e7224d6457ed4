// Numbers and times for charts and tables. Pure functions.

import { ms } from './dom.js'

/** A number in few characters: 1,234 stays, 12,345 is 12k. @param {number | null | undefined} count */
export function short(count) {
  if (count === null || count === undefined) return '–'
  if (Math.abs(count) >= 1e6) return `${(count / 1e6).toFixed(Math.abs(count) < 1e7 ? 1 : 0)}M`
  if (Math.abs(count) >= 1e4) return `${Math.round(count / 1e3)}k`
  return Math.round(count).toLocaleString()
}

/**
 * A round number that is at least the value and at least 2; 1 if the value is 0.
 *
 * @param {number} most
 */
export function niceTop(most) {
  if (most <= 0) return 1
  const power = 10 ** Math.floor(Math.log10(most))
  const factor = [1, 2, 4, 5, 8].find((one) => most <= one * power) ?? 10
  return Math.max(2, factor * power)
}

/** A round step of a scale that is at least the value. @param {number} rough */
export function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 0.001)))
  const factor = [1, 2, 5].find((one) => rough <= one * power) ?? 10
  return factor * power
}

/** The lowest and the highest of some times in milliseconds. @param {(number | null)[]} values */
export function range(values) {
  const known = values.filter((value) => value !== null)
  return known.length ? `${ms(Math.min(...known))} and ${ms(Math.max(...known))}` : 'no values'
}

/**
 * The time of day, with the weekday if buckets are long.
 *
 * @param {number} at in seconds since 1970
 * @param {number} bucketSeconds
 */
export function clockTime(at, bucketSeconds) {
  /** @type {Intl.DateTimeFormatOptions} */
  const options = { hour: '2-digit', minute: '2-digit', hour12: false }
  if (bucketSeconds >= 7200) options.weekday = 'short'
  return new Date(at * 1000).toLocaleString(undefined, options)
}

const HOUR_S = 3600
const DAY_S = 24 * HOUR_S
/** Round steps of a time axis, in seconds. */
const TIME_STEPS = [300, 600, 900, 1800, HOUR_S, 2 * HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, DAY_S]

/**
 * The marks of a time axis: round times of the day between `start` and `end`, in seconds since 1970. Midnight
 * is written as the new day, so that an axis over several days says where each begins.
 *
 * @param {number} start
 * @param {number} end
 * @param {number} most the highest number of marks
 */
export function timeMarks(start, end, most) {
  const step =
    TIME_STEPS.find((one) => (end - start) / one <= most) ?? Math.ceil((end - start) / most / DAY_S) * DAY_S
  const marks = []
  const day = new Date(start * 1000)
  for (day.setHours(0, 0, 0, 0); day.getTime() / 1000 <= end; ) {
    const midnight = day.getTime() / 1000
    day.setDate(day.getDate() + Math.max(1, step / DAY_S))
    for (let at = midnight; at < Math.min(end + 1, day.getTime() / 1000); at += step)
      if (at >= start) marks.push({ at, label: at === midnight ? weekday(at) : clockTime(at, 0) })
  }
  return marks
}

/** @param {number} at */
const weekday = (at) =>
  new Date(at * 1000).toLocaleDateString(undefined, { weekday: 'short', day: 'numeric' })

/** A part as a percentage. @param {number} part @param {number} whole */
export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(part * 10 < whole ? 1 : 0)} %` : ''
}

/** The length of a bucket, as in "per hour". @param {number} seconds */
export function perBucket(seconds) {
  if (seconds === 3600) return 'per hour'
  return seconds > 3600 ? `per ${seconds / 3600} h` : `per ${Math.round(seconds / 60)} min`
}

/**
 * Milliseconds as seconds with a sign, always in the same form, so that columns line up.
 *
 * @param {number | null | undefined} count
 */
export function offset(count) {
  if (count === null || count === undefined) return ''
  return `${count < 0 ? '−' : '+'}${(Math.abs(count) / 1000).toFixed(3)}`
}

/**
 * The index of the value that is nearest in a sorted list, or -1.
 *
 * @param {number[]} values
 * @param {number} wanted
 */
export function nearest(values, wanted) {
  let low = 0
  let high = values.length - 1
  while (low < high) {
    const middle = (low + high) >> 1
    if (values[middle] < wanted) low = middle + 1
    else high = middle
  }
  if (low > 0 && wanted - values[low - 1] < values[low] - wanted) return low - 1
  return low < values.length ? low : -1
}
