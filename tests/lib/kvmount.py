# SPDX-License-Identifier: Apache-2.0
"""A mount for tests written in python; the counterpart of mount.sh.

    with Mount(opts='dram=256M', source='store') as m:
        open(m.path + '/f', 'w')
        m.kill9(); m.start()

Everything lies in a temporary directory that goes at the end, pass or fail.
The same environment variables as in mount.sh are obeyed.
"""
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def skip(why):
    print('SKIP %s: %s' % (os.path.basename(sys.argv[0]), why), flush=True)
    sys.exit(77)


def scale(n):
    return max(1, int(n * float(os.environ.get('KVC_TEST_SCALE', '1'))))


def find_binary(name):
    base = os.environ.get('KVC_BIN_DIR')
    if not base:
        return shutil.which(name)
    for d in (base, base + '/fs', base + '/tools'):
        if os.access(d + '/' + name, os.X_OK) and os.path.isfile(d + '/' + name):
            return d + '/' + name
    return None


def wait_for(cond, seconds, what):
    end = time.monotonic() + seconds
    while not cond():
        if time.monotonic() > end:
            raise TimeoutError('not within %d s: %s' % (seconds, what))
        select.select([], [], [], 0.01)


def keepers(store):
    """Processes that keep the memory of a store's mount: pids."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/comm' % pid) as f:
                if f.read() != 'kvcachefs-keep\n':
                    continue
            with open('/proc/%s/cmdline' % pid, 'rb') as f:     # of a zombie: empty
                if store.encode() in f.read().split(b'\0'):
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Mount:
    def __init__(self, opts='dram=256M', source='none', needs_store=False):
        if not os.path.exists('/dev/fuse'):
            skip('/dev/fuse is missing')
        self.command = os.environ.get('KVC_MOUNT_CMD')
        self.binary = find_binary('kvcachefs')
        if self.command and needs_store:
            skip('needs kvcachefs itself, not KVC_MOUNT_CMD')
        if not self.command and not self.binary:
            skip('kvcachefs is not built')
        self.dir = tempfile.mkdtemp(prefix='kvc-%s.' % os.path.basename(sys.argv[0]).split('.')[0])
        self.path = self.dir + '/m'
        self.source = source if source == 'none' else self.dir + '/' + source
        self.set_opts(opts)
        self.log = open(self.dir + '/log', 'ab')
        self.proc = self.pid = None
        os.mkdir(self.path)

    def set_opts(self, opts):
        """For the next start."""
        self.opts = opts + (',allow_other' if os.getuid() == 0 else '')
        if os.environ.get('KVC_TEST_OPTS'):
            self.opts += ',' + os.environ['KVC_TEST_OPTS']

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self.start()
        except BaseException:
            self.cleanup()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and os.path.ismount(self.path):
                self.umount()
            elif kind is not None and not issubclass(kind, SystemExit):
                print(self.log_tail(), flush=True)
        finally:
            self.cleanup()

    def log_tail(self, n=30):
        with open(self.dir + '/log', errors='replace') as f:
            return ''.join(f.readlines()[-n:])

    def alive(self):
        if self.proc:
            return self.proc.poll() is None
        try:
            os.kill(self.pid, 0)
            return True
        except OSError:
            return False

    def answers(self):
        try:
            return os.path.ismount(self.path)
        except OSError:
            return False

    def start(self, deadline=60):
        if self.command:
            pidfile = self.dir + '/pid'
            subprocess.run(self.command.split() + [self.opts, self.source, self.path], check=True,
                           env=dict(os.environ, KVC_PID_FILE=pidfile), stdout=self.log, stderr=self.log)
            wait_for(lambda: os.path.exists(pidfile) and os.path.getsize(pidfile), 10, 'pid file')
            self.pid = int(open(pidfile).read())
        else:
            self.proc = self.spawn(self.opts, self.source)
            self.pid = self.proc.pid
        wait_for(lambda: self.answers() or not self.alive(), deadline, 'the mount answers')
        if not self.answers():
            raise RuntimeError('the mount did not come up:\n' + self.log_tail())

    def spawn(self, opts, source):
        """A daemon, just started. Its temporary files (a sanitizer's) are left where it is killed: in our folder."""
        return subprocess.Popen([self.binary, '-f', '-o', opts, source, self.path], stdin=subprocess.DEVNULL,
                                stdout=self.log, stderr=self.log, env=dict(os.environ, TMPDIR=self.dir))

    def umount(self):
        cmd = ['umount'] if os.getuid() == 0 else ['fusermount3', '-u']
        wait_for(lambda: subprocess.run(cmd + [self.path], stderr=subprocess.DEVNULL).returncode == 0, 10, 'umount')
        wait_for(lambda: not self.alive(), 60, 'the daemon ends after umount')
        if self.proc and self.proc.returncode:
            raise RuntimeError('the daemon exited with %d:\n%s' % (self.proc.returncode, self.log_tail()))

    def kill9(self, before_umount=None):
        """before_umount: called between the death and the unmount, for users to end."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
        wait_for(lambda: not self.alive(), 10, 'the daemon dies')
        if before_umount:
            before_umount()
        subprocess.run(['umount', '-l', self.path], stderr=subprocess.DEVNULL)
        wait_for(lambda: not os.path.ismount(self.path), 10, 'the mount point is free')

    def cleanup(self):
        if self.pid and self.alive():
            subprocess.run(['umount', '-l', self.path], stderr=subprocess.DEVNULL)
            try:
                wait_for(lambda: not self.alive(), 5, 'end')
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                wait_for(lambda: not self.alive(), 10, 'the daemon dies')
        subprocess.run(['umount', '-l', self.path], stderr=subprocess.DEVNULL)
        self.log.close()
        if not os.path.ismount(self.path):
            shutil.rmtree(self.dir, ignore_errors=True)
