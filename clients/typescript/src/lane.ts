import { classify, text } from './errors.js';
import { Job } from './job.js';
import { type Outcome, snooze } from './outcome.js';
import * as sql from './sql.js';
import { type Json, TASK_HEADER } from './task.js';
import { Backoff, interval, jitter } from './time.js';
import type { Row } from './driver.js';
import type { Registration } from './registration.js';
import type { WaitingLane } from './waiter.js';
import type { Worker } from './worker.js';

/** How long a settlement waits for others while handlers run, in milliseconds. */
const LINGER = 3;
/** How often the settlement of one document is sent again that the server refuses for now. */
const REFUSALS = 8;
/** How many settlements one call takes. */
const AT_ONCE = 1000;
/** How many settlements wait for no others though more handlers end in the same turn of the event loop. */
const WORTH_A_CALL = 100;
/** How many calls are under way where there is a backlog: the server works on one while the handlers work on the other. */
const CALLS = 2;

/** Slots of a queue. Its versions share them. */
export class Slots {
  used = 0;
  /** Asked for, in a call that is under way. */
  asked = 0;

  constructor(readonly limit: number) {}

  get free(): number {
    return this.limit - this.used - this.asked;
  }
}

/** One version of one queue: settles what was done, and leases what comes next, in one call. */
export class Lane implements WaitingLane {
  /** The turn among the lanes of the process, by weight: the one with the least asks next. */
  turn = 0;
  isHungry = false;
  readonly #finished: Job[] = [];
  /** Whose settlement the server has refused for now. */
  readonly #later = new Set<Job>();
  readonly #backoff = new Backoff();
  /** Under way. */
  readonly #calls = new Set<Promise<void>>();
  #isDrained = false;
  /** The last answer has brought all that was asked for, so there is a backlog. */
  #isFull = false;
  /** When it was told that there may be documents, which an answer to an earlier call does not know. */
  #kickedAt = 0;
  #timer: NodeJS.Timeout | undefined;
  #turn: NodeJS.Immediate | undefined;
  #hasLingered = false;
  #isPausing = false;
  /** When the first call was sent whose answer was lost. */
  #lostCallAt: number | undefined;
  /** The size of a payload, rather too great than too small. */
  #size = 0;
  readonly #shortestLease: number;
  /** Where tasks share the queue, the lease is the shortest of theirs. */
  readonly #duration: string | null;
  /** The task of documents that name none, as those of producers without this package. */
  readonly #unnamed: Registration | undefined;

