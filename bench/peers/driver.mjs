// Drives a client of a queue that is written for Node. The benchmark starts it, writes a command to
// its stdin as a line of JSON, and reads an answer from its stdout.
//
//   node driver.mjs CLIENT setup
//   node driver.mjs CLIENT produce    commands: single, bulk, pace
//   node driver.mjs CLIENT work       reports how many jobs are done, until stdin ends
//
// CLIENT is a file of clients/. DATABASE_URL names the server, and CONCURRENCY the jobs at a time.
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const [name, action] = process.argv.slice(2);
const url = process.env.DATABASE_URL;
const concurrency = Number(process.env.CONCURRENCY ?? 4);

// Microseconds of a clock that all processes of the machine share.
const now = () => Number(process.hrtime.bigint() / 1000n);
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const payload = (extra) => ({ to: 'somebody@example.com', text: '0123456789'.repeat(extra ? 5 : 7), ...extra });

const commands = {
  /** Adds one job per call, from several loops, for some seconds. */
  async single(producer, { clients, seconds }) {
    const began = now();
    const until = began + seconds * 1e6;
    let count = 0;
    const loop = async () => {
      while (now() < until) {
        await producer.one(payload());
        count += 1;
      }
    };
    await Promise.all(Array.from({ length: clients }, loop));
    return { count, seconds: (now() - began) / 1e6 };
  },

  /** Adds `count` jobs in lists, or fewer when the time is over. */
  async bulk(producer, { count: wanted, batch, seconds }) {
    const began = now();
    let count = 0;
    while (count < wanted && now() < began + seconds * 1e6) {
      await producer.many(Array.from({ length: batch }, () => payload()));
      count += batch;
    }
    return { count, seconds: (now() - began) / 1e6 };
  },

  /** Adds jobs at a rate. Each has the time at which it was added. */
  async pace(producer, { rate, seconds }) {
    const began = now();
    const sent = [];
    for (let i = 0; i < rate * seconds; i += 1) {
      const wait = (began + (i * 1e6) / rate - now()) / 1e3;
      if (wait > 0) await sleep(wait);
      sent.push(producer.one(payload({ t: now() })));
    }
    await Promise.all(sent);
    return { count: sent.length, seconds: (now() - began) / 1e6 };
  },
};

async function lines(use) {
  for await (const line of createInterface({ input: process.stdin })) await use(JSON.parse(line));
}

async function run() {
  const { default: client } = await import(`./clients/${name}.mjs`);
  if (action === 'setup') {
    await client.setup(url);
  } else if (action === 'produce') {
    const producer = await client.producer(url, concurrency);
    say({ ready: true });
    await lines(async ({ command, ...options }) => say(await commands[command](producer, options)));
    await producer.close();
  } else {
    let done = 0;
    const latencies = [];
    // This is the whole handler: a job does nothing.
    const handle = (job) => {
      done += 1;
      if (job.t) latencies.push((now() - job.t) / 1e3);
    };
    const worker = await client.worker(url, concurrency, handle);
    say({ ready: true });
    const timer = setInterval(() => say({ at: now() / 1e6, done }), 20);
    await lines(() => {});
    clearInterval(timer);
    say({ at: now() / 1e6, done });
    await worker.stop();
    say({ done, latencies });
  }
}

try {
  await run();
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
process.exit(0);
