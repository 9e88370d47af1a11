import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import type { Fetchq } from './client.js';
import type { BatchDoc } from './context.js';
import { type Row, type Value, textArray } from './driver.js';
import { ConfigurationError, FetchqError, InvalidPayloadError, classify, errorCode, text } from './errors.js';
import { Heartbeat } from './heartbeat.js';
import { Job } from './job.js';
import { Lane, Slots } from './lane.js';
import { type Action, Outcome, kill, reject, returned, snooze } from './outcome.js';
import { type Logger, type Plugin, type WorkerEvent, quietly } from './plugin.js';
import {
  type BatchHandler,
  type BatchOptions,
  type HandleOptions,
  type Handler,
  type Registration,
  type TxHandler,
  type TxOptions,
  register,
} from './registration.js';
import * as sql from './sql.js';
import { type Json, type Task, decode, versions } from './task.js';
import { Alarm, type Duration, jitter, milliseconds } from './time.js';
import { readMark, Waiter } from './waiter.js';

export interface WorkerOptions {
  /** How the database calls it, unique among the processes that run. By default host, process id and a random part. */
  readonly name?: string;
  /** How many documents the process works on at once, over all queues. By default 10. */
  readonly concurrency?: number;
  /** How long handlers may go on after `stop`. By default 25 seconds. */
  readonly grace?: Duration;
  /** How long they may go on after their signal was aborted. By default 5 seconds. */
  readonly abortGrace?: Duration;
  /** How long after its signal a handler counts as stuck. By default 10 seconds. */
  readonly stuckAfter?: Duration;
  /** Whether a stuck handler keeps its slot, which is the default, or lets another document have it. */
  readonly stuckKeepsSlot?: boolean;
  /** About how many bytes of payloads are in memory at most. By default 64 MiB. */
  readonly maxBytes?: number;
  /** Polls, in place of a session that waits: for a pooler that cannot spare a connection. */
  readonly polling?: boolean;
  /** How long one wait in the server is, which a pooler may limit. By default a minute. */
  readonly waitTimeout?: Duration;
  /** How often it polls. By default every second. */
  readonly pollInterval?: Duration;
  /** How long a call waits for an answer. By default 60 seconds. */
  readonly callTimeout?: Duration;
  /** Middleware and plugins, inside those of the client. */
  readonly use?: readonly Plugin[];
  readonly logger?: Logger;
  /** Changes the texts of failures before they are stored and logged. */
  readonly redact?: (text: string) => string;
}

export interface StopOptions {
  readonly grace?: Duration;
  /** Waits for no handler. */
  readonly now?: boolean;
}

export interface RunOptions {
  /** The first of these signals stops the worker, a second one ends the process at once. */
  readonly signals?: readonly NodeJS.Signals[];
  /** Stops the worker when it is aborted. */
  readonly signal?: AbortSignal;
}

export interface Health {
  readonly ok: boolean;
  /** The database answers. */
  readonly database: boolean;
  /** The loops turn. */
  readonly loops: boolean;
  /** Seconds since the last heartbeat that was answered; null: there was none. */
  readonly heartbeatAge: number | null;
  readonly running: number;
  readonly isStopping: boolean;
}

export interface Metrics {
  readonly settled: Readonly<Partial<Record<Action, number>>>;
  readonly handled: number;
  readonly handlerSeconds: number;
  readonly lost: number;
  readonly stuck: number;
  readonly calls: number;
  readonly failedCalls: number;
  readonly slots: number;
  readonly slotsUsed: number;
  /** How late the last heartbeat was, in seconds. */
  readonly heartbeatLag: number;
}

/** How long a wait in the server is, in milliseconds. */
const WAIT_MS = 60_000;
/** A call that takes longer while a session waits may wait for its connection, in milliseconds. */
const SUSPICIOUS = 3000;
/** How often a call is made again after a deadlock or a serialization failure. */
const CONFLICTS = 5;
/** A loop that is later than this is blocked, in milliseconds. */
const BLOCKED = 1000;

type Prepared = { readonly value: unknown } | undefined;

