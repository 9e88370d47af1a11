// A client of Prisma, as `prisma generate` makes it of a schema without models. The program `prisma` loads a binary
// when it is run, which the client does not use.
import { PrismaPg } from '@prisma/adapter-pg';
import { getPrismaClient } from '@prisma/client/runtime/client';
import type { PrismaDatabase, PrismaExecutor } from '@fetchq/client/prisma';

const COMPILER = '@prisma/client/runtime/query_compiler_fast_bg.postgresql';
/** Its types are those of browsers. */
const { WebAssembly } = globalThis as unknown as { WebAssembly: { Module: new (code: Buffer) => unknown } };
const schema = 'generator client {\n  provider = "prisma-client"\n}\n\ndatasource db {\n  provider = "postgresql"\n}\n';

const PrismaClient = getPrismaClient({
  previewFeatures: [],
  clientVersion: '7.10.0',
  engineVersion: '',
  activeProvider: 'postgresql',
  inlineSchema: schema,
  runtimeDataModel: { models: {}, enums: {}, types: {} },
  parameterizationSchema: { strings: [], graph: 'AAAA' },
  compilerWasm: {
    getRuntime: async () => (await import(`${COMPILER}.mjs`)) as never,
    getQueryCompilerWasmModule: async () => {
      const { wasm } = (await import(`${COMPILER}.wasm-base64.mjs`)) as { wasm: string };
      return new WebAssembly.Module(Buffer.from(wasm, 'base64'));
    },
    importName: './query_compiler_fast_bg.js',
  },
});

export interface Prisma extends PrismaDatabase<PrismaExecutor> {
  $disconnect(): Promise<void>;
}

/** Opens a client, whose connections are those of the environment. */
export function openPrisma(): Prisma {
  return new PrismaClient({ adapter: new PrismaPg({ max: 4 }) }) as never;
}
