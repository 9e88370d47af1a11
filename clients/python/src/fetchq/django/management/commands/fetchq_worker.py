"""``manage.py fetchq_worker project.tasks:app``, with the options of ``fetchq-worker``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fetchq import App
from fetchq.cli import _options, _worker, load
from fetchq.django import Connections, conninfo
from fetchq.worker import Worker


class Command(BaseCommand):
    help = "Works on the tasks of an app until SIGTERM"

    def add_arguments(self, parser: Any) -> None:
        _worker(parser)

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        import argparse

        app = load(options["app"])
        if not isinstance(app, App):
            raise CommandError("manage.py runs apps with threads: use App")
        given = argparse.Namespace(**options)
        source = options["database"] or conninfo()
        app.open(source)
        worker = Worker(app, source, queues=options["queue"], plugins=[Connections()], **_options(given))
        worker.run(signals=True)