  constructor(
    readonly worker: Worker,
    readonly queue: string,
    readonly version: number,
    readonly slots: Slots,
    readonly weight: number,
    /** By name of the task. */
    readonly tasks: ReadonlyMap<string, Registration>,
  ) {
    this.#shortestLease = Math.min(...Array.from(tasks.values(), ({ leaseMs }) => leaseMs ?? Infinity));
    const [only, another] = tasks.values();
    this.#unnamed = another ? tasks.get(queue) : only;
    this.#duration = another
      ? Number.isFinite(this.#shortestLease)
        ? interval(this.#shortestLease)
        : null
      : (only?.lease ?? null);
  }

  get isBusy(): boolean {
    return this.#calls.size > 0 || this.#finished.length > 0 || this.#later.size > 0;
  }

  /** Whether it wants more documents than it has. */
  get wants(): boolean {
    return !this.#isDrained && !this.#isPausing && !this.worker.isStopping && this.slots.free > 0;
  }

  async settledDown(): Promise<void> {
    await Promise.all(this.#calls);
  }

  /** There may be documents. */
  kick(): void {
    this.#isDrained = false;
    this.#kickedAt = performance.now();
    this.#look();
    this.pump();
  }

  /** A handler has ended. */
  settle(job: Job): void {
    this.#finished.push(job);
    // So many are worth a call. The others end while it is under way, which keeps both sides busy.
    if (this.#finished.length >= this.#worth) this.pump();
    this.pumpSoon();
  }

  /** Calls when all handlers have ended that end in this turn of the event loop, so that one call settles them. */
  pumpSoon(): void {
    this.#turn ??= setImmediate(() => {
      this.#turn = undefined;
      this.worker.pump();
    });
  }

  /** Ends the pause after a failure. */
  hurry(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isPausing = false;
    this.#hasLingered = true;
    this.pump();
  }

  /** Calls, if there is something to call for. */
  pump(): void {
    if (this.#isPausing || (this.#calls.size > 0 && !this.#mayAdd)) return;
    const want = this.worker.ask(this, this.#size);
    const count = this.#finished.length;
    // What is too little for a call of its own goes with the next one.
    if (this.#calls.size > 0 && Math.max(count, want) < this.#worth) return;
    if (count === 0 && (want === 0 || (this.#isDrained && this.#lostCallAt === undefined))) {
      this.#look();
      return;
    }
    const isAlone = this.slots.used === 0 || count >= this.slots.limit / 2 || count >= AT_ONCE;
    if (count > 0 && !isAlone && !this.#hasLingered) {
      this.#timer ??= setTimeout(
        () => {
          this.#timer = undefined;
          this.#hasLingered = true;
          this.pump();
        },
        Math.min(LINGER, this.#shortestLease / 10),
      );
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#hasLingered = false;
    this.worker.calls += 1;
    const call = this.#next(want).then((leased) => {
      this.worker.calls -= 1;
      this.#calls.delete(call);
      this.#look();
      this.worker.pump();
      // A call that is sent now goes first: the server works on it while the handlers run.
      if (this.isBusy) setImmediate(() => this.#begin(leased));
      else this.#begin(leased);
    });
    this.#calls.add(call);
  }

  /** So many documents are worth a call while others run. */
  get #worth(): number {
    return Math.max(this.slots.limit / CALLS, WORTH_A_CALL);
  }

  /**
   * Whether another call may join those under way. What a lost call has leased is found alone: it cannot be told from
   * what another one is just leasing.
   */
  get #mayAdd(): boolean {
    const isBusy = this.#calls.size >= CALLS || this.worker.calls >= this.worker.mostCalls;
    return this.#isFull && this.#lostCallAt === undefined && !isBusy;
  }

  #look(): void {
    const was = this.isHungry;
    this.isHungry = this.#isDrained && !this.worker.isStopping && this.slots.free > 0 && this.worker.hasRoom;
    if (this.isHungry && !was) this.worker.laneIsHungry(this);
  }

  /** Never fails. Gives what was leased, which has its slots already. */
  async #next(want: number): Promise<[Job, Registration | undefined][]> {
    const batch = this.#finished.splice(0, AT_ONCE);
    for (const job of batch) job.isSent = true;
    this.slots.asked += want;
    this.worker.asked += want;
    const sentAt = performance.now();
    let rows: Row[] = [];
    try {
      if (this.#lostCallAt !== undefined) {
        await this.#settle(batch);
        await this.#findLost(this.#lostCallAt);
        this.#lostCallAt = undefined;
      }
      const unsettled = batch.filter((job) => job.state !== 'done' && !this.#later.has(job));
      if (want > 0) rows = await this.#lease(unsettled, want);
      else await this.#settle(unsettled);
      this.#backoff.reset();
    } catch (error) {
      this.#failed(error, batch, sentAt);
    } finally {
      this.slots.asked -= want;
      this.worker.asked -= want;
    }
    if (want > 0) {
      this.#isFull = rows.length === want;
      this.#isDrained = !this.#isFull && this.#kickedAt <= sentAt;
      this.turn += rows.length / this.weight;
    }
    return this.#take(rows, sentAt);
  }

  /** Settles and leases in one commit. Where a settlement is in the way, it is settled alone first. */
  async #lease(batch: readonly Job[], want: number): Promise<Row[]> {
    const next = (jobs: readonly Job[]): Promise<Row[]> => {
      const values = [this.queue, list(jobs), String(want), this.#duration, String(this.version), this.worker.name];
      return this.worker.call('docs_next', sql.NEXT, values);
    };
    try {
      const rows = await next(batch);
      for (const job of batch) this.worker.settled(job, true);
      return rows;
    } catch (error) {
      if (batch.length === 0 || classify(error) === 'connection') throw error;
    }
    await this.#settle(batch);
    return next([]);
  }

  /** Settles each document by itself, so that none is in the way of another. */
  async #settle(batch: readonly Job[]): Promise<void> {
    if (batch.length === 0) return;
    let rows: Row[];
    try {
      rows = await this.worker.call('docs_settle', sql.SETTLE, [this.queue, list(batch), 'report']);
    } catch (error) {
      const kind = classify(error);
      if (kind === 'connection') throw error;
      const [first] = batch;
      if (batch.length > 1) {
        const half = batch.length >> 1;
        await this.#settle(batch.slice(0, half));
        await this.#settle(batch.slice(half));
      } else if (first && !/^(invalid|configuration)$/.test(kind)) {
        this.#settleLater(first, error);
      } else if (first && !first.isReplaced) {
        first.log.error('the outcome of the handler is not valid', { error: text(error) });
        first.replace(error);
        await this.#settle(batch);
      } else if (first) {
        this.#giveUp(first, error);
      }
      return;
    }
    rows.forEach((row, at) => {
      const job = batch[at];
      if (job) this.worker.settled(job, row['outcome'] === 'settled' || row['outcome'] === 'repeated');
    });
  }

  /** The server refuses for a while, as with a conflict: others are not kept waiting. */
  #settleLater(job: Job, error: unknown): void {
    job.isSent = false;
    job.refusals += 1;
    if (job.refusals > REFUSALS) {
      this.#giveUp(job, error);
      return;
    }
    this.worker.warn(`queue ${this.queue}: a document cannot be settled, which is tried again`, error);
    this.#later.add(job);
    const timer = setTimeout(
      () => {
        this.#later.delete(job);
        if (job.state === 'finished') this.settle(job);
      },
      jitter(250 * 2 ** job.refusals),
    );
    timer.unref();
  }

  #giveUp(job: Job, error: unknown): void {
    job.log.error('the document cannot be settled, its lease will expire', { error: text(error) });
    this.worker.release(job);
  }

  /** Hands back what was leased by a call whose answer was lost. */
  async #findLost(since: number): Promise<void> {
    const age = `${Math.ceil(performance.now() - since) + 1000} milliseconds`;
    const values = [this.queue, this.worker.name, String(this.version), age];
    const rows = await this.worker.call('lease_list', sql.LEASES, values);
    const mine = new Set(Array.from(this.worker.jobs.values(), (job) => `${job.key}\n${job.lease}`));
    const lost = rows.filter(
      (row) => !mine.has(`${this.queue.toLowerCase()}\n${row['subject'] ?? ''}\n${row['lease'] ?? ''}`),
    );
    if (lost.length === 0) return;
    const settlements = lost.map(({ subject, lease }) => ({ subject, lease, action: 'snooze' }));
    await this.worker.call('docs_settle', sql.SETTLE, [this.queue, JSON.stringify(settlements), 'report']);
    this.worker.logger.info('documents were handed back that a lost answer had leased', {
      queue: this.queue,
      documents: lost.length,
      worker: this.worker.name,
    });
  }

