"""The files of packaging/monitoring with a real Prometheus, which has scraped the console of a server
under load."""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import time
import unittest

import yaml

import support
from support import DATABASE, FILES, ODD, connect, parse, poll

SELECTOR = re.compile(r"fetchq_\w+(?:\{[^}]*\})?")
# What a server that is well has no samples of.
EMPTY = {
    'fetchq_metric_missing{reason="locked"}',
    'fetchq_info{preloaded="false"}',
}
VARIABLES = {"$job": ".*", "$instance": ".*", "$database": ".*", "$queue": ".*", "$__rate_interval": "5s"}

state = {}


def setUpModule():
    support.prepare()
    folder = state["folder"] = support.Folder()
    load = state["load"] = support.Load()
    load.start()
    state["console"], state["address"] = support.start_console(folder.path, "console", support.url_of())
    prometheus = state["prometheus"] = support.Prometheus(folder.path, state["address"])
    # Some seconds of load, with all that the tests look for.
    poll(
        "Prometheus has scraped ten times, and documents have been handled in all ways",
        lambda: prometheus.query("count_over_time(fetchq_info[5m]) >= 10")
        and prometheus.query('fetchq_leases_lost_total{queue="mail"} > 0')
        and prometheus.query('fetchq_dead_letters_total{queue="mail"} > 0')
        and len(prometheus.query('fetchq_settled_total{queue="mail"} > 0')) == 4,
    )


def tearDownModule():
    for name in ("prometheus", "console", "load"):
        if name in state:
            state[name].stop()
    state["folder"].remove()


