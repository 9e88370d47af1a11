import { createHash } from 'node:crypto';
import type { Driver, Executor, Row, Session, Value } from './driver.js';
import { callWithin, isBroken } from './driver.js';
import { FetchqError } from './errors.js';

/** What the driver uses of a client of node-postgres. */
export interface PgClient {
  query(config: { text: string; values: unknown[]; name?: string }): Promise<{ rows: unknown[] }>;
}

/** What the driver uses of a client that was taken out of a pool. */
export interface PgPoolClient extends PgClient {
  release(destroy?: boolean | Error): void;
  on(event: 'error', listener: (error: Error) => void): unknown;
  removeListener(event: 'error', listener: (error: Error) => void): unknown;
}

/** What the driver uses of a pool of node-postgres. */
export interface PgPool extends PgClient {
  connect(): Promise<PgPoolClient>;
  connect(callback: (error: Error | undefined, client: PgPoolClient | undefined) => void): void;
  on(event: 'error', listener: (error: Error) => void): unknown;
  listenerCount(event: 'error'): number;
  readonly options?: { readonly max?: number | undefined };
}

/** The clients of a pool: `pg.PoolClient`. Its `connect` has a form with a callback too. */
export type PgClientOf<Pool> = Pool extends { connect: { (): Promise<infer Client>; (callback: never): unknown } }
  ? Client
  : PgPoolClient;

export interface PgOptions {
  /**
   * Prepares each statement once in each connection, by a name. Saves some parsing. Leave it off behind a pooler
   * that does not keep track of prepared statements.
   */
  readonly prepare?: boolean;
}

/** A driver for node-postgres: `pgDriver(new pg.Pool())`. A transaction is a client on which `begin` was called. */
export function pgDriver<Pool extends PgPool>(pool: Pool, options: PgOptions = {}): Driver<PgClientOf<Pool>> {
  type Client = PgClientOf<Pool> & PgPoolClient;
  // The server may end connections at any time, also one that is idle. Without a listener, that would end the process.
  if (pool.listenerCount('error') === 0) pool.on('error', ignore);
  const names = new Map<string, string>();
  const name = (statement: string): { name?: string } => {
    if (!options.prepare || statement.startsWith('call ')) return {};
    let known = names.get(statement);
    if (known === undefined) {
      known = `fetchq_${createHash('sha256').update(statement).digest('hex').slice(0, 16)}`;
      names.set(statement, known);
    }
    return { name: known };
  };
  const on = (client: PgClient): Executor => ({
    query: async (statement, values) => {
      const result = await client.query({ text: statement, values: values as Value[], ...name(statement) });
      return result.rows as Row[];
    },
  });
  const take = async (): Promise<{ client: Client; release: (broken: boolean) => void }> => {
    // It listens before the promise goes on: the error may stand in the packet that says that the connection is ready.
    const client = await new Promise<Client>((resolve, reject) => {
      pool.connect((error, taken) => {
        taken?.on('error', ignore);
        if (taken) resolve(taken as Client);
        else reject(error ?? new FetchqError('the pool has given no connection'));
      });
    });
    let isReleased = false;
    const release = (broken: boolean): void => {
      if (isReleased) return;
      isReleased = true;
      client.release(broken);
      // A connection that is closed may still tell of its end.
      if (!broken) client.removeListener('error', ignore);
    };
    return { client, release };
  };
  const session = async (): Promise<Session> => {
    const { client, release } = await take();
    let isCancelled = false;
    return {
      query: on(client).query,
      cancel: () => {
        isCancelled = true;
        cancel(client);
      },
      // A request that comes late must not cancel what the application does next on this connection.
      release: (broken) => {
        release(broken || isCancelled);
      },
    };
  };
  return {
    name: 'pg',
    size: pool.options?.max ?? undefined,
    query: on(pool).query,
    on,
    call: (statement, values, ms) => callWithin(session, ms, statement, values),
    session,
    async transaction(work) {
      const { client, release } = await take();
      try {
        await client.query({ text: 'begin', values: [] });
        const result = await work(client, on(client));
        await client.query({ text: 'commit', values: [] });
        release(false);
        return result;
      } catch (error) {
        // After an error of the handler, the connection is fine if it can roll back.
        const rolledBack = client.query({ text: 'rollback', values: [] }).then(
          () => true,
          (failure: unknown) => !isBroken(failure),
        );
        release(!(await rolledBack));
        throw error;
      }
    },
  };
}

function ignore(): void {
  // The call that uses the connection gets the error too.
}

interface Cancellable {
  readonly host?: string;
  readonly port?: number;
  readonly processID?: number | null;
  readonly secretKey?: unknown;
  readonly connection?: { readonly constructor: new () => CancelConnection };
}

interface CancelConnection {
  connect(portOrPath: number | string, host?: string): void;
  on(event: 'connect' | 'error', listener: () => void): void;
  cancel(processId: number, secretKey: unknown): void;
}

/** Sends the cancel request of the protocol, which poolers understand, on a connection of its own. */
function cancel(client: unknown): void {
  const { host, port, processID, secretKey, connection } = client as Cancellable;
  if (!connection || typeof processID !== 'number' || !port) return;
  const request = new connection.constructor();
  request.on('error', ignore);
  request.on('connect', () => {
    request.cancel(processID, secretKey);
  });
  if (host?.startsWith('/')) request.connect(`${host}/.s.PGSQL.${port}`);
  else request.connect(port, host);
}
