import { type Driver, type Session, open, within } from './driver.js';
import { StopError, classify } from './errors.js';
import { type Job, jobKey } from './job.js';
import * as sql from './sql.js';
import { Alarm, Backoff } from './time.js';

/** How many documents one call extends. */
const AT_ONCE = 1000;
/** No beat is sent more often than this, in milliseconds. */
const LEAST_PAUSE = 20;

/** What the heartbeat needs of its worker. */
export interface HeartbeatHost {
  readonly jobs: ReadonlyMap<string, Job>;
  lost(job: Job): void;
  stopRequested(): void;
  beat(documents: number, lagSeconds: number): void;
  watched<T>(name: string, call: Promise<T>): Promise<T>;
  warn(message: string, error: unknown): void;
}

/**
 * Extends the leases of all documents of the process, on a connection that it keeps: handlers that use up the pool
 * cannot lose a lease. What cannot be extended in time is lost, though the server cannot be asked.
 */
export class Heartbeat {
  readonly #alarm = new Alarm();
  readonly #backoff = new Backoff();
  #session: Session | undefined;
  #sending: Promise<void> | undefined;
  #next = Infinity;
  #notBefore = 0;
  #isEnded = false;
  #loop: Promise<void> | undefined;
  /** When the last call was answered, on the monotonic clock. */
  lastBeat: number | undefined;

  constructor(
    readonly driver: Driver,
    readonly host: HeartbeatHost,
  ) {}

  async start(): Promise<void> {
    this.#session = await this.driver.session?.();
    this.#loop = this.#run();
  }

  /** Takes over a document that was leased. */
  add(job: Job): void {
    if (job.extendAt < this.#next) this.#alarm.ring();
  }

  /** Stores the progress of a document. */
  store(job: Job): Promise<void> {
    return new Promise((resolve, fail) => {
      job.unsaved ??= [];
      job.unsaved.push((error) => {
        if (error) fail(error);
        else resolve();
      });
      this.#alarm.ring();
    });
  }

  /** Whether the loop turns: nothing is long overdue. */
  get isAlive(): boolean {
    return !this.#isEnded && (this.#next === Infinity || performance.now() < this.#next + 30_000);
  }

  async end(): Promise<void> {
    this.#isEnded = true;
    this.#alarm.ring();
    await this.#loop;
    this.#close(this.#sending !== undefined);
  }

  #close(isBroken: boolean): void {
    this.#session?.release(isBroken);
    this.#session = undefined;
  }

  async #run(): Promise<void> {
    while (!this.#isEnded) {
      const now = performance.now();
      let next = Infinity;
      let isDue = false;
      for (const job of this.host.jobs.values()) {
        if (job.isInTransaction || job.state === 'done' || job.isGone) continue;
        if (job.state === 'running' && !job.isStuck) {
          if (job.deadline <= now) {
            this.host.lost(job);
            continue;
          }
          next = Math.min(next, job.deadline);
        }
        if (this.#sending) continue;
        const due = job.unsaved ? 0 : job.isStuck ? Infinity : job.extendAt;
        next = Math.min(next, Math.max(due, this.#notBefore));
        if (due <= now && this.#notBefore <= now) isDue = true;
      }
      if (isDue) {
        this.#sending = this.#send(now).finally(() => {
          this.#sending = undefined;
          this.#alarm.ring();
        });
        continue;
      }
      this.#next = next;
      await this.#alarm.wait(Math.max(next - now, 0));
    }
  }

  /** Sends one call for all documents whose time has come, or comes soon. */
  async #send(now: number): Promise<void> {
    const groups = new Map<string | null, Job[]>();
    let lag = 0;
    for (const job of this.host.jobs.values()) {
      if (job.isInTransaction || job.state === 'done' || job.isGone || job.isStuck) continue;
      const soon = (job.deadline - job.extendAt) / 4;
      if (!job.unsaved && job.extendAt - soon > now) continue;
      if (job.extendAt < Infinity) lag = Math.max(lag, now - job.extendAt);
      const group = groups.get(job.duration);
      if (group) group.push(job);
      else groups.set(job.duration, [job]);
    }
    this.#notBefore = now + LEAST_PAUSE;
    try {
      for (const [duration, group] of groups) {
        for (let at = 0; at < group.length; at += AT_ONCE) {
          await this.#extend(duration, group.slice(at, at + AT_ONCE));
        }
      }
      this.#backoff.reset();
      this.lastBeat = performance.now();
      this.host.beat(
        [...groups.values()].reduce((sum, group) => sum + group.length, 0),
        lag / 1000,
      );
    } catch (error) {
      this.host.warn('the leases cannot be extended', error);
      if (classify(error) === 'connection') this.#close(true);
      // Often enough to reach the server before the first lease is over.
      const shortest = Math.min(...[...groups.values()].flat().map((job) => job.deadline - now));
      this.#notBefore = performance.now() + Math.min(this.#backoff.next(), Math.max(shortest / 8, 50));
    }
  }

  async #extend(duration: string | null, jobs: readonly Job[]): Promise<void> {
    const unsaved = new Map(jobs.map((job) => [job, job.unsaved ?? []]));
    const extensions = jobs.map((job) => ({
      queue: job.queue,
      subject: job.subject,
      lease: job.lease,
      progress: job.unsaved && job.current !== null ? job.current : undefined,
    }));
    for (const job of jobs) job.unsaved = undefined;
    const shortest = Math.min(...jobs.map((job) => job.deadline)) - performance.now();
    // An answer that comes after half of what is left is as good as none.
    const ms = Math.min(Math.max(shortest / 2, 100), 30_000);
    const sentAt = performance.now();
    let rows;
    try {
      const session = (this.#session ??= await within(open(this.driver), ms));
      const call = within(session.query(sql.EXTEND, [JSON.stringify(extensions), duration]), ms);
      rows = await this.host.watched('docs_extend', call);
    } catch (error) {
      // Only progress can be invalid. Without it, the leases are extended.
      const isInvalid = classify(error) === 'invalid';
      for (const [job, tellers] of unsaved) {
        if (tellers.length === 0) continue;
        if (isInvalid) for (const tell of tellers) tell(error as Error);
        else job.unsaved = [...tellers, ...(job.unsaved ?? [])];
      }
      throw error;
    }
    const byKey = new Map(jobs.map((job) => [job.key, job]));
    for (const row of rows) {
      const job = byKey.get(jobKey(row['queue'] ?? '', row['subject'] ?? ''));
      if (!job) continue;
      if (row['stop'] === 'true') this.host.stopRequested();
      const outcome = row['outcome'];
      let error: Error | undefined;
      if (outcome === 'extended' || outcome === 'limited') {
        job.extended(sentAt, Number(row['left_s']) * 1000, outcome === 'limited');
      } else {
        if (job.state !== 'done' && !job.isInTransaction) {
          if (outcome === 'cancelled') job.stop('cancelled');
          else this.host.lost(job);
        }
        error = job.stopped ?? new StopError('lost');
      }
      for (const tell of unsaved.get(job) ?? []) tell(error);
    }
  }

  /** Progress of a document that is gone, or settled, is not stored. */
  forget(job: Job): void {
    for (const tell of job.unsaved?.splice(0) ?? []) tell(job.stopped ?? new StopError('lost'));
    job.unsaved = undefined;
  }
}