def expand(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def alerts():
    groups = yaml.safe_load((FILES / "fetchq.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard():
    return json.loads((FILES / "grafana-dashboard.json").read_text())


def promtool(*arguments, **options):
    done = subprocess.run(
        ["promtool", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    return done.returncode, done.stdout


class Files(unittest.TestCase):
    def test_promtool_accepts_the_rules_and_the_configuration(self):
        for arguments in (("check", "rules", "fetchq.rules.yml"), ("check", "config", "prometheus.yml")):
            status, output = promtool(*arguments, cwd=FILES)
            self.assertEqual(status, 0, output)

    def test_the_tests_of_the_rules_pass_and_each_alert_fires_in_one_and_not_in_another(self):
        status, output = promtool("test", "rules", "fetchq.rules.test.yml", cwd=FILES)
        self.assertEqual(status, 0, output)
        checks = [
            check
            for test in yaml.safe_load((FILES / "fetchq.rules.test.yml").read_text())["tests"]
            for check in test["alert_rule_test"]
        ]
        for is_firing in (True, False):
            tested = {check["alertname"] for check in checks if bool(check["exp_alerts"]) == is_firing}
            self.assertEqual({rule["alert"] for rule in alerts()} - tested, set())


class Dashboard(unittest.TestCase):
    def test_each_query_has_data(self):
        prometheus = state["prometheus"]
        n = 0
        for panel in dashboard()["panels"]:
            for target in panel.get("targets", []):
                n += 1
                with self.subTest(panel=panel["title"], expression=target["expr"]):
                    found = prometheus.query(expand(target["expr"]))
                    if "fetchq_metric_missing" in target["expr"]:
                        self.assertEqual(found, [])
                        continue
                    self.assertTrue(found, "no data")
                    for labels, _ in found:
                        for name in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
                            self.assertIn(name, labels)
        self.assertGreater(n, 40)

    def test_each_variable_has_values(self):
        prometheus = state["prometheus"]
        values = {}
        for variable in dashboard()["templating"]["list"]:
            if variable["type"] != "query":
                continue
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            values[label] = prometheus.api(f"label/{label}/values", **{"match[]": expand(selector)})
        self.assertEqual(values["job"], ["fetchq"])
        self.assertEqual(values["database"], [DATABASE])
        self.assertEqual(set(values["queue"]), {"mail", "dead", "idle", "paused", "killed", ODD})


class Rules(unittest.TestCase):
    def test_each_selector_has_data(self):
        prometheus = state["prometheus"]
        for rule in alerts():
            for selector in SELECTOR.findall(rule["expr"]):
                with self.subTest(alert=rule["alert"], selector=selector):
                    found = prometheus.query(selector)
                    self.assertEqual(not found, selector in EMPTY)

    def test_prometheus_evaluates_all_of_them(self):
        groups = state["prometheus"].api("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        self.assertEqual(len(rules), len(alerts()))
        for rule in rules:
            self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), rule["name"])

    def test_those_whose_reason_is_there_are_not_silent(self):
        prometheus = state["prometheus"]
        found = {rule["alert"]: prometheus.query(rule["expr"]) for rule in alerts()}
        queues = {name: {labels.get("queue") for labels, _ in found[name]} for name in found}
        self.assertEqual(queues["FetchqDeadLetters"], {"mail"})
        self.assertEqual(queues["FetchqLeasesLost"], {"mail"})
        self.assertEqual(queues["FetchqManyFailures"], {"mail"})
        self.assertEqual(queues["FetchqQueuePaused"], {"paused"})
        self.assertIn("idle", queues["FetchqNoWorkers"])
        for silent in ("FetchqMetricsAbsent", "FetchqDatabaseUnreachable", "FetchqMetricMissing", "FetchqFloorMiss"):
            self.assertEqual(found[silent], [], silent)


class Keda(unittest.TestCase):
    def triggers(self):
        for document in yaml.safe_load_all((FILES / "keda.yaml").read_text()):
            if document["kind"] == "ScaledObject":
                yield from document["spec"]["triggers"]

    def test_each_query_has_a_number(self):
        kinds = []
        for trigger in self.triggers():
            query = trigger["metadata"]["query"]
            kinds.append(trigger["type"])
            with self.subTest(query=query):
                if trigger["type"] == "postgresql":
                    with connect() as db:
                        rows = db.execute(query).fetchall()
                    self.assertEqual([len(row) for row in rows], [1])
                    self.assertIsInstance(rows[0][0], int)
                else:
                    self.assertEqual(len(state["prometheus"].query(query)), 1)
        self.assertEqual(kinds, ["postgresql", "postgresql", "prometheus", "prometheus"])

    def test_the_guide_has_the_queries(self):
        guide = (support.ROOT / "docs/guides/monitoring.md").read_text()
        for trigger in self.triggers():
            if trigger["type"] == "postgresql":
                self.assertIn(trigger["metadata"]["query"] + ";\n", guide)


class Metrics(unittest.TestCase):
    def test_promtool_accepts_the_text(self):
        kind, text = support.get(state["address"] + "/metrics")
        self.assertEqual(kind, "text/plain; version=0.0.4; charset=utf-8")
        status, output = promtool("check", "metrics", input=text)
        self.assertEqual((status, output), (0, ""))
        self.assertFalse(text.endswith("# EOF\n"))

    def test_open_metrics_is_for_those_who_ask(self):
        kind, text = support.get(state["address"] + "/metrics", "application/openmetrics-text; version=1.0.0, */*;q=0.1")
        self.assertEqual(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        self.assertTrue(text.endswith("# EOF\n"))
        self.assertIn("# TYPE fetchq_pushed counter\n", text)

    def test_an_odd_name_is_escaped(self):
        self.assertIn(("fetchq_queue_paused", frozenset({("queue", ODD), ("database", DATABASE)})), self.samples())
        found = state["prometheus"].query("fetchq_queue_paused")
        self.assertIn(ODD, [labels["queue"] for labels, _ in found])

    def test_many_scrapes_cost_one_query_a_second(self):
        def scrape(_=None):
            return support.get(state["address"] + "/metrics")[1]

        # Ages have microseconds, so that no two queries give the same text.
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = set(pool.map(scrape, range(300)))
        self.assertLess(len(texts), time.monotonic() - begin + 2)
        poll("the text is made again", lambda: scrape() not in texts)

    def test_a_database_that_cannot_be_read_is_down_and_the_others_are_not(self):
        console, address = support.start_console(
            state["folder"].path, "console-2", support.url_of(), support.url_of("no_such_database")
        )
        try:
            samples = parse(support.get(address + "/metrics")[1])
        finally:
            console.stop()
        up = {dict(labels)["database"]: value for (name, labels), value in samples.items() if name == "fetchq_up"}
        self.assertEqual(up, {DATABASE: 1, "no_such_database": 0})
        self.assertIn("no_such_database", (pathlib.Path(state["folder"].path) / "console-2.log").read_text())
        self.assertTrue([1 for name, _ in samples if name == "fetchq_documents"])

    def samples(self):
        return parse(support.get(state["address"] + "/metrics")[1])


class Quiet(unittest.TestCase):
    """After the load: the numbers of all ways are the same."""

    @classmethod
    def setUpClass(cls):
        state.pop("load").stop()

    def scraped(self):
        """The samples of the console, made after the load."""
        time.sleep(1.1)
        samples = parse(support.get(state["address"] + "/metrics")[1])
        return {key: value for key, value in samples.items() if key[0] != "fetchq_up"}

    def test_the_counters_are_those_of_the_database(self):
        scraped = self.scraped()
        totals = {"fetchq_pushed_total": "ent", "fetchq_picked_total": "pkd", "fetchq_leases_lost_total": "orp"}
        with connect() as db:
            for name, metric in totals.items():
                sql = "select value from fetchq.metrics_live where queue = 'mail' and metric = %s"
                exact = db.execute(sql, [metric]).fetchone()[0]
                self.assertGreater(exact, 0)
                self.assertEqual(scraped[name, frozenset({("queue", "mail"), ("database", DATABASE)})], exact)

    def test_sql_exporter_has_the_samples_of_the_console(self):
        collector = yaml.safe_load((FILES / "fetchq.collector.yml").read_text())
        exporter = yaml.safe_load((FILES / "sql_exporter.yml").read_text())
        self.assertEqual(exporter["target"]["collectors"], [collector["collector_name"]])
        allowed = {"metric_name", "type", "help", "key_labels", "values", "query"}
        # A sample of a queue or of the server may come after the other way was read.
        changing = re.compile(r"age_seconds|overdue|workers")
        exported = {}
        scraped = self.scraped()
        with connect() as db:
            for metric in collector["metrics"]:
                self.assertLessEqual(set(metric), allowed)
                self.assertIn(metric["type"], ("counter", "gauge"))
                rows = db.execute(metric["query"])
                columns = [column.name for column in rows.description]
                self.assertEqual(columns, metric["key_labels"] + metric["values"])
                for *labels, value in rows:
                    self.assertTrue(all(isinstance(label, str) for label in labels), metric)
                    key = metric["metric_name"], frozenset(zip(metric["key_labels"], labels))
                    self.assertNotIn(key, exported)
                    exported[key] = value
        self.assertEqual(set(exported), set(scraped))
        for key, value in exported.items():
            if not changing.search(key[0]):
                self.assertAlmostEqual(value, scraped[key], places=6, msg=key)

    def test_the_help_of_sql_exporter_is_that_of_the_extension(self):
        collector = yaml.safe_load((FILES / "fetchq.collector.yml").read_text())
        with connect() as db:
            families = dict(db.execute("select family, help from fetchq.metric_families()").fetchall())
        for metric in collector["metrics"]:
            family = re.sub(r"_(bucket|sum|count)$", "", metric["metric_name"])
            self.assertTrue(metric["help"].startswith(families.pop(family, metric["help"])), family)
        self.assertEqual(families, {})


if __name__ == "__main__":
    unittest.main()
