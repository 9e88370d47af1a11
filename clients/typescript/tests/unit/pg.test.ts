import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { test } from 'node:test';
import pg from 'pg';
import { pgDriver } from '@fetchq/client/pg';

function message(type: string, body: Buffer): Buffer {
  const head = Buffer.alloc(5);
  head.write(type);
  head.writeInt32BE(4 + body.length, 1);
  return Buffer.concat([head, body]);
}

test('a connection that ends in the packet that makes it ready does not end the process', async () => {
  const ended = Buffer.from('SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0');
  const packet = Buffer.concat([message('R', Buffer.alloc(4)), message('Z', Buffer.from('I')), message('E', ended)]);
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () => socket.end(packet));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const pool = new pg.Pool({ host: '127.0.0.1', port, user: 'x', database: 'x' });
  const driver = pgDriver(pool);
  try {
    const session = await driver.session?.();
    await assert.rejects(session?.query('select 1', []) ?? Promise.resolve());
    session?.release(true);
    await assert.rejects(driver.transaction((_, { query }) => query('select 1', [])));
    await assert.rejects(driver.query('select 1', []));
  } finally {
    await pool.end();
    server.close();
  }
});
