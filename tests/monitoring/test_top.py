"""`fetchq top` in a real terminal of 80 columns, by tmux."""

import os
import re
import shlex
import subprocess
import unittest

import support
from support import CONSOLE, connect, poll


def setUpModule():
    support.prepare()
    with connect() as db:
        # A name that no queue can have is not one of the rows that the tests look for.
        db.execute("delete from fetchq.queues where name = %s", [support.ODD])
        db.execute("select fetchq.doc_append('mail', '{}') from generate_series(1, 30)")
        db.execute("select fetchq.doc_append('idle', '{}') from generate_series(1, 7)")


class Terminal:
    """A session of a tmux server of its own."""

    def __init__(self, command, **environment):
        self.folder = support.Folder()
        self.socket = os.path.join(self.folder.path, "tmux")
        words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        self.tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24",
            f"env {' '.join(words)} {shlex.join(command)}; echo ended with $?; sleep 600",
        )

    def tmux(self, *arguments):
        done = subprocess.run(
            ["tmux", "-S", self.socket, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output = done.stdout.decode()
        assert done.returncode == 0, (arguments, output)
        return output

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def wait_for(self, pattern, *options):
        last = []

        def found():
            last[:] = [self.screen(*options)]
            return re.search(pattern, last[0], re.M)

        try:
            poll(f"the screen has {pattern}", found)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{last[0]}") from None
        return last[0]

    def close(self):
        self.tmux("kill-server")
        self.folder.remove()


class Top(unittest.TestCase):
    def open(self, *arguments, url=None, **environment):
        environment.setdefault("NO_COLOR", "")
        terminal = Terminal(
            [CONSOLE, "top", "--url", url or support.url_of(), "--delay", "0.3", *arguments], **environment
        )
        self.addCleanup(terminal.close)
        return terminal

    def queues(self, screen):
        """The names in the list, in their order."""
        return re.findall(r"^(mail|dead|idle|paused|killed)\b", screen, re.M)

    def test_the_list_is_live_and_fits_into_80_columns(self):
        terminal = self.open()
        screen = terminal.wait_for(r"^mail +30 ")
        head = next(line for line in screen.splitlines() if line.startswith("QUEUE"))
        self.assertEqual(
            head.split(), ["QUEUE", "READY", "OLDEST▼", "ACTIVE", "WAIT", "PICK/S", "FAIL/S", "KILLED"]
        )
        self.assertRegex(screen, r"(?m)^paused \(paused\)")
        self.assertLessEqual(max(map(len, screen.splitlines())), 80)
        self.assertEqual(sorted(self.queues(screen)), ["dead", "idle", "killed", "mail", "paused"])
        with connect() as db:
            db.execute("select fetchq.doc_append('mail', '{}')")
            try:
                terminal.wait_for(r"^mail +31 ")
            finally:
                db.execute("select fetchq.doc_pop('mail')")
        terminal.press("q")
        terminal.wait_for("ended with 0")

    def test_keys_sort_and_filter(self):
        terminal = self.open("--sort", "name")
        screen = terminal.wait_for(r"^mail +30 ")
        self.assertEqual(self.queues(screen), ["dead", "idle", "killed", "mail", "paused"])
        terminal.press("r")
        self.assertEqual(self.queues(terminal.wait_for("READY▼"))[:2], ["mail", "idle"])
        terminal.press("r")
        self.assertEqual(self.queues(terminal.wait_for("READY▲"))[-2:], ["idle", "mail"])
        terminal.press("k")
        self.assertEqual(self.queues(terminal.wait_for("KILLED▼"))[0], "killed")
        terminal.press("/", "i", "l")
        screen = terminal.wait_for("name contains: il_")
        self.assertEqual(sorted(self.queues(screen)), ["killed", "mail"])
        terminal.press("Enter")
        terminal.wait_for("2 of 5 queues")
        terminal.press("Escape")
        terminal.wait_for(" 5 queues")
        terminal.press("?")
        terminal.wait_for("the other direction")

    def test_enter_opens_a_queue_and_escape_closes_it(self):
        with connect() as db:
            subject = db.execute(
                "select subject from fetchq.doc_lease('idle', duration => interval '1 hour', worker => 'w1')"
            ).fetchone()[0]
        terminal = self.open("--sort", "name")
        terminal.wait_for(r"^mail +30 ")
        terminal.press("Down", "Enter")
        screen = terminal.wait_for(r"LEASED +WORKER")
        self.assertRegex(screen, r"(?m)^idle$")
        self.assertRegex(screen, r"documents +ready 6 +retrying 0 +blocked 0 +planned 0 +active 1")
        self.assertRegex(screen, rf"(?m)^{re.escape(subject[:20])}.* w1 +1 ")
        terminal.press("Escape")
        terminal.wait_for(r"^QUEUE")
        with connect() as db:
            db.execute("select fetchq.worker_release('w1')")

    def test_there_are_colors_unless_no_color_is_set(self):
        color = "\x1b\\[(?:[0-9;]*;)?(?:3[0-7]m|38;)"
        colored = self.open()
        colored.wait_for(color, "-e")
        plain = self.open(NO_COLOR="1")
        self.assertNotRegex(plain.wait_for(r"^mail +30 |mail.*30 ", "-e"), color)

    def test_a_server_that_is_gone_is_shown_and_comes_back(self):
        terminal = self.open(url=support.url_of("top_later"))
        terminal.wait_for(r"^error: .*top_later")
        terminal.wait_for("There are no numbers yet")
        with connect("postgres") as db:
            db.execute("create database top_later template template0 encoding 'UTF8'")
            try:
                terminal.wait_for(r"^error: .*fetchq")
                with connect("top_later") as other:
                    other.execute("create extension fetchq")
                terminal.wait_for("There is no queue on which this role has a right")
            finally:
                terminal.press("q")
                terminal.wait_for("ended with 0")
                db.execute("drop database top_later with (force)")

    def test_without_a_terminal_it_says_so(self):
        done = subprocess.run(
            [CONSOLE, "top", "--url", support.url_of()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
        )
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"not a terminal", done.stderr)

    def test_a_wrong_delay_is_refused(self):
        done = subprocess.run([CONSOLE, "top", "--delay", "0"], stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"between 0.2 and 3600", done.stderr)


if __name__ == "__main__":
    unittest.main()
