// What the tests of the server share: a client for each driver, queues of their own, and a way to wait.
import { randomBytes } from 'node:crypto';
import { connect, createServer, type Server, type Socket } from 'node:net';
import pg from 'pg';
import postgres from 'postgres';
import { type Driver, Fetchq, type FetchqOptions, type Json, type Logger } from '@fetchq/client';
import { pgDriver } from '@fetchq/client/pg';
import { postgresDriver } from '@fetchq/client/postgres';

export type Library = 'pg' | 'postgres';
export const LIBRARIES: readonly Library[] = ['pg', 'postgres'];

/** A line that a client or a worker has logged. */
export interface Line {
  level: string;
  message: string;
  fields: Readonly<Record<string, unknown>>;
}

export interface Setup {
  library: Library;
  fq: Fetchq;
  /** For what the test itself asks. */
  pool: pg.Pool;
  lines: Line[];
  logger: Logger;
  /** Makes a queue, and gives its name. */
  queue(settings?: Record<string, Json>): Promise<string>;
  status(queue: string, subject: string): Promise<string | undefined>;
  end: () => Promise<void>;
}

export interface Connection {
  host?: string;
  port?: number;
  max?: number;
  prepare?: boolean;
  application?: string;
}

export function setup(library: Library, options: FetchqOptions = {}, connection: Connection = {}): Setup {
  const pool = new pg.Pool({ max: 4 });
  pool.on('error', () => undefined);
  const { driver, end } = open(library, connection);
  const lines: Line[] = [];
  const level =
    (name: string) =>
    (message: string, fields: Readonly<Record<string, unknown>> = {}): void => {
      lines.push({ level: name, message, fields });
    };
  const logger: Logger = { info: level('info'), warn: level('warn'), error: level('error') };
  const fq = new Fetchq(driver, { logger, ...options });
  return {
    library,
    fq,
    pool,
    lines,
    logger,
    async queue(settings = {}) {
      const name = `t_${randomBytes(6).toString('hex')}`;
      await pool.query('select fetchq.queue_create($1)', [name]);
      await pool.query('select fetchq.queue_configure($1, $2)', [
        name,
        JSON.stringify({
          retry: { base: '10 ms', max_delay: '10 ms' },
          history: { completed: '1 h', killed: '1 h', dropped: '1 h' },
          ...settings,
        }),
      ]);
      return name;
    },
    async status(queue, subject) {
      const { rows } = await pool.query<{ status: string }>('select status from fetchq.doc_get($1, $2)', [
        queue,
        subject,
      ]);
      return rows[0]?.status;
    },
    async end() {
      await end();
      await pool.end();
    },
  };
}

/** Opens a pool of a library, as an application does. */
export function open(
  library: Library,
  { host, port, max = 8, prepare, application }: Connection = {},
): { driver: Driver; end: () => Promise<void> } {
  if (library === 'pg') {
    const pool = new pg.Pool({
      max,
      application_name: application,
      ...(host !== undefined && { host }),
      ...(port !== undefined && { port }),
    });
    return { driver: pgDriver(pool), end: () => pool.end() };
  }
  const sql = postgres({
    max,
    onnotice: () => undefined,
    ...(host !== undefined && { host }),
    ...(port !== undefined && { port }),
    ...(application !== undefined && { connection: { application_name: application } }),
    ...(prepare !== undefined && { prepare }),
  });
  return { driver: postgresDriver(sql), end: () => sql.end({ timeout: 1 }) };
}

/** Polls until a condition holds. */
export async function until(condition: () => boolean | Promise<boolean>, what: string, seconds = 20): Promise<void> {
  const end = Date.now() + seconds * 1000;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`after ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Waits until the signal is aborted, and fails as a handler does that listens to it. */
export function untilAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, fail) => {
    const stop = (): void => {
      fail(signal.reason as Error);
    };
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
  });
}

/** The message that a connection is ready, outside of a transaction. */
const READY = Buffer.from('Z\0\0\0\x05I');
/** The message that an administrator has ended it. */
const TERMINATED = Buffer.from('E\0\0\0\x1fSFATAL\0C57P01\0Mterminated\0\0');

/** A proxy before the server, which can cut its connections. */
export class Proxy {
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;
  /** No new connection comes through. */
  isDown = false;
  /** What the server sends is thrown away. */
  isMute = false;
  /** New connections end as soon as they are ready. */
  isBrief = false;
  /** How many have ended so. */
  brief = 0;

  constructor() {
    this.#server = createServer((client) => {
      if (this.isDown) {
        client.destroy();
        return;
      }
      const { isBrief } = this;
      const { PGHOST = '', PGPORT = '5432' } = process.env;
      const server = PGHOST.startsWith('/') ? connect(`${PGHOST}/.s.PGSQL.${PGPORT}`) : connect(Number(PGPORT), PGHOST);
      for (const [from, to] of [
        [client, server],
        [server, client],
      ] as const) {
        this.#sockets.add(from);
        from.on('data', (data) => {
          if (from === client || !this.isMute) to.write(data);
          if (from === server && isBrief && data.subarray(-READY.length).equals(READY)) {
            this.brief += 1;
            client.end(TERMINATED);
          }
        });
        from.on('error', () => undefined);
        from.on('close', () => {
          this.#sockets.delete(from);
          to.destroy();
        });
      }
    });
  }

  async start(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    const address = this.#server.address();
    return typeof address === 'object' ? (address?.port ?? 0) : 0;
  }

  /** Cuts all connections. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async end(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