/** Works on documents: leases them, calls the handlers, and settles. */
export class Worker<Tx = unknown> {
  readonly name: string;
  readonly logger: Logger;
  /** @internal */
  readonly limit: number;
  /** @internal */
  readonly jobs = new Map<string, Job>();
  /** @internal */
  readonly waitMs: number;
  /** @internal */
  readonly pollMs: number;
  /** @internal */
  readonly isPolling: boolean;
  /** @internal */
  readonly redact: ((text: string) => string) | undefined;
  readonly #plugins: readonly Plugin[];
  readonly #hasMiddleware: boolean;
  readonly #hasEvents: boolean;
  readonly #registrations: Registration[] = [];
  readonly #heartbeat: Heartbeat;
  readonly #lanes: Lane[] = [];
  readonly #running = new Set<Job>();
  readonly #progress = new Alarm();
  readonly #warned = new Map<string, number>();
  readonly #settled: Partial<Record<Action, number>> = {};
  readonly #counts = { handled: 0, handlerSeconds: 0, lost: 0, stuck: 0, calls: 0, failedCalls: 0, heartbeatLag: 0 };
  #waiters: Waiter[] = [];
  #bytes = 0;
  #monitor: NodeJS.Timeout | undefined;
  #started: Promise<void> | undefined;
  #stopped: Promise<void> | undefined;
  #failure: { error: unknown } | undefined;
  #isNow = false;
  #end!: { resolve: () => void; reject: (error: unknown) => void };
  /** Ends when the worker has stopped. Fails if it had to. */
  readonly done: Promise<void>;
  /**
   * Slots in use, and those asked for.
   * @internal
   */
  used = 0;
  /** @internal */
  asked = 0;
  /**
   * Calls of all lanes under way.
   * @internal
   */
  calls = 0;
  /**
   * As many may be under way while one of a lane joins another.
   * @internal
   */
  mostCalls = 0;
  isStopping = false;

