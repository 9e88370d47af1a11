"""A worker for the queue `jobs`, until SIGTERM:  DATABASE_URL=… python3 python_worker.py"""

import os

from fetchq import App, Context, Worker, minutes

app = App(os.environ["DATABASE_URL"])


@app.task("jobs", transaction=True, lease=minutes(1))
def job(payload: dict, ctx: Context) -> None:
    if "fail" in payload:
        raise RuntimeError(payload["fail"])
    ctx.conn.execute("insert into results (subject, result) values (%s, '{\"worked\": true}')", [ctx.subject])


if __name__ == "__main__":
    Worker(app).run(signals=True)
