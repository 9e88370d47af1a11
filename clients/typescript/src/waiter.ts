import { type Driver, type Session, open, textArray, within } from './driver.js';
import { classify } from './errors.js';
import { type Job, jobKey } from './job.js';
import * as sql from './sql.js';
import { Alarm, Backoff, endsWithin, jitter } from './time.js';

/**
 * Leases are watched that are at least as old, in milliseconds. The end of a document that is watched ends the wait,
 * so short documents are not.
 */
const WATCHED_AGE = 200;
/** How long a wait is while there are younger ones, and how long one is that nothing else ends. */
const SHORT_WAIT = 150;
/** The same while a handler goes on whose document is gone, so that nothing tells of its end. */
const MIDDLE_WAIT = 2000;
/** How often a process that has nothing to wait for asks whether it shall stop. */
const ASK_INTERVAL = 1000;
/** How many leases one wait watches. The heartbeat looks at all of them. */
const MAX_WATCHED = 1000;

/** A queue and a version, as the session that waits sees it. */
export interface WaitingLane {
  readonly queue: string;
  /** It has room, and got fewer documents than it has asked for. */
  readonly isHungry: boolean;
  /** A call is under way or comes soon, after which it may be hungry. */
  readonly isBusy: boolean;
  /** Ends when no call is under way. */
  settledDown(): Promise<void>;
  kick(): void;
}

/** What a session that waits needs of its worker. */
export interface WaiterHost {
  readonly name: string;
  readonly jobs: ReadonlyMap<string, Job>;
  readonly isStopping: boolean;
  readonly waitMs: number;
  readonly pollMs: number;
  /** The application wants no session that waits. */
  readonly isPolling: boolean;
  lost(job: Job): void;
  stopRequested(): void;
  warn(message: string, error: unknown): void;
  fail(error: unknown): void;
}

/**
 * One session that waits for everything: documents of all queues, requests to stop, and the end of leases. "Ready"
 * is only a hint. Where no session can wait, it has the queues look from time to time.
 */
export class Waiter {
  readonly #alarm = new Alarm();
  readonly #backoff = new Backoff();
  #session: Session | undefined;
  #mark: string | null;
  #isEnded = false;
  #pollUntil = 0;
  #pollTime = 30_000;
  #fruitless = 0;
  #hasYielded = false;
  /** When the server was asked last. */
  #asked = 0;
  #loop: Promise<void> | undefined;
  isWaiting = false;

  constructor(
    readonly driver: Driver,
    readonly host: WaiterHost,
    readonly version: number,
    readonly lanes: readonly WaitingLane[],
    /** One waiter of a process watches its leases. */
    readonly watchesLeases: boolean,
    mark: string | null,
  ) {
    this.#mark = mark;
  }

  async start(): Promise<void> {
    if (this.host.isPolling) this.#pollUntil = Infinity;
    else this.#session = await this.driver.session?.();
    this.#loop = this.#run();
  }

  /** Something has changed that the wait has to know. It is told if it does not wait in the server. */
  changed(): void {
    this.#alarm.ring();
  }

  /** Ends the wait, and begins it anew with what is true now. */
  interrupt(): void {
    if (this.isWaiting) this.#session?.cancel();
    this.#alarm.ring();
  }

  /**
   * Gives the connection back for a while, because other calls of the process may wait for it behind a pooler.
   */
  yieldConnection(): boolean {
    if (this.#pollUntil > performance.now()) return false;
    this.#pollTime = Math.min(this.#pollTime * 2, 600_000);
    this.#pollUntil = performance.now() + this.#pollTime;
    this.#hasYielded = this.isWaiting;
    this.#close(true);
    this.#alarm.ring();
    return true;
  }

  async end(): Promise<void> {
    this.#isEnded = true;
    this.interrupt();
    // A wait that cannot be cancelled ends with its connection.
    const timer = setTimeout(() => {
      this.#close(true);
    }, 1000);
    await this.#loop;
    clearTimeout(timer);
    this.#close(false);
  }

  #close(isBroken: boolean): void {
    this.#session?.release(isBroken);
    this.#session = undefined;
  }

  async #run(): Promise<void> {
    while (!this.#isEnded) {
      if (this.#pollUntil > performance.now()) await this.#poll();
      else await this.#wait();
    }
  }

