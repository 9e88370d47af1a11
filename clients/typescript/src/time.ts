/**
 * A duration: a number of milliseconds, or a text such as `'90 s'`, `'10 min'`, `'1 hour 30 min'`. What only the
 * server reads may be any interval of PostgreSQL.
 */
export type Duration = number | string;

const UNITS: readonly (readonly [RegExp, number])[] = [
  [/^(ms|msecs?|milliseconds?)$/, 1],
  [/^(s|secs?|seconds?)$/, 1000],
  [/^(m|mins?|minutes?)$/, 60_000],
  [/^(h|hrs?|hours?)$/, 3_600_000],
  [/^(d|days?)$/, 86_400_000],
];

/** The text of an interval, for the server. */
export function interval(duration: Duration): string {
  if (typeof duration === 'string') return duration;
  if (!Number.isFinite(duration) || duration < 0) throw new RangeError(`${duration} is not a duration`);
  return `${duration} milliseconds`;
}

/** Milliseconds, for timers of this process. */
export function milliseconds(duration: Duration): number {
  if (typeof duration === 'number') {
    if (Number.isFinite(duration) && duration >= 0) return duration;
    throw new RangeError(`${duration} is not a duration`);
  }
  let total = 0;
  let rest = duration.trim();
  do {
    const [all, amount, name] = /^(\d+(?:\.\d+)?)\s*([a-z]+)\s*/i.exec(rest) ?? [];
    const unit = UNITS.find(([names]) => names.test(name?.toLowerCase() ?? ''))?.[1];
    if (all === undefined || unit === undefined) {
      throw new RangeError(`"${duration}" is not a duration: write one such as '90 s', '10 min' or '1 hour'`);
    }
    total += Number(amount) * unit;
    rest = rest.slice(all.length);
  } while (rest !== '');
  return total;
}

/** A time between half of the duration and all of it. */
export function jitter(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

/** How long to wait after each failure: longer each time, with jitter, until one call succeeds. */
export class Backoff {
  #next: number;

  constructor(
    readonly from = 250,
    readonly to = 30_000,
  ) {
    this.#next = from;
  }

  next(): number {
    const now = this.#next;
    this.#next = Math.min(now * 2, this.to);
    return jitter(now);
  }

  reset(): void {
    this.#next = this.from;
  }
}

/** A wait that another part of the program can end. */
export class Alarm {
  #ring: (() => void) | undefined;
  #rung = false;

  /** Ends the wait, or the next one if there is none now. */
  ring(): void {
    this.#rung = true;
    this.#ring?.();
  }

  /** Waits until `ring` is called, or for `ms`. */
  async wait(ms: number): Promise<void> {
    if (!this.#rung) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(ms, 0x7fff_ffff));
        this.#ring = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#ring = undefined;
    }
    this.#rung = false;
  }
}

/** Waits for a promise, at most for `ms`. Tells whether it has ended. Its failure counts as an end. */
export async function endsWithin(promise: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(resolve, Math.min(ms, 0x7fff_ffff), false);
  });
  try {
    return await Promise.race([
      promise.then(
        () => true,
        () => true,
      ),
      late,
    ]);
  } finally {
    clearTimeout(timer);
  }
}