  #failed(error: unknown, batch: readonly Job[], sentAt: number): void {
    const kind = classify(error);
    const again = batch.filter((job) => job.state !== 'done' && !this.#later.has(job));
    for (const job of again) {
      job.isSent = false;
      // It may have been committed, which some actions do not show when they are sent again.
      if (kind === 'connection') job.isAmbiguous = true;
    }
    this.#finished.unshift(...again);
    if (kind === 'connection') this.#lostCallAt = Math.min(this.#lostCallAt ?? sentAt, sentAt);
    if (kind === 'configuration') {
      this.worker.fail(error);
    } else {
      this.worker.warn(`queue ${this.queue}: the call has failed, and is made again`, error);
    }
    this.#isPausing = true;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.hurry();
    }, this.#backoff.next());
  }

  #take(rows: readonly Row[], sentAt: number): [Job, Registration | undefined][] {
    if (rows.length > 0) this.worker.hasLeased();
    const now = performance.now();
    return rows.map((row) => {
      const { registration, name } = this.#taskOf(row);
      const duration = registration?.lease ?? this.#duration;
      const job = new Job(this.worker, this.queue, name, this.version, row, sentAt, now, duration);
      this.#size = Math.max(job.payload.length, this.#size * 0.9);
      this.worker.begin(job, this);
      return [job, registration];
    });
  }

  #begin(leased: readonly [Job, Registration | undefined][]): void {
    const batches = new Map<Registration, Job[]>();
    for (const [job, registration] of leased) {
      if (job.isGone) this.worker.ended(job);
      else if (this.worker.isStopping) this.#giveBack(job, snooze());
      else if (!registration) this.#giveBack(job, this.#unknown(job));
      else if (registration.kind !== 'batch') void this.worker.work(job, registration);
      else {
        const jobs = batches.get(registration);
        if (jobs) jobs.push(job);
        else batches.set(registration, [job]);
      }
    }
    for (const [registration, jobs] of batches) {
      for (let at = 0; at < jobs.length; at += registration.size) {
        void this.worker.workBatch(jobs.slice(at, at + registration.size), registration);
      }
    }
  }

  #giveBack(job: Job, outcome: Outcome): void {
    job.finish(outcome);
    this.worker.ended(job);
  }

  #taskOf(row: Row): { registration: Registration | undefined; name: string } {
    const header = row['headers']?.includes(TASK_HEADER)
      ? (JSON.parse(row['headers']) as Record<string, Json>)[TASK_HEADER]
      : undefined;
    if (typeof header === 'string') return { registration: this.tasks.get(header), name: header };
    return { registration: this.#unnamed, name: this.#unnamed?.task.name ?? this.queue };
  }

  /** Another process may know it, such as one of the next release. The older the document, the longer the pause. */
  #unknown(job: Job): Outcome {
    job.log.warn(`no handler of this worker is for the task ${job.task}, so the document is snoozed`, {
      task: job.task,
    });
    const age = Math.max(Date.now() - job.createdAt.getTime(), 0);
    return snooze(Math.round(Math.min(Math.max(age / 2, 2000), 600_000)));
  }

  end(): void {
    clearTimeout(this.#timer);
    clearImmediate(this.#turn);
  }
}

function list(jobs: readonly Job[]): string {
  return `[${jobs.map((job) => job.settlement).join(',')}]`;
}