  constructor(
    readonly client: Fetchq<Tx>,
    readonly options: WorkerOptions = {},
  ) {
    this.name = options.name ?? `${hostname().slice(0, 100)}/${process.pid}/${randomBytes(4).toString('hex')}`;
    this.logger = guarded(options.logger ?? client.logger, options.redact);
    this.limit = options.concurrency ?? 10;
    this.waitMs = milliseconds(options.waitTimeout ?? WAIT_MS);
    this.pollMs = milliseconds(options.pollInterval ?? 1000);
    this.isPolling = options.polling ?? false;
    this.redact = options.redact;
    this.#plugins = [...client.use, ...(options.use ?? [])];
    this.#hasMiddleware = this.#plugins.some((plugin) => 'handle' in plugin);
    this.#hasEvents = this.#plugins.some((plugin) => 'event' in plugin);
    this.done = new Promise((resolve, reject) => {
      this.#end = { resolve, reject };
    });
    this.done.catch(() => undefined);
    this.#heartbeat = new Heartbeat(client.driver, {
      jobs: this.jobs,
      lost: (job) => {
        this.lost(job);
      },
      stopRequested: () => {
        this.stopRequested();
      },
      beat: (documents, lagSeconds) => {
        this.#counts.heartbeatLag = lagSeconds;
        this.#tell({ type: 'heartbeat', documents, lagSeconds });
      },
      watched: (name, call) => this.#watched(name, call),
      warn: (message, error) => {
        this.warn(message, error);
      },
    });
  }

  /** Registers a handler. Its settlement is sent with the next call, together with those of others. */
  handle<Output>(task: Task<unknown, Output>, handler: Handler<Output>, options: HandleOptions = {}): this {
    return this.#register(register(task, 'plain', handler, options));
  }

  /** Registers a handler whose writes and settlement are one transaction: both, or neither. */
  handleTx<Output>(task: Task<unknown, Output>, handler: TxHandler<Output, Tx>, options: TxOptions = {}): this {
    return this.#register(register(task, 'transaction', handler, options));
  }

  /** Registers a handler that gets several documents at once. */
  handleBatch<Output>(task: Task<unknown, Output>, handler: BatchHandler<Output>, options: BatchOptions): this {
    return this.#register(register(task, 'batch', handler, options));
  }

  #register(registration: Registration): this {
    if (this.#started) throw new ConfigurationError('the worker has started: register its handlers before');
    const { name, queue } = registration.task;
    if (this.#registrations.some(({ task }) => task.queue === queue && task.name === name)) {
      throw new ConfigurationError(`the task ${name} has two handlers`);
    }
    this.#registrations.push(registration);
    return this;
  }

  /** The queues that it works on. */
  get queues(): string[] {
    return [...new Set(this.#registrations.map(({ task }) => task.queue))];
  }

  /** Starts, and runs until it is asked to stop: by a signal, by `stop`, or by `worker_stop` in the database. */
  async run(options: RunOptions = {}): Promise<void> {
    let count = 0;
    const onSignal = (signal: NodeJS.Signals): void => {
      count += 1;
      if (count === 1) {
        void this.stop();
      } else {
        void this.stop({ now: true }).finally(() => {
          ignore();
          process.kill(process.pid, signal);
        });
      }
    };
    const onAbort = (): void => void this.stop();
    const ignore = (): void => {
      for (const signal of options.signals ?? []) process.removeListener(signal, onSignal);
      options.signal?.removeEventListener('abort', onAbort);
    };
    for (const signal of options.signals ?? []) process.on(signal, onSignal);
    options.signal?.addEventListener('abort', onAbort);
    try {
      await this.start();
      if (options.signal?.aborted) onAbort();
      await this.done;
    } finally {
      ignore();
    }
  }

  /** Starts. It returns when the database, the queues and the pool were found to fit. */
  start(): Promise<void> {
    this.#started ??= this.#start().catch((error: unknown) => {
      this.isStopping = true;
      this.#end.reject(error);
      throw error;
    });
    return this.#started;
  }

  async #start(): Promise<void> {
    const { driver } = this.client;
    if (this.#registrations.length === 0) throw new ConfigurationError('the worker has no handlers');
    if (!driver.session) {
      throw new ConfigurationError(`the driver ${driver.name} has no pool to work with: pass a driver that has one`);
    }
    this.#makeLanes();
    const versions = new Set(this.#lanes.map(({ version }) => version));
    const waiting = this.isPolling ? 0 : versions.size;
    const hasTx = this.#registrations.some(({ kind }) => kind === 'transaction');
    const sessions = driver.hasOwnSessions ? 1 : waiting + 1;
    const needed = sessions + (hasTx ? 2 : 1);
    if (driver.size !== undefined && driver.size < needed) {
      const why = driver.hasOwnSessions
        ? 'for calls and the application'
        : `${waiting} to wait, 1 for the heartbeat, and those for calls`;
      throw new ConfigurationError(
        `the pool has ${driver.size} connections at most, and the worker needs ${needed}: ${why}`,
      );
    }
    // The other half is for the application. Where the size is unknown, each lane makes one call at a time.
    this.mostCalls = Math.floor(((driver.size ?? 0) - sessions) / 2);
    await this.client.check();
    const marks = new Map<number, string | null>();
    for (const version of versions) {
      // It fails if a queue does not exist, or if the role may not work on it. Requests to stop count from now on.
      if (this.isPolling) {
        for (const { queue } of this.#lanes)
          await this.call('docs_next', sql.NEXT, [queue, '[]', '0', null, '0', this.name]);
        break;
      }
      const queues = textArray(this.#lanes.filter((lane) => lane.version === version).map(({ queue }) => queue));
      const [row] = await this.call('worker_wait', sql.WAIT, [queues, this.name, '0', null, String(version), null]);
      marks.set(version, readMark(row?.['mark']));
    }
    if (this.isPolling) {
      this.logger.info('the worker polls, as it was told to', { worker: this.name, milliseconds: this.pollMs });
    } else if (!this.client.isPreloaded) {
      const hint = "shared_preload_libraries = 'fetchq'";
      this.logger.info('the extension is not preloaded, so sessions that wait poll in the server', {
        worker: this.name,
        hint,
      });
    }
    await this.#heartbeat.start();
    let isFirst = true;
    for (const version of versions) {
      const lanes = this.#lanes.filter((lane) => lane.version === version);
      const waiter = new Waiter(driver, this, version, lanes, isFirst, marks.get(version) ?? null);
      isFirst = false;
      this.#waiters.push(waiter);
      await waiter.start();
    }
    this.#watchLoop();
    if (!this.isStopping) for (const lane of this.#lanes) lane.kick();
  }

  #makeLanes(): void {
    for (const queue of this.queues) {
      const registrations = this.#registrations.filter(({ task }) => task.queue === queue);
      const slots = new Slots(Math.max(...registrations.map(({ concurrency }) => concurrency ?? this.limit)));
      const weight = Math.max(...registrations.map((one) => one.weight));
      for (const version of new Set(registrations.flatMap(({ task }) => versions(task)))) {
        const known = registrations.filter(({ task }) => versions(task).includes(version));
        const tasks = new Map(known.map((one) => [one.task.name, one]));
        this.#lanes.push(new Lane(this, queue, version, slots, weight, tasks));
      }
    }
  }

  /** A blocked event loop extends no leases. */
  #watchLoop(): void {
    const every = 500;
    let last = performance.now();
    this.#monitor = setInterval(() => {
      const now = performance.now();
      const late = now - last - every;
      last = now;
      if (late > BLOCKED) {
        this.warn('the event loop was blocked: work that computes for long belongs in worker threads', undefined, {
          seconds: Math.round(late) / 1000,
        });
      }
    }, every);
    this.#monitor.unref();
  }

  /** Stops: leases no more, waits for the handlers, hands back what they did not finish, and settles. */
  stop(options: StopOptions = {}): Promise<void> {
    if (options.now) {
      this.#isNow = true;
      this.#progress.ring();
    }
    this.#stopped ??= this.#stop(milliseconds(options.grace ?? this.options.grace ?? 25_000));
    return this.#stopped;
  }

  async #stop(grace: number): Promise<void> {
    this.isStopping = true;
    try {
      await this.#started?.catch(() => undefined);
      for (const waiter of this.#waiters) waiter.interrupt();
      for (const lane of this.#lanes) if (lane.isBusy) lane.hurry();
      await this.#handlersEnd(grace);
      for (const job of this.#running) job.stop('shutdown');
      await this.#handlersEnd(milliseconds(this.options.abortGrace ?? 5000));
      for (const job of this.#running) {
        if (job.state !== 'running' || job.isGone || job.isInTransaction) continue;
        job.log.warn('the handler does not end, so its document is handed back');
        job.finish(snooze());
        job.lane?.settle(job);
      }
      await this.#settleAll(this.#isNow ? 1000 : 10_000);
    } finally {
      clearInterval(this.#monitor);
      for (const job of this.#running) clearTimeout(job.timer);
      for (const lane of this.#lanes) lane.end();
      await Promise.all([this.#heartbeat.end(), ...this.#waiters.map((waiter) => waiter.end())]);
      if (this.#failure) this.#end.reject(this.#failure.error);
      else this.#end.resolve();
    }
  }

  async #handlersEnd(ms: number): Promise<void> {
    const end = performance.now() + ms;
    while (this.#running.size > 0 && !this.#isNow && performance.now() < end) {
      await this.#progress.wait(end - performance.now());
    }
  }

  async #settleAll(ms: number): Promise<void> {
    const end = performance.now() + ms;
    const isBusy = (): boolean => this.#lanes.some((lane) => lane.isBusy);
    for (const lane of this.#lanes) lane.hurry();
    while (isBusy() && performance.now() < end) await this.#progress.wait(Math.min(end - performance.now(), 50));
    if (isBusy()) this.logger.error('not everything could be settled: leases will expire', { worker: this.name });
  }

  /**
   * The database asks the worker to stop, by `worker_stop`.
   * @internal
   */
  stopRequested(): void {
    if (!this.isStopping) this.logger.info('the worker was asked to stop', { worker: this.name });
    void this.stop();
  }

  /**
   * The configuration is wrong: the worker stops, and `run` fails.
   * @internal
   */
  fail(error: unknown): void {
    if (this.#failure) return;
    this.#failure = { error };
    this.logger.error('the worker cannot go on', {
      worker: this.name,
      error: text(error),
      code: errorCode(error).code,
    });
    void this.stop();
  }

  /**
   * How many documents a lane may ask for.
   * @internal
   */
  ask(lane: Lane, size: number): number {
    if (this.isStopping || !this.hasRoom) return 0;
    let want = Math.min(lane.slots.free, this.limit - this.used - this.asked, 1000);
    if (want <= 0) return 0;
    const others = this.#lanes.filter((other) => other !== lane && other.wants);
    if (others.length > 0) {
      const all = others.reduce((sum, other) => sum + other.weight, lane.weight);
      const share = Math.max(Math.round((this.limit * lane.weight) / all), 1);
      want = Math.min(want, share - lane.slots.used - lane.slots.asked);
      const isScarce = this.limit - this.used - this.asked <= others.length;
      if (isScarce && others.some((other) => !other.isBusy && other.turn < lane.turn)) return 0;
    }
    const left = this.#maxBytes - this.#bytes;
    // Before the first document nothing is known about their size.
    const fit = size === 0 ? (this.options.maxBytes === undefined ? 100 : 1) : Math.floor(left / size) - this.asked;
    return Math.max(Math.min(want, Math.max(fit, 1)), 0);
  }

  get #maxBytes(): number {
    return this.options.maxBytes ?? 64 * 1024 * 1024;
  }

  /**
   * Whether another document fits into the memory and the slots of the process.
   * @internal
   */
  get hasRoom(): boolean {
    return (this.#bytes < this.#maxBytes || this.used === 0) && this.used + this.asked < this.limit;
  }

  /**
   * Lets lanes call that have something to call for.
   * @internal
   */
  pump(): void {
    this.#progress.ring();
    for (const lane of this.#lanes) lane.pump();
  }

  /** @internal */
  laneIsHungry(lane: Lane): void {
    for (const waiter of this.#waiters) if (waiter.version === lane.version) waiter.hungry();
  }

  /** @internal */
  hasLeased(): void {
    this.#waiters[0]?.leased();
  }

  /**
   * Makes a call of the runtime. Conflicts with other sessions are tried again.
   * @internal
   */
  async call(name: string, statement: string, values: readonly Value[]): Promise<Row[]> {
    for (let conflicts = 0; ; conflicts++) {
      try {
        const timeout = milliseconds(this.options.callTimeout ?? 60_000);
        return await this.#watched(name, this.client.driver.call(statement, values, timeout));
      } catch (error) {
        if (classify(error) !== 'conflict' || conflicts >= CONFLICTS) throw error;
        await new Promise((resolve) => setTimeout(resolve, jitter(10 * 2 ** conflicts)));
      }
    }
  }

  async #watched<T>(name: string, call: Promise<T>): Promise<T> {
    const from = performance.now();
    const timer = setTimeout(() => {
      const hasYielded = this.#waiters.map((waiter) => waiter.yieldConnection());
      if (hasYielded.includes(true)) {
        this.warn(
          'a call has waited for seconds while a session waits for documents, as behind a pooler with too few connections: polling for a while',
          undefined,
          { call: name },
          Infinity,
        );
      }
    }, SUSPICIOUS);
    let failed = true;
    try {
      const result = await call;
      failed = false;
      return result;
    } finally {
      clearTimeout(timer);
      this.#counts.calls += 1;
      if (failed) this.#counts.failedCalls += 1;
      this.#tell({ type: 'call', name, seconds: (performance.now() - from) / 1000, failed });
    }
  }

  /**
   * Writes a line to the log, at most once a minute for each message, or once.
   * @internal
   */
  warn(message: string, error: unknown, fields: Record<string, unknown> = {}, every = 60_000): void {
    const now = performance.now();
    if ((this.#warned.get(message) ?? -Infinity) > now - every) return;
    this.#warned.set(message, now);
    const failure = error === undefined ? {} : { error: text(error), code: errorCode(error).code };
    this.logger.warn(message, { worker: this.name, ...failure, ...fields });
  }

  /** @internal */
  begin(job: Job, lane: Lane): void {
    // The document came back to the same worker: its lease was released, or has expired, or the call that settles it
    // was committed, and the answer comes later than that of the call which leased it anew.
    const before = this.jobs.get(job.key);
    if (before) this.settled(before, before.isSent);
    this.jobs.set(job.key, job);
    job.lane = lane;
    this.#running.add(job);
    this.used += 1;
    lane.slots.used += 1;
    this.#bytes += job.payload.length;
    this.#heartbeat.add(job);
  }

  /**
   * The handler has ended, or was never called: its slot is free.
   * @internal
   */
  ended(job: Job): void {
    const { lane } = job;
    this.#freeSlot(job);
    clearTimeout(job.timer);
    this.#running.delete(job);
    if (job.state === 'finished') lane?.settle(job);
    else if (job.state === 'running') this.release(job);
    lane?.pumpSoon();
  }

  #freeSlot(job: Job): void {
    if (job.hasEnded) return;
    job.hasEnded = true;
    this.used -= 1;
    this.#bytes -= job.payload.length;
    if (job.lane) job.lane.slots.used -= 1;
    if (this.#hasEvents) this.#tell({ type: 'slots', used: this.used, total: this.limit });
  }

  /**
   * Forgets a document for which there is nothing to settle.
   * @internal
   */
  release(job: Job): void {
    job.state = 'done';
    if (this.jobs.get(job.key) === job) this.jobs.delete(job.key);
    this.#heartbeat.forget(job);
  }

  /**
   * A settlement was answered.
   * @internal
   */
  settled(job: Job, isSettled: boolean): void {
    if (job.state === 'done') return;
    if (!isSettled && !job.isAmbiguous) {
      this.lost(job);
      return;
    }
    this.release(job);
    const seconds = (performance.now() - job.beganAt) / 1000;
    this.#settled[job.action] = (this.#settled[job.action] ?? 0) + 1;
    if (this.#hasEvents) this.#tell({ type: 'settled', queue: job.queue, task: job.task, action: job.action, seconds });
  }

  /**
   * The lease of a document does not hold any more.
   * @internal
   */
  lost(job: Job): void {
    if (job.isGone && job.state === 'done') return;
    job.stop('lost');
    this.release(job);
    this.#counts.lost += 1;
    job.log.warn('the lease was lost');
    this.#tell({ type: 'lost', queue: job.queue, task: job.task, subject: job.subject });
  }

  /**
   * Makes sure that a handler which does not stop is seen.
   * @internal
   */
  stopping(job: Job): void {
    if (job.stopped?.reason === 'shutdown' || job.hasEnded || job.state === 'finished') return;
    clearTimeout(job.timer);
    job.timer = setTimeout(
      () => {
        this.#stuck(job);
      },
      milliseconds(this.options.stuckAfter ?? 10_000),
    );
  }

  #stuck(job: Job): void {
    if (job.hasEnded || job.isInTransaction) return;
    job.isStuck = true;
    this.#counts.stuck += 1;
    job.log.error('the handler is stuck: it does not end though its signal was aborted', {
      reason: job.stopped?.reason,
    });
    this.#tell({ type: 'stuck', queue: job.queue, task: job.task, subject: job.subject });
    if (!job.isGone && job.state === 'running') {
      job.finish(reject(`${text(job.stopped)}, and does not end`, { details: { worker: this.name, stuck: true } }));
      job.lane?.settle(job);
    }
    if (this.options.stuckKeepsSlot === false) {
      this.#freeSlot(job);
      this.pump();
    }
  }

  /** @internal */
  store(job: Job): Promise<void> {
    return this.#heartbeat.store(job);
  }

  /**
   * Works on one document.
   * @internal
   */
  async work(job: Job, registration: Registration): Promise<void> {
    const prepared = this.#prepare(job, registration);
    const payload = prepared instanceof Promise ? await prepared : prepared;
    if (payload && registration.kind === 'transaction') await this.#runTx(job, registration, payload.value);
    else if (payload) {
      let outcome: Outcome | undefined;
      try {
        const handler = (): unknown => registration.handler(payload.value as never, job as never);
        outcome = returned(await (this.#hasMiddleware ? this.#around(job, handler) : handler()));
      } catch (error) {
        outcome = this.#failed(job, registration, error);
      }
      this.#finish(job, outcome);
    }
    this.#handled(job);
  }

  #handled(job: Job): void {
    this.#counts.handled += 1;
    this.#counts.handlerSeconds += (performance.now() - job.beganAt) / 1000;
    this.ended(job);
  }

  /**
   * Works on several documents with one call of the handler.
   * @internal
   */
  async workBatch(jobs: readonly Job[], registration: Registration): Promise<void> {
    const docs: BatchDoc<unknown>[] = [];
    const good: Job[] = [];
    for (const job of jobs) {
      const prepared = this.#prepare(job, registration);
      const payload = prepared instanceof Promise ? await prepared : prepared;
      if (payload === undefined) {
        this.ended(job);
        continue;
      }
      docs.push({ payload: payload.value, context: job });
      good.push(job);
    }
    if (good.length === 0) return;
    // `AbortSignal.any` would need a signal of each document, which costs more than all the rest.
    const stop = new AbortController();
    for (const job of good) {
      job.batch = stop;
      if (job.stopped) stop.abort(job.stopped);
    }
    let run: Promise<unknown> | undefined;
    // Each document has its middleware around it, and all of them have the same call inside.
    const together = (): Promise<unknown> =>
      (run ??= Promise.resolve().then(() => registration.handler(docs as never, stop.signal as never)));
    await Promise.all(
      good.map(async (job, at) => {
        const one = async (): Promise<unknown> => {
          const results = await together();
          if (results === undefined) return undefined;
          if (Array.isArray(results) && results.length === good.length) return results[at] as unknown;
          throw new FetchqError(
            `the handler of a batch of ${good.length} documents must return nothing or as many outcomes`,
          );
        };
        let outcome: Outcome | undefined;
        try {
          outcome = returned(await (this.#hasMiddleware ? this.#around(job, one) : one()));
        } catch (error) {
          outcome = this.#failed(job, registration, error);
        }
        this.#finish(job, outcome);
        this.#handled(job);
      }),
    );
  }

  /** Decodes the payload, and starts the clock. Without a result, the outcome of the document is decided. */
  #prepare(job: Job, registration: Registration): Prepared | Promise<Prepared> {
    const { task, poison } = registration;
    const value: unknown = JSON.parse(job.payload);
    if (!task.schema && job.version === task.version) return this.#ready(job, registration, value);
    return decode(task, value as Json, job.version).then(
      (decoded) => this.#ready(job, registration, decoded),
      (error: unknown) => {
        const isKilled = error instanceof InvalidPayloadError && poison === 'kill';
        const outcome = isKilled ? kill(text(error)) : reject(text(error), { details: { worker: this.name } });
        this.#finish(job, outcome, error);
        return undefined;
      },
    );
  }

  #ready(job: Job, { timeoutMs }: Registration, value: unknown): Prepared {
    if (timeoutMs !== undefined) {
      job.timer = setTimeout(() => job.stop('timeout'), timeoutMs);
    }
    return { value };
  }

  #failed(job: Job, registration: Registration, error: unknown): Outcome | undefined {
    const outcome = job.failed(error, registration);
    if (outcome && !(error instanceof Outcome)) this.#logFailure(job, outcome, error);
    return outcome;
  }

  #around(job: Job, handler: () => unknown): unknown {
    let next = handler;
    for (const plugin of this.#plugins.toReversed()) {
      if (!plugin.handle) continue;
      const inner = next;
      next = () => plugin.handle?.(job, () => Promise.resolve().then(inner));
    }
    return next();
  }

  /** Notes the outcome, unless it was decided meanwhile. */
  #finish(job: Job, outcome: Outcome | undefined, error?: unknown): void {
    if (job.state !== 'running') return;
    if (outcome === undefined || job.isGone) {
      this.release(job);
      return;
    }
    if (error !== undefined) this.#logFailure(job, outcome, error);
    job.finish(outcome);
  }

  #logFailure(job: Job, outcome: Outcome, error: unknown): void {
    if (outcome.action !== 'reject' && outcome.action !== 'kill') return;
    const isLast = outcome.action === 'kill' || job.attempts >= job.maxAttempts;
    const fields = { task: job.task, maxAttempts: job.maxAttempts, error: text(error) };
    if (isLast) job.log.error('the document has failed for the last time', fields);
    else job.log.warn('the document has failed', fields);
  }

  /** Calls a handler in a transaction, in which its document is settled. */
  async #runTx(job: Job, registration: Registration, payload: unknown): Promise<void> {
    for (let reruns = 0; ; reruns++) {
      let phase = 'begin' as 'begin' | 'handler' | 'settle' | 'commit';
      try {
        await this.client.driver.transaction(async (tx, executor) => {
          phase = 'handler';
          job.tx = tx;
          const outcome = returned(await this.#around(job, () => registration.handler(payload as never, job as never)));
          if (job.stopped) throw job.stopped;
          if (job.state !== 'running') throw new FetchqError('the document was settled by the runtime meanwhile');
          job.finish(outcome);
          job.isInTransaction = true;
          phase = 'settle';
          await executor.query(sql.SETTLE, [job.queue, `[${job.settlement}]`, 'error']);
          phase = 'commit';
        });
        job.isInTransaction = false;
        this.settled(job, true);
        return;
      } catch (error) {
        job.tx = undefined;
        job.isInTransaction = false;
        if (job.state === 'done' || (job.isStuck && phase === 'handler')) return;
        const kind = classify(error);
        if (kind === 'conflict' && reruns < registration.reruns && !job.stopped) {
          job.state = 'running';
          continue;
        }
        if (phase === 'settle' && kind === 'lost') {
          this.lost(job);
          return;
        }
        if (phase === 'settle' && (kind === 'invalid' || kind === 'configuration')) {
          job.log.error('the outcome of the handler is not valid', { error: text(error) });
          job.replace(error);
          return;
        }
        job.state = 'running';
        const isOurs =
          phase !== 'handler' && (kind === 'connection' || (kind === 'other' && errorCode(error).code !== '25P02'));
        if (isOurs) {
          // It is not known whether a commit has come through. If not, the lease holds, and the document runs again;
          // otherwise there is nothing left to do, and the server says that the lease is over.
          job.isAmbiguous = phase === 'commit';
          this.warn('a transaction could not be committed', error, { queue: job.queue });
          this.#finish(job, snooze(phase === 'begin' ? 1000 : undefined));
        } else {
          this.#finish(job, this.#failed(job, registration, error));
        }
        return;
      }
    }
  }

  #tell(event: WorkerEvent): void {
    for (const plugin of this.#plugins) {
      quietly(() => {
        plugin.event?.(event);
      });
    }
  }

  /** For probes: whether the database answers and the loops turn. */
  async health(): Promise<Health> {
    let database = true;
    try {
      await this.client.driver.call(sql.INFO, [], 5000);
    } catch {
      database = false;
    }
    const loops = this.#started !== undefined && !this.#failure && this.#heartbeat.isAlive;
    const { lastBeat } = this.#heartbeat;
    return {
      ok: database && loops,
      database,
      loops,
      heartbeatAge: lastBeat === undefined ? null : (performance.now() - lastBeat) / 1000,
      running: this.used,
      isStopping: this.isStopping,
    };
  }

  /** The sums since the start. */
  metrics(): Metrics {
    return { settled: { ...this.#settled }, ...this.#counts, slots: this.limit, slotsUsed: this.used };
  }
}

/** A logger that never fails, and shows no text that is not to be seen. */
function guarded(logger: Logger, redact: ((text: string) => string) | undefined): Logger {
  const hide = (fields: Readonly<Record<string, unknown>> = {}): Record<string, unknown> =>
    redact
      ? Object.fromEntries(
          Object.entries(fields).map(([key, value]) => [key, typeof value === 'string' ? redact(value) : value]),
        )
      : { ...fields };
  return {
    info: (message, fields) => {
      quietly(() => {
        logger.info(message, hide(fields));
      });
    },
    warn: (message, fields) => {
      quietly(() => {
        logger.warn(message, hide(fields));
      });
    },
    error: (message, fields) => {
      quietly(() => {
        logger.error(message, hide(fields));
      });
    },
  };
}
