import { type Driver, type Session, open, textArray, within } from './driver.js';
import { classify } from './errors.js';
import { type Job, jobKey } from './job.js';
import * as sql from './sql.js';
import { Alarm, Backoff, endsWithin, jitter } from './time.js';

/**
 * Leases are watched that are at least as old, in milliseconds. The end of a document that is watched ends the wait,
 * so short documents are not.
 */
const WATCHED_AGE = 30;
/** How long the settlement that lets a lane be hungry may take to end the wait by itself. */
const GRACE = 5;
/** After how long a request to cancel is made again. */
const AGAIN = 200;
/** No document has this version: who waits for it is told of requests to stop and of leases only. */
const NO_VERSION = -(2 ** 31);
/** How many leases one wait watches. The heartbeat looks at all of them. */
const MAX_WATCHED = 1000;

/** A queue and a version, as the session that waits sees it. */
export interface WaitingLane {
  readonly queue: string;
  /** It has room, and got fewer documents than it has asked for. */
  readonly isHungry: boolean;
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
  /** What the session in the server waits for. */
  #waited: readonly WaitingLane[] = [];
  #watched: ReadonlyMap<string, Job> = new Map();
  #timer: NodeJS.Timeout | undefined;
  /** Since when all slots are in use, or since the wait before has ended. */
  #busySince: number | undefined;
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

  /** A lane has room. */
  hungry(): void {
    if (this.isWaiting) this.#lookIn(GRACE);
    else this.#alarm.ring();
  }

  /** Documents were leased. */
  leased(): void {
    if (this.#timer === undefined) this.#lookIn(WATCHED_AGE);
  }

  /** Ends the wait, and begins it anew with what is true now. */
  interrupt(): void {
    this.#alarm.ring();
    if (!this.isWaiting) return;
    this.#session?.cancel();
    // A request that is there before the statement cancels nothing.
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.interrupt(), AGAIN);
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

  /** What there is to wait for now, and in how many milliseconds the next lease is old enough. */
  #needs(): { hungry: readonly WaitingLane[]; leases: Map<string, Job>; nextLease: number } {
    const { jobs, isStopping } = this.host;
    const hungry = isStopping ? [] : this.lanes.filter((lane) => lane.isHungry);
    const leases = new Map<string, Job>();
    // Timers may be early by a millisecond.
    const old = performance.now() - WATCHED_AGE + 1;
    let nextLease = Infinity;
    for (const [key, job] of this.watchesLeases ? jobs : []) {
      if (job.isGone || job.state !== 'running' || job.isInTransaction) continue;
      if (job.beganAt > old) nextLease = Math.min(nextLease, job.beganAt - old);
      else if (leases.size < MAX_WATCHED) leases.set(key, job);
    }
    return { hungry, leases, nextLease };
  }

  /** Looks soon whether the session in the server still waits for all that there is to wait for. */
  #lookIn(ms: number): void {
    if (!this.isWaiting || ms === Infinity) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      const { hungry, leases, nextLease } = this.#needs();
      const isMissing =
        hungry.some((lane) => !this.#waited.includes(lane)) ||
        [...leases.keys()].some((key) => !this.#watched.has(key));
      if (isMissing) this.interrupt();
      else this.#lookIn(nextLease);
    }, ms);
  }

  async #wait(): Promise<void> {
    const { host } = this;
    // What a call brings decides what to wait for.
    await endsWithin(Promise.all(this.lanes.map((lane) => lane.settledDown())), 1000);
    const { hungry, leases: watched, nextLease } = this.#needs();
    if (hungry.length === 0) {
      // All slots are in use. Where that is for a moment only, the next wait is for documents.
      this.#busySince ??= performance.now();
      const rest = this.watchesLeases ? this.#busySince + WATCHED_AGE - performance.now() : Infinity;
      if (rest > 0 || (host.isStopping && watched.size === 0)) {
        await this.#alarm.wait(Math.max(rest, WATCHED_AGE / 2));
        return;
      }
    }
    this.#busySince = undefined;
    this.#watched = watched;
    this.#waited = hungry;
    const leases = Array.from(watched.values(), ({ queue, subject, lease }) => ({ queue, subject, lease }));
    const ms = hungry.length > 0 && nextLease < host.waitMs ? nextLease : jitter(host.waitMs);
    let answer: Answer;
    try {
      const session = (this.#session ??= await within(open(this.driver), 30_000));
      this.isWaiting = true;
      if (hungry.length === 0) this.#lookIn(nextLease);
      const [queues, version] = hungry.length > 0 ? [hungry, this.version] : [this.lanes, NO_VERSION];
      const values = [
        textArray(queues.map((lane) => lane.queue)),
        host.name,
        `${Math.ceil(ms)} milliseconds`,
        JSON.stringify(leases),
        String(version),
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
      clearTimeout(this.#timer);
      this.#timer = undefined;
    }
    if (answer.mark != null) this.#mark = readMark(answer.mark);
    await this.#act(answer);
  }

  async #act(answer: Answer): Promise<void> {
    const queue = answer.queue ?? '';
    switch (answer.event) {
      case 'stop':
        this.host.stopRequested();
        break;
      case 'cancelled':
      case 'lost':
        for (const subject of readArray(answer.subjects)) {
          const key = jobKey(queue, subject);
          const job = this.#watched.get(key);
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
