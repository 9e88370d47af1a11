"""Drives a client of a queue that is written for Python: see driver.mjs, which does the same.

    driver.py CLIENT setup | produce | work
"""

import asyncio
import importlib
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "clients"))

URL = os.environ["DATABASE_URL"]
CONCURRENCY = int(os.environ.get("CONCURRENCY", 4))


def now():
    """Microseconds of a clock that all processes of the machine share."""
    return time.monotonic_ns() // 1000


def say(message):
    print(json.dumps(message), flush=True)


def payload(**extra):
    return {"to": "somebody@example.com", "text": "0123456789" * (5 if extra else 7), **extra}


async def single(producer, clients, seconds):
    """Adds one job per call, from several loops, for some seconds."""
    began = now()
    until = began + seconds * 1e6
    count = 0

    async def loop():
        nonlocal count
        while now() < until:
            await producer.one(payload())
            count += 1

    await asyncio.gather(*[loop() for _ in range(clients)])
    return {"count": count, "seconds": (now() - began) / 1e6}


async def bulk(producer, count, batch, seconds):
    """Adds `count` jobs in lists, or fewer when the time is over."""
    began, added = now(), 0
    while added < count and now() < began + seconds * 1e6:
        await producer.many([payload() for _ in range(batch)])
        added += batch
    return {"count": added, "seconds": (now() - began) / 1e6}


async def pace(producer, rate, seconds):
    """Adds jobs at a rate. Each has the time at which it was added."""
    began, sent = now(), []
    for i in range(int(rate * seconds)):
        wait = began + i * 1e6 / rate - now()
        if wait > 0:
            await asyncio.sleep(wait / 1e6)
        sent.append(asyncio.ensure_future(producer.one(payload(t=now()))))
    await asyncio.gather(*sent)
    return {"count": len(sent), "seconds": (now() - began) / 1e6}


COMMANDS = {"single": single, "bulk": bulk, "pace": pace}


async def read_line():
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def produce(client):
    producer = await client.producer(URL, CONCURRENCY)
    say({"ready": True})
    while line := await read_line():
        options = json.loads(line)
        say(await COMMANDS[options.pop("command")](producer, **options))
    await producer.close()


async def work(client):
    done, latencies = 0, []
    lock = threading.Lock()

    def handle(job):
        """This is the whole handler: a job does nothing."""
        nonlocal done
        with lock:
            done += 1
        if "t" in job:
            latencies.append((now() - job["t"]) / 1e3)

    async def report():
        while True:
            await asyncio.sleep(0.02)
            say({"at": now() / 1e6, "done": done})

    worker = await client.worker(URL, CONCURRENCY, handle)
    say({"ready": True})
    reporting = asyncio.ensure_future(report())
    await read_line()
    reporting.cancel()
    say({"at": now() / 1e6, "done": done})
    await worker.stop()
    say({"done": done, "latencies": latencies})


def main():
    client = importlib.import_module(sys.argv[1].replace("-", "_"))
    run = getattr(client, "run", asyncio.run)
    actions = {"setup": lambda: client.setup(URL), "produce": lambda: produce(client), "work": lambda: work(client)}
    run(actions[sys.argv[2]]())
    sys.stdout.flush()
    # Threads that still wait for something must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