  /** Lets the queues look, and sleeps. */
  async #poll(): Promise<void> {
    for (const lane of this.lanes) if (lane.isHungry) lane.kick();
    await this.#alarm.wait(jitter(this.host.pollMs));
  }

  async #wait(): Promise<void> {
    const { host } = this;
    // What a call brings decides what to wait for.
    await endsWithin(Promise.all(this.lanes.map((lane) => lane.settledDown())), 1000);
    const hungry = host.isStopping ? [] : this.lanes.filter((lane) => lane.isHungry);
    const watched = new Map<string, Job>();
    let longest = this.lanes.some((lane) => lane.isBusy) ? SHORT_WAIT : host.waitMs;
    if (this.watchesLeases) {
      const before = performance.now() - WATCHED_AGE;
      for (const [key, job] of host.jobs) {
        if (job.isGone) longest = Math.min(longest, MIDDLE_WAIT);
        else if (job.state !== 'running' || job.isInTransaction || job.beganAt > before) longest = SHORT_WAIT;
        else if (watched.size < MAX_WATCHED) watched.set(key, job);
      }
    }
    let waited: readonly WaitingLane[] = hungry;
    if (hungry.length === 0 && watched.size === 0) {
      // All slots are in use, by short documents. Whatever frees one rings. A request to stop is asked for.
      if (performance.now() < this.#asked + ASK_INTERVAL || host.isStopping) {
        await this.#alarm.wait(SHORT_WAIT);
        return;
      }
      waited = this.lanes;
      longest = 0;
    }
    this.#asked = performance.now();
    const leases = Array.from(watched.values(), ({ queue, subject, lease }) => ({ queue, subject, lease }));
    const ms = longest === host.waitMs ? jitter(longest) : longest;
    let answer: Answer;
    try {
      const session = (this.#session ??= await within(open(this.driver), 30_000));
      this.isWaiting = true;
      const queues = textArray(waited.map((lane) => lane.queue));
      const values = [
        queues,
        host.name,
        `${Math.ceil(ms)} milliseconds`,
        JSON.stringify(leases),
        String(this.version),
        this.#mark,
      ];
      const [row] = await within(session.query(sql.WAIT, values), ms + 30_000);
      answer = row ?? {};
      this.#backoff.reset();
    } catch (error) {
      await this.#failed(error);
      return;
    } finally {
      this.isWaiting = false;
    }
    if (answer.mark != null) this.#mark = readMark(answer.mark);
    await this.#act(answer, watched);
  }

  async #act(answer: Answer, watched: ReadonlyMap<string, Job>): Promise<void> {
    const queue = answer.queue ?? '';
    switch (answer.event) {
      case 'stop':
        this.host.stopRequested();
        break;
      case 'cancelled':
      case 'lost':
        for (const subject of readArray(answer.subjects)) {
          const key = jobKey(queue, subject);
          const job = watched.get(key);
          // It may have been settled since, and leased anew.
          if (job?.state !== 'running' || job.isInTransaction || this.host.jobs.get(key) !== job) continue;
          if (answer.event === 'cancelled') job.stop('cancelled');
          else this.host.lost(job);
        }
        break;
      case 'ready':
      case 'resumed': {
        const lane = this.lanes.find((one) => one.queue.toLowerCase() === queue);
        if (!lane?.isHungry || this.host.isStopping) break;
        lane.kick();
        await lane.settledDown();
        // Another worker was faster. Sessions that all come again at once would get in each other's way.
        // eslint-disable-next-line @typescript-eslint/no-unnecessary-condition -- it may have changed meanwhile
        this.#fruitless = lane.isHungry ? this.#fruitless + 1 : 0;
        if (this.#fruitless > 1) await this.#alarm.wait(jitter(Math.min(2 ** this.#fruitless, 500)));
        break;
      }
      default:
    }
  }

  async #failed(error: unknown): Promise<void> {
    const { code } = error as { code?: unknown };
    const hasYielded = this.#hasYielded;
    this.#hasYielded = false;
    // It was interrupted, or gives the connection to others.
    if (this.#isEnded || hasYielded || code === '57014') return;
    const kind = classify(error);
    if (kind === 'configuration') {
      this.host.fail(error);
      return;
    }
    if (kind === 'invalid') {
      this.host.warn('no session can wait here, so the worker polls', error);
      this.#pollUntil = Infinity;
      this.#close(false);
      return;
    }
    this.host.warn('the session that waits has failed', error);
    this.#close(true);
    // Without it, the queues look by themselves.
    for (const lane of this.lanes) if (lane.isHungry) lane.kick();
    await this.#alarm.wait(this.#backoff.next());
  }
}

interface Answer {
  readonly event?: string | null;
  readonly queue?: string | null;
  readonly subjects?: unknown;
  readonly mark?: unknown;
}

/** What the next wait is given of the requests to stop that this one knows, as the text of an array. */
export function readMark(value: unknown): string | null {
  return value == null ? null : textArray(readArray(value).map(String));
}

/** Reads an array of texts, also where the driver does not. */
function readArray(value: unknown): string[] {
  if (Array.isArray(value)) return value as string[];
  if (typeof value !== 'string') return [];
  return Array.from(value.slice(1, -1).matchAll(/"((?:[^"\\]|\\.)*)"|([^,]+)/g), ([, quoted, plain = '']) =>
    plain === '' ? (quoted ?? '').replace(/\\(.)/g, '$1') : plain,
  );
}
