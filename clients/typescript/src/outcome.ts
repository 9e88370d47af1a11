import { clean } from './errors.js';
import { type Duration, interval } from './time.js';

/** What becomes of a document. */
export type Action = 'complete' | 'reject' | 'kill' | 'snooze' | 'reschedule' | 'drop';

/** When a document is due: after a duration by the clock of the server, or at a time. */
export type When = Duration | { readonly at: Date | string };

/**
 * What a handler returns or throws, or what `retry` makes of an error, when its document is not just completed
 * with a result. Made by {@link complete}, {@link snooze} and the others.
 */
export class Outcome {
  constructor(
    readonly action: Action,
    /** Further keys of the settlement, as `docs_settle` names them. */
    readonly fields: Readonly<Record<string, unknown>> = {},
  ) {}
}

function time(when: When | undefined): Record<string, string> {
  if (when === undefined) return {};
  if (typeof when !== 'object') return { delay: interval(when) };
  return { due_at: typeof when.at === 'string' ? when.at : when.at.toISOString() };
}

/** Leaves out keys without a value, because `undefined` and a missing key are the same to the server. */
export function given(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** Done. The same as to return the result; `payload` replaces that of the document. */
export function complete(result?: unknown, more: { readonly payload?: unknown } = {}): Outcome {
  return new Outcome('complete', given({ result, payload: more.payload }));
}

/** Failed: it is retried after `delay`, or by the policy of the queue, until its attempts are used up. */
export function reject(
  message: string,
  more: { readonly delay?: When; readonly details?: unknown; readonly refId?: string } = {},
): Outcome {
  const { delay, details, refId } = more;
  return new Outcome('reject', given({ message: clean(message), details, ref_id: refId, ...time(delay) }));
}

/** Given up: it never runs again, and goes to the dead-letter queue if there is one. */
export function kill(
  message: string,
  more: { readonly details?: unknown; readonly payload?: unknown; readonly refId?: string } = {},
): Outcome {
  const { details, payload, refId } = more;
  return new Outcome('kill', given({ message: clean(message), details, payload, ref_id: refId }));
}

/** Not now: as if the document had not been leased. The attempt does not count. */
export function snooze(when?: When): Outcome {
  return new Outcome('snooze', time(when));
}

/** Done for this time, and due again: the attempts begin anew. */
export function reschedule(when: When, more: { readonly payload?: unknown } = {}): Outcome {
  return new Outcome('reschedule', given({ payload: more.payload, ...time(when) }));
}

/** Done, and nothing of it is kept. */
export function drop(): Outcome {
  return new Outcome('drop');
}

/** The outcome that a handler has returned: anything but an {@link Outcome} is the result. */
export function returned(value: unknown): Outcome {
  if (value instanceof Outcome) return value;
  return value === undefined ? new Outcome('complete') : complete(value);
}
