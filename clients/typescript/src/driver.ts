import { CallTimeoutError } from './errors.js';

/** A parameter of a statement. Each is a text, and the statement casts it, so no driver has to know its type. */
export type Value = string | null;

/** A row of a result. Each column is cast to text, so it does not matter what types the driver reads. */
export type Row = Readonly<Record<string, string | null>>;

/** Whatever runs a statement: a pool, a connection, a transaction. */
export interface Executor {
  readonly query: (statement: string, values: readonly Value[]) => Promise<Row[]>;
}

/** A connection that is taken out of the pool. */
export interface Session extends Executor {
  /** Asks the server to cancel the statement that runs. */
  cancel(): void;
  /** Gives the connection back; a broken one is closed, whatever it does. */
  release(broken: boolean): void;
}

/**
 * What the package needs of a library for PostgreSQL. `Tx` is what that library calls a transaction.
 * The pool stays the application's: it is neither closed nor enlarged.
 */
export interface Driver<Tx = unknown> extends Executor {
  readonly name: string;
  /** How many connections the pool can have; undefined: not known. */
  readonly size?: number | undefined;
  /** Runs one statement on the pool. The connection is given up when there is no answer in time. */
  call(statement: string, values: readonly Value[], timeoutMs: number): Promise<Row[]>;
  /** Takes a connection for long. A driver without it can put, but not work. */
  session?(): Promise<Session>;
  /** Sessions are connections beside the pool. */
  readonly hasOwnSessions?: boolean;
  /** Runs statements in a transaction of the caller. */
  on(tx: Tx): Executor;
  /** Opens a transaction, and commits it when the work is done. */
  transaction<T>(work: (tx: Tx, executor: Executor) => Promise<T>): Promise<T>;
}

/** A transaction of another library than that of the driver, such as of an ORM. */
export class TxExecutor implements Executor {
  constructor(readonly query: (statement: string, values: readonly Value[]) => Promise<Row[]>) {}
}

/** A driver whose transactions are those of an ORM, over the driver of the library that the ORM uses. */
export function withTransactions<Tx>(
  name: string,
  base: Driver | undefined,
  orm: {
    root: () => Executor;
    on: (tx: Tx) => Executor;
    transaction: <T>(work: (tx: Tx) => Promise<T>) => Promise<T>;
  },
): Driver<Tx> {
  const driver: Driver<Tx> = {
    name: base ? `${name} over ${base.name}` : name,
    size: base?.size,
    query: (statement, values) => (base ?? orm.root()).query(statement, values),
    call: (statement, values, ms) =>
      base ? base.call(statement, values, ms) : within(orm.root().query(statement, values), ms),
    on: orm.on,
    transaction: (work) => orm.transaction((tx) => work(tx, orm.on(tx))),
  };
  const session = base?.session?.bind(base);
  return session ? { ...driver, session, hasOwnSessions: base?.hasOwnSessions ?? false } : driver;
}

/** Takes a connection out of the pool. */
export async function open(driver: Driver): Promise<Session> {
  if (!driver.session) throw new Error(`the driver ${driver.name} has no pool`);
  return driver.session();
}

/** Runs one statement on a connection of the pool, which is closed when there is no answer in time. */
export async function callWithin(
  take: () => Promise<Session>,
  ms: number,
  statement: string,
  values: readonly Value[],
): Promise<Row[]> {
  let session: Session | undefined;
  const state = { isLate: false };
  const call = (async () => {
    const taken = await take();
    if (state.isLate) {
      taken.release(false);
      return [];
    }
    session = taken;
    return taken.query(statement, values);
  })();
  try {
    const rows = await within(call, ms);
    session?.release(false);
    return rows;
  } catch (error) {
    state.isLate = true;
    session?.release(isBroken(error));
    throw error;
  }
}

/** Waits for the answer of the server. Fails after `ms`, as a connection that is dead does. */
export async function within<T>(call: Promise<T>, ms: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, fail) => {
    timer = setTimeout(() => {
      fail(new CallTimeoutError(`the database has not answered for ${ms} ms`));
    }, ms);
  });
  try {
    return await Promise.race([call, late]);
  } finally {
    clearTimeout(timer);
    // A call that fails later is of no interest.
    call.catch(() => undefined);
  }
}

/** Whether a connection that gave this error may not be used again. Those of the server have an SQLSTATE. */
export function isBroken(error: unknown): boolean {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code !== 'string' || !/^[0-9A-Z]{5}$/.test(code) || /^(08|57P)/.test(code) || /^E[A-Z]{4}$/.test(code);
}

/** The text of an array of PostgreSQL. */
export function textArray(values: readonly string[]): string {
  return `{${values.map((value) => `"${value.replace(/["\\]/g, '\\$&')}"`).join(',')}}`;
}
