import { type Driver, type Row, TxExecutor, withTransactions } from './driver.js';

/** What is used of a client or a transaction of Prisma. */
export interface PrismaExecutor {
  $queryRawUnsafe(statement: string, ...values: unknown[]): PromiseLike<unknown>;
}

/** What is used of a client of Prisma. */
export interface PrismaDatabase<Tx extends PrismaExecutor> extends PrismaExecutor {
  $transaction<T>(work: (tx: Tx) => Promise<T>): Promise<T>;
}

/** A transaction of Prisma, for the option `tx`. */
export function prismaTx(tx: PrismaExecutor): TxExecutor {
  return new TxExecutor(async (statement, values) => (await tx.$queryRawUnsafe(statement, ...values)) as Row[]);
}

/** A driver whose transactions are those of Prisma. To work, it needs a driver with a pool of its own. */
export function prismaDriver<Tx extends PrismaExecutor>(db: PrismaDatabase<Tx>, base?: Driver): Driver<Tx> {
  return withTransactions('prisma', base, {
    root: () => prismaTx(db),
    on: (tx: Tx) => prismaTx(tx),
    transaction: (work) => db.$transaction(work),
  });
}
