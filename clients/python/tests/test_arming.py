"""The ways to start the client without changing the program: `vram-run`, the .pth file, and attaching."""

import os
import subprocess
import sys
import unittest

from vram_exporter import _run

from . import support
from .support import DEVICE, MIB

PTH = os.path.join(support.SOURCE, "vram_exporter_arm.pth")

# A job that does not import the client.
JOB = """
    import sys, torch
    kept = torch.empty(10 << 20)
    sys.stdin.readline()
    print("done")
"""

SHOW = "import sys; print('vram_exporter' in sys.modules and sys.modules['vram_exporter'].running())"


class VramRun(support.Case):
    def vram_run(self, *words, **variables):
        # Only what vram-run itself sets may make the package importable for the command.
        variables.setdefault("PYTHONPATH", support.STANDIN)
        start = "import sys; sys.path.insert(0, %r); from vram_exporter._run import main; main(sys.argv[1:])" % support.SOURCE
        return self.program("", command=[sys.executable, "-c", start, *words], **variables)

    def test_a_program_that_does_not_know_the_client_reports(self):
        server = self.server()
        path = self.write("job.py", JOB)
        job = self.vram_run("--interval", "0.02", sys.executable, path)
        self.assertTrue(server.wait(lambda s: s.values(job.pid).get(DEVICE, {}).get("allocated_bytes") == 10 * MIB), "vram-run becomes the command")
        self.go_on(job)
        self.assertEqual(self.finish(job), "done\n")

    def test_the_socket_can_be_named(self):
        server = self.server()
        job = self.vram_run("--socket", "s", "--", sys.executable, self.write("job.py", JOB), VRAM_EXPORTER_SOCKET="/nonexistent")
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.finish(job)

    def test_children_inherit_it(self):
        server = self.server()
        self.write("child.py", JOB)
        parent = self.write("parent.py", "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'child.py']))")
        job = self.vram_run("sh", "-c", 'exec "$0" "$1"', sys.executable, parent)
        self.assertTrue(server.wait(lambda s: any(s.values(c.pid) for c in s.connections)))
        self.assertNotEqual(server.connections[0].pid, job.pid)
        self.go_on(job)
        self.assertEqual(self.finish(job), "done\n")

    def test_spawned_processes_inherit_it(self):
        server = self.server()
        path = self.write(
            "job.py",
            """
            import multiprocessing, sys, torch
            def work(conn):
                kept = torch.empty(10 << 20)
                conn.recv()
            if __name__ == "__main__":
                mine, theirs = multiprocessing.Pipe()
                child = multiprocessing.get_context("spawn").Process(target=work, args=(theirs,))
                child.start()
                sys.stdin.readline()
                mine.send(1)
                child.join()
                print(child.exitcode)
            """,
        )
        job = self.vram_run(sys.executable, path)
        self.assertTrue(server.wait(lambda s: any(s.values(c.pid) for c in s.connections)))
        self.assertNotEqual(server.connections[0].pid, job.pid)
        self.go_on(job)
        self.assertEqual(self.finish(job), "0\n")

    def test_an_existing_sitecustomize_still_runs(self):
        self.write("site/sitecustomize.py", "import sys; sys.seen = sys.modules['sitecustomize'].__file__")
        folder = os.path.join(self.folder, "site")
        job = self.vram_run(sys.executable, "-c", SHOW + "; import sitecustomize; print(sys.seen == sitecustomize.__file__, sys.seen)", PYTHONPATH=folder)
        self.assertEqual(self.finish(job), "True\nTrue %s/sitecustomize.py\n" % folder)

    def test_a_hostile_sitecustomize_fails_as_without_the_client(self):
        for source in ("raise RuntimeError('hostile')", "import nothing_of_this_name", "import sys; sys.exit(7)", "syntax error", "import os; os.environ.clear()"):
            with self.subTest(source=source):
                self.write("site/sitecustomize.py", source)
                folder = os.path.join(self.folder, "site")
                code = "import sys; print('ran', [p for p in sys.path if 'bootstrap' in p])"
                outcomes = []
                for job in (self.vram_run(sys.executable, "-c", code, PYTHONPATH=folder), self.program("", command=[sys.executable, "-c", code], PYTHONPATH=folder)):
                    out, err = job.communicate(timeout=support.LIMIT)
                    outcomes.append((job.returncode, out, err.splitlines()[-1:]))
                self.assertEqual(outcomes[0], outcomes[1])

    def test_without_another_sitecustomize_nothing_is_printed(self):
        job = self.vram_run(sys.executable, "-c", SHOW, PYTHONPATH="")
        self.assertEqual(self.finish(job), "True\n")

    def test_the_folder_is_not_left_in_the_path(self):
        job = self.vram_run(sys.executable, "-c", "import sys; print([p for p in sys.path if 'vram' in p or '_bootstrap' in p])", PYTHONPATH="")
        self.assertEqual(self.finish(job), "[]\n")

    def test_the_whole_environment_of_the_package_does_not_become_importable(self):
        job = self.vram_run(sys.executable, "-c", "import vram_exporter, sys; print(any(p == %r for p in sys.path))" % support.SOURCE, PYTHONPATH="")
        self.assertEqual(self.finish(job), "False\n")

    def test_a_broken_package_does_not_break_the_program(self):
        copy = os.path.join(self.folder, "vram_exporter")
        os.makedirs(os.path.join(copy, "_bootstrap"))
        with open(os.path.join(_run.BOOTSTRAP, "sitecustomize.py")) as file:
            self.write("vram_exporter/_bootstrap/sitecustomize.py", file.read())
        self.write("vram_exporter/__init__.py", "raise RuntimeError('half installed')")
        job = self.program("", command=[sys.executable, "-c", SHOW], PYTHONPATH=os.path.join(copy, "_bootstrap"), VRAM_EXPORTER_ARM="1")
        self.assertEqual(self.finish(job), "False\n")

    def test_the_exit_status_is_that_of_the_command(self):
        job = self.vram_run("sh", "-c", "exit 7")
        job.communicate(timeout=support.LIMIT)
        self.assertEqual(job.returncode, 7)

    def test_wrong_command_lines(self):
        for words, code, text in (
            (("/nonexistent/command",), 127, "No such file"),
            ((self.folder,), 126, "Permission denied"),
            ((), 2, "a command or --pid is required"),
            (("--interval", "7", "true"), 2, "0.01 to 1.5"),
            (("--pid", "1", "true"), 2, "--pid takes no command"),
        ):
            with self.subTest(words=words):
                job = self.vram_run(*words)
                _, err = job.communicate(timeout=support.LIMIT)
                self.assertEqual(job.returncode, code, err)
                self.assertIn(text, err)
                self.assertNotIn("Traceback", err)

    def test_the_environment_is_the_same_after_a_second_vram_run(self):
        once = _run.environment({"PYTHONPATH": "/a:/b"}, "/s", 0.5)
        self.assertEqual(once["PYTHONPATH"], _run.BOOTSTRAP + ":/a:/b")
        self.assertEqual(_run.environment(once), once)
        self.assertEqual(_run.environment({})["PYTHONPATH"], _run.BOOTSTRAP)

    def test_every_part_of_pythonpath_is_kept(self):
        for given in (None, "", ":", "::", "/a:", ":/a", "/a::/b", "::/a", "/a:/a", ":/a:/b:"):
            with self.subTest(given=given):
                inherited = {} if given is None else {"PYTHONPATH": given}
                once = _run.environment(inherited)
                self.assertEqual(once["PYTHONPATH"], _run.BOOTSTRAP + (":" + given if given else ""))
                self.assertEqual(_run.environment(once), once)

    def test_sys_path_is_the_same_as_without_vram_run(self):
        """An empty part of PYTHONPATH is the current folder; an empty PYTHONPATH is none."""
        show = "import subprocess, sys; print(sys.path[1:])\nif len(sys.argv) == 1: subprocess.run([sys.executable, __file__, 'child'])"
        script = self.write("elsewhere/show.py", show)
        self.write("site/sitecustomize.py", "import here")
        self.write("here.py", "import sys; sys.path.append('/from/here')")
        site = os.path.join(self.folder, "site")
        for given in ("", ":", site + ":", ":" + site, site + "::/nonexistent", "/nonexistent:"):
            with self.subTest(given=given):
                outcomes = []
                for job in (self.vram_run(sys.executable, script, PYTHONPATH=given), self.program("", command=[sys.executable, script], PYTHONPATH=given)):
                    out, err = job.communicate(timeout=support.LIMIT)
                    outcomes.append((job.returncode, out, err))
                self.assertEqual(outcomes[0], outcomes[1])
                self.assertEqual(self.folder in outcomes[0][1], given != "", "the current folder")

    def test_an_old_python_is_left_alone(self):
        old = [path for path in ("/usr/bin/python2", "/usr/bin/python2.7", os.environ.get("OLD_PYTHON", "")) if path and os.path.exists(path)]
        if not old:
            self.missing("a Python older than 3.9 (OLD_PYTHON=PATH)")
        job = self.vram_run(old[0], "-c", "import sys; print('vram_exporter' in sys.modules)", PYTHONPATH="")
        self.assertEqual(self.finish(job), "False\n")


class Pth(support.Case):
    def setUp(self):
        super().setUp()
        # A folder that Python processes in the same way as site-packages.
        self.site = os.path.join(self.folder, "site")
        os.makedirs(self.site)
        os.symlink(os.path.join(support.SOURCE, "vram_exporter"), os.path.join(self.site, "vram_exporter"))
        with open(PTH) as file:
            self.write("site/vram_exporter_arm.pth", file.read())

    def with_pth(self, code, **variables):
        text = "import site; site.addsitedir(%r)\n%s" % (self.site, support.textwrap.dedent(code))
        return self.program(text, PYTHONPATH=support.STANDIN, **variables)

    def test_unarmed_it_imports_nothing(self):
        # What Python itself imports to read a .pth file does not count.
        self.write("empty/empty.pth", "# empty\n")
        code = "import sys, site; site.addsitedir(%r); before = set(sys.modules); site.addsitedir(%r)\n" % (os.path.join(self.folder, "empty"), self.site)
        code += "print(sorted(set(sys.modules) - before), sys.modules.keys() >= {'vram_exporter'})"
        for value in (None, "", "0", "true"):
            with self.subTest(value=value):
                variables = {} if value is None else {"VRAM_EXPORTER_ARM": value}
                self.assertEqual(self.finish(self.program(code, PYTHONPATH="", **variables)), "[] False\n")

    def test_armed_it_starts_the_client(self):
        server = self.server()
        job = self.with_pth(JOB, VRAM_EXPORTER_ARM="1")
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.assertEqual(self.finish(job), "done\n")

    def test_armed_without_the_package_the_program_runs(self):
        os.unlink(os.path.join(self.site, "vram_exporter"))
        job = self.with_pth("print('ran')", VRAM_EXPORTER_ARM="1")
        out, _ = job.communicate(timeout=support.LIMIT)
        self.assertEqual((job.returncode, out), (0, "ran\n"))

    def test_it_is_one_line_that_python_executes(self):
        with open(PTH) as file:
            lines = file.read().splitlines()
        self.assertEqual(len(lines), 1)
        self.assertTrue(lines[0].startswith("import "))


class Attach(support.Case):
    def test_a_python_without_remote_exec_says_what_to_do(self):
        if hasattr(sys, "remote_exec"):
            self.skipTest("this Python has sys.remote_exec")
        done = subprocess.run([sys.executable, "-m", "vram_exporter", "--pid", "1"], env=support.environment(), capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("CPython 3.14", done.stderr)

    def test_the_attached_script_starts_the_client(self):
        """The program itself executes what `sys.remote_exec` would execute."""
        server = self.server()
        script = self.write("attach.py", _run._ATTACH.format(init=os.path.join(support.SOURCE, "vram_exporter", "__init__.py"), package=os.path.join(support.SOURCE, "vram_exporter"), socket=self.path, interval=0.02, sites=None, snapshots=None))
        job = self.program("import torch\nkept = torch.empty(10 << 20)\nexec(open(%r).read(), {})\ninput()" % script, PYTHONPATH=support.STANDIN, VRAM_EXPORTER_SOCKET="/nonexistent")
        self.assertTrue(server.wait(lambda s: s.values(job.pid)))
        self.go_on(job)
        self.finish(job)

    def attach(self, pid, *words):
        command = [sys.executable, "-m", "vram_exporter", *words, "--pid", str(pid)]
        done = subprocess.run(command, env=support.environment(TMPDIR=self.folder), capture_output=True, text=True, timeout=support.LIMIT)
        if "Operation not permitted" in done.stderr:
            self.missing("the permission to attach to a process")
        return done

    def running(self, text, *command, **variables):
        """A program that has printed its first line."""
        job = self.program(text, PYTHONPATH=support.STANDIN, command=list(command) or None, **variables)
        self.assertEqual(job.stdout.readline(), "ready\n")
        return job

    def test_attaching_to_a_running_program(self):
        if not hasattr(sys, "remote_exec"):
            self.missing("CPython 3.14")
        server = self.server()
        job = self.running(
            """
            import sys, time, torch
            kept = torch.empty(10 << 20)
            print("ready", flush=True)
            end = time.monotonic() + 100
            while "vram_exporter" not in sys.modules and time.monotonic() < end: time.sleep(0.01)
            sys.stdin.readline()
            more = torch.empty(5 << 20)
            sys.stdin.readline()
            print("went on")
            """
        )
        done = self.attach(job.pid, "--socket", self.path)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertTrue(server.wait(lambda s: s.values(job.pid).get(DEVICE, {}).get("allocated_bytes") == 10 * MIB))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("vram-run-")], [], "the script is removed")
        self.assertEqual(self.attach(job.pid, "--socket", self.path).returncode, 0, "a second time changes nothing")
        self.go_on(job)
        self.assertTrue(server.wait(lambda s: s.values(job.pid)[DEVICE]["allocated_bytes"] == 15 * MIB))
        self.assertEqual(len(server.connections), 1)
        self.go_on(job)
        self.assertEqual(self.finish(job), "went on\n")

    def test_a_process_that_cannot_be_attached_to_is_one_line(self):
        if not hasattr(sys, "remote_exec"):
            self.missing("CPython 3.14")
        waits = "print('ready', flush=True); input()"
        ended = subprocess.Popen(["true"])
        ended.wait()
        cases = [
            (ended.pid, "no such process"),
            (0, "no such process"),
            (self.running("", "sh", "-c", "echo ready; read line").pid, "not a process of CPython 3.14"),
            (self.running(waits, PYTHON_DISABLE_REMOTE_DEBUG="1").pid, "not enabled in the remote process"),
        ]
        other = os.environ.get("VRAM_EXPORTER_OTHER_PYTHON")
        if other:
            cases.append((self.running("", other, "-c", waits).pid, "Python 3."))
        else:
            support.report_skip(self, "missing: another version of CPython (VRAM_EXPORTER_OTHER_PYTHON=PATH)")
        for pid, reason in cases:
            with self.subTest(reason=reason):
                done = self.attach(pid)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertRegex(done.stderr, r"\Avram-run: cannot attach to process %d: [^\n]*%s[^\n]*\n\Z" % (pid, reason))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("vram-run-")], [])


if __name__ == "__main__":
    unittest.main()
